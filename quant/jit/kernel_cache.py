"""Compiled kernels on disk: one file each, in a folder for these sources, this CPU and these compilers.

A file is the names of the outside symbols that the object code needs, and the object code (`FileCache`).
Folders of other versions are removed when nobody has used them for a month.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import mmap
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import NoHome
from ..home import home
from ..ownership import foreign_writer, private_folder
from .file_cache import UNFINISHED, FileCache
from .sources import SourceSet

SYMBOL = "kernel"  # the entry point's name in the object code
ROOM = 64 << 20  # bytes of addresses that LLVM may take for a kernel
UNUSED_SECONDS = 30 * 86400  # after which a folder of another version is removed

# What CPU kernels are compiled from. `CpuKernel.compile` refuses a kernel that imports anything else.
CPU_SOURCES = SourceSet(
    f"{__name__}.CPU_SOURCES",
    (
        *("quant/block.py", "quant/errors.py", "quant/home.py", "quant/ownership.py", "quant/package.py"),
        *("quant/formats", "quant/jit", "quant/rounding"),
        *("runtime/cpu/abi", "runtime/cpu/kernels", "runtime/cpu/simd"),
    ),
)
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

# LLVM execution engines, which own the machine code. They live as long as the process does: addresses of
# kernels are in the instruction tables of compiled programs, which cannot keep a Python object alive.
_ENGINES: list[Any] = []


class MachineCode:
    """A kernel in memory for as long as this process lives: `address` of its entry point.

    MemoryError where a limit of addresses (`ulimit -v`) leaves less than ROOM: LLVM would end the process.
    """

    def __init__(self, code: bytes) -> None:
        try:
            mmap.mmap(-1, ROOM).close()  # nothing is written to it, so that it costs no memory
        except OSError:
            raise MemoryError(f"no {ROOM >> 20} MiB of addresses for a compiled kernel") from None
        llvm = _llvm()
        engine = _new_engine(llvm)  # one for each kernel, since the entry points of all have the same name
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        self.address: int = engine.get_function_address(SYMBOL)

    @cached_property
    def ctypes(self) -> Callable[[int, int, int], None]:
        """The kernel as a Python function, which runs without the GIL."""
        return _CALL(self.address)


class KernelCache:
    """The kernels in one folder, by their keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = FileCache(folder, ".kernel")

    def has(self, key: str) -> bool:
        """Whether there is a file for the kernel, be it one that `load` does not take."""
        return self._files.has(key)

    def is_whole(self, key: str) -> bool:
        """Whether the kernel's file is there and as it was written."""
        return self._files.load(key) is not None

    def load(self, key: str) -> MachineCode | None:
        """The kernel; None if `FileCache.load` has none, or if it needs a symbol that this process lacks."""
        content = self._files.load(key)
        if content is None:
            return None
        symbols, _, code = content.partition(b"\n")
        return MachineCode(code) if _resolved(json.loads(symbols)) else None

    def store(self, key: str, code: bytes, symbols: list[str]) -> MachineCode:
        """Write object code that needs outside `symbols`, if the disk allows it, and load it."""
        self._files.store(key, json.dumps(symbols).encode() + b"\n" + code)
        return MachineCode(code)

    def remove(self, key: str) -> None:
        """Delete the kernel's file, if there is one."""
        self._files.remove(key)

    def tidy(self, now: float | None = None) -> None:
        """Remove unfinished files of killed processes, and sibling folders that nobody has used for a month.

        `now` is in seconds since 1970; default: the clock's.
        """
        oldest = (time.time() if now is None else now) - UNUSED_SECONDS
        for path in [*self.folder.glob(f"{UNFINISHED}*"), *self.folder.parent.glob("*-*")]:
            with suppress(OSError):
                if path == self.folder or path.stat().st_mtime > oldest:
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


@cache
def kernel_cache() -> KernelCache:
    """This process's cache."""
    return KernelCache(cache_folder())


@cache
def cache_folder() -> Path:
    """The folder for compiled kernels: it exists, only this user can write to it, and it counts as used now.

    It is in kukri's own folder (`home`). Where that cannot be written, or where other users can write to it,
    and without sources, which would tell whether a kernel is stale, it is a temporary folder that goes when
    this process ends; a warning in the log says why. Raises NoHome if the folder for temporary files is
    unsafe, too.
    """
    try:
        folder = private_folder(home(), "kernels", f"{_level()}-{_fingerprint()}")
        with tempfile.TemporaryFile(dir=folder):
            os.utime(folder)
            return folder
    except OSError as problem:
        why = f"{problem.filename}: {problem.strerror}" if problem.strerror else str(problem)
        return _temporary_folder(why)


def _temporary_folder(why: str) -> Path:
    """A folder for this process's kernels, alone in another, since `tidy` removes old folders beside it."""
    import logging

    private = Path(os.path.realpath(tempfile.mkdtemp(prefix="kukri-kernels-")))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    if reason := foreign_writer(private):
        raise NoHome(f"there is no safe folder for compiled kernels: {reason}; set KUKRI_HOME or TMPDIR")
    log = logging.getLogger(__name__)
    log.addHandler(logging.NullHandler())  # else Python prints what a program without handlers logs
    log.warning("compiled kernels are not kept: %s", why)
    folder = private / "kernels"
    folder.mkdir(mode=0o700)
    return folder


def _level() -> str:
    from .levels import LEVEL

    return LEVEL


def _fingerprint() -> str:
    """A digest of sources, compilers, and the very CPU, since several machines may share a home folder."""
    llvm = _llvm()
    system = (platform.system(), platform.machine(), sys.implementation.cache_tag, _level())
    compilers = [_version(package) for package in ("numba", "llvmlite", "numpy")]
    cpu = (llvm.get_host_cpu_name(), sorted(llvm.get_host_cpu_features().items()))
    digest = hashlib.sha256(repr((system, compilers, cpu)).encode())
    digest.update(CPU_SOURCES.digest())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # in a bundled application, whose sources change with its packages
        return "unknown"


@cache
def _llvm() -> Any:
    """The `llvmlite.binding` module, with LLVM ready for this CPU."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    _new_engine(llvm)  # LLVM looks for symbols in this process and its libraries once there is an engine
    if platform.machine().lower() in ("x86_64", "amd64") and not llvm.get_host_cpu_features().get("f16c"):
        _add_numba_symbols()  # without the instructions of F16C, conversions from and to fp16 are calls
    return llvm


def _new_engine(llvm: Any) -> Any:
    """An LLVM execution engine (MCJIT), which makes object code executable."""
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    _ENGINES.append(engine)
    return engine


def _resolved(symbols: list[str]) -> bool:
    """Whether this process has all symbols; LLVM would end it if one were missing."""
    llvm = _llvm()
    if all(llvm.address_of_symbol(symbol) for symbol in symbols):
        return True
    _add_numba_symbols()
    return all(llvm.address_of_symbol(symbol) for symbol in symbols)


def _add_numba_symbols() -> None:
    """Make the symbols of Numba's runtime known to LLVM, which takes an import of all of Numba."""
    from numba.core.registry import cpu_target

    cpu_target.target_context.refresh()
