"""Compiling kernels to PTX in several Python processes at once: Numba works for one thread at a time.

The processes run nothing of the program that asks for kernels, so that it may be any script.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from .kernel import CudaKernel

MOST_PROCESSES = 16

_START = f"""
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {__name__} import help_out
help_out()
"""


def compile_elsewhere(
    kernels: Sequence[CudaKernel], capability: tuple[int, int]
) -> Iterator[tuple[CudaKernel, str]]:
    """PTX of kernels for cards of that compute capability, in the order in which they are ready.

    Those are left out that no other process could compile.
    """
    n = min(len(kernels), os.cpu_count() or 1, MOST_PROCESSES)
    program = Path(sys.executable or "")
    if getattr(sys, "frozen", False) or not program.stem.lower().startswith(("python", "pypy")):
        return  # bundled or embedded: who knows what that program does when it is started
    running: list[subprocess.Popen[str]] = []
    ready: SimpleQueue[tuple[CudaKernel, str] | None] = SimpleQueue()
    todo, lock = iter(kernels), Lock()

    def work() -> None:
        try:
            process = _start(program)
            running.append(process)
            while True:
                with lock:
                    kernel = next(todo, None)
                text = "" if kernel is None else _ask(process, kernel, capability)
                if kernel is None or not text:
                    break
                ready.put((kernel, text))
        except (OSError, ValueError):  # it could not be started, or died
            pass
        finally:
            ready.put(None)

    with ThreadPoolExecutor(n) as pool:
        try:
            for _ in range(n):
                pool.submit(work)
            left = n
            while left:
                found = ready.get()
                if found is None:
                    left -= 1
                else:
                    yield found
        finally:
            for process in running:
                process.kill()
    for process in running:
        process.communicate()


def _start(program: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(program), "-c", _START, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def _ask(process: subprocess.Popen[str], kernel: CudaKernel, capability: tuple[int, int]) -> str:
    """PTX; empty if the process is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    what = kernel.module, kernel.name, kernel.threads, kernel.constants, kernel.resident
    process.stdin.write(json.dumps([what, capability]) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    return json.loads(line) if line.endswith("\n") else ""


def help_out() -> None:
    """Answer kernels on stdin by their PTX on stdout, both lines of JSON: what a helper runs."""
    for line in sys.stdin:
        (module, name, threads, constants, resident), (major, minor) = json.loads(line)
        kernel: CudaKernel = CudaKernel(module, name, threads, tuple((k, v) for k, v in constants), resident)
        print(json.dumps(kernel.ptx((major, minor))), flush=True)
