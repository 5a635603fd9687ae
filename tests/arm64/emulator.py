"""Kernels for arm64, run by qemu's user emulation upon the arrays of this process.

Debian: `qemu-user`, `gcc-aarch64-linux-gnu` and `libc6-dev-arm64-cross`. The emulator is another process, and
its program (`calls.c`) asks for each page of memory that a kernel touches, and tells what the kernel has
changed. So a kernel is called with the addresses of this process, and tests need not know of the emulator.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
SYSTEM = Path("/usr/aarch64-linux-gnu")  # libraries for arm64
SOURCE = Path(__file__).parent / "calls.c"
PAGE = 4096


def can_emulate() -> bool:
    """Whether this machine has the emulator and a compiler for arm64."""
    return bool(shutil.which(COMPILER) and shutil.which(EMULATOR) and (SYSTEM / "lib/libc.so.6").exists())


class Emulator:
    """A process that emulates an arm64 CPU with all extensions that qemu knows. Calls wait for each other."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="kukri-arm64-")
        self._count, self._turn = 0, threading.Lock()
        program = self._build("calls", ["-O1", "-no-pie", str(SOURCE)])
        command = [EMULATOR, "-L", str(SYSTEM), "-cpu", "max", str(program)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0)
        self._memory = os.open("/proc/self/mem", os.O_RDONLY)

    def _build(self, name: str, arguments: list[str]) -> Path:
        path = Path(self._folder.name) / name
        subprocess.run([COMPILER, *arguments, "-o", str(path), "-lm"], check=True)
        return path

    def load(self, code: bytes) -> int:
        """The address, in the emulator, of the entry point `kernel` of an object file."""
        with self._turn:
            return self._load(code)

    def _load(self, code: bytes) -> int:
        self._count += 1
        objects = Path(self._folder.name) / f"{self._count}.o"
        objects.write_bytes(code)
        path = str(self._build(f"{self._count}.so", ["-shared", str(objects)])).encode()
        self._send(b"L" + struct.pack("<q", len(path)) + path)
        address = self._number(self._receive(1), b"A")
        assert address, f"{path.decode()} cannot be loaded"
        return address

    def call(self, address: int, arguments: int, step: int, thread: int) -> None:
        """Run the kernel at an address. RuntimeError if it reads or writes where there is no memory."""
        with self._turn:
            self._call(address, arguments, step, thread)

    def _call(self, address: int, arguments: int, step: int, thread: int) -> None:
        self._send(b"C" + struct.pack("<4q", address, arguments, step, thread))
        while (what := self._receive(1)) != b"D":
            at = self._number(what, b"PW")
            if what == b"P":
                self._send_page(at)
            else:
                word = self._receive(8)
                ctypes.memmove(at, word, 8)
        self._receive(8)

    def _send_page(self, at: int) -> None:
        """Send the page at an address of this process."""
        try:
            page = os.pread(self._memory, PAGE, at)
        except (OSError, OverflowError):
            page = b""
        self._send(struct.pack("<q", 1) + page if len(page) == PAGE else struct.pack("<q", 0))

    def _number(self, what: bytes, expected: bytes) -> int:
        assert what in expected, what
        return int(struct.unpack("<Q", self._receive(8))[0])

    def _send(self, content: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(content)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _receive(self, n: int) -> bytes:
        assert self._process.stdout is not None
        content = b""
        while len(content) < n:
            some = self._process.stdout.read(n - len(content))
            if not some:
                raise RuntimeError(f"the emulated kernel ended its process: {self._process.wait()}")
            content += some
        return content


class EmulatedCode:
    """What `MachineCode` is for kernels of this CPU: `address` in the emulator, `ctypes` to call it."""

    emulator: Emulator

    def __init__(self, code: bytes) -> None:
        self.address = self.emulator.load(code)

    @cached_property
    def ctypes(self) -> Callable[[int, int, int], None]:
        """The kernel as a Python function."""
        return lambda arguments, step, thread: self.emulator.call(self.address, arguments, step, thread)
