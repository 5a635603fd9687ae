"""Compiling kernels to PTX in several child processes at once: Numba compiles in one thread at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock

from ....quant.child_process import start_python
from .kernel import CudaKernel

MAX_PROCESSES = 16
_ENTRY = f"{__name__}:serve"  # what a child process runs


def compile_elsewhere(
    kernels: Sequence[CudaKernel], capability: tuple[int, int]
) -> Iterator[tuple[CudaKernel, str]]:
    """Pairs of kernel and PTX for cards of that compute capability, in the order in which they are ready.

    Kernels that no child process could compile are left out.
    """
    n = min(len(kernels), os.cpu_count() or 1, MAX_PROCESSES)
    running: list[subprocess.Popen[bytes]] = []
    ready: SimpleQueue[tuple[CudaKernel, str] | None] = SimpleQueue()  # None: a process has ended
    todo, lock = iter(kernels), Lock()

    def feed_process() -> None:
        """Start a process, and hand it one kernel after the other until none is left or it dies."""
        try:
            process = start_python(_ENTRY, [], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if process is None:
                return
            running.append(process)
            while True:
                with lock:
                    kernel = next(todo, None)
                ptx = "" if kernel is None else _request(process, kernel, capability)
                if kernel is None or not ptx:
                    return
                ready.put((kernel, ptx))
        except (OSError, ValueError):  # the process died
            pass
        finally:
            ready.put(None)

    with ThreadPoolExecutor(n) as pool:
        try:
            for _ in range(n):
                pool.submit(feed_process)
            alive = n
            while alive:
                result = ready.get()
                if result is None:
                    alive -= 1
                else:
                    yield result
        finally:
            for process in running:
                process.kill()
    for process in running:
        process.communicate()


def _request(process: subprocess.Popen[bytes], kernel: CudaKernel, capability: tuple[int, int]) -> str:
    """The PTX of a kernel, from a process that runs `serve`; empty if the process died."""
    assert process.stdin is not None
    assert process.stdout is not None
    fields = kernel.module, kernel.name, kernel.threads, kernel.constants, kernel.resident
    process.stdin.write(json.dumps([fields, capability]).encode() + b"\n")
    process.stdin.flush()
    line = process.stdout.readline()
    return json.loads(line) if line.endswith(b"\n") else ""


def serve(arguments: Sequence[str]) -> None:
    """Run in a child process: read kernels from stdin and write their PTX to stdout, each a line of JSON.

    There are no `arguments`.
    """
    for line in sys.stdin:
        (module, name, threads, constants, resident), (major, minor) = json.loads(line)
        kernel: CudaKernel = CudaKernel(module, name, threads, tuple((k, v) for k, v in constants), resident)
        print(json.dumps(kernel.ptx((major, minor))), flush=True)
