"""Compiling a list of kernels with several processes, because LLVM compiles in one thread at a time."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ..child_process import start_python
from .kernel import CpuKernel
from .kernel_cache import KernelCache, kernel_cache

KERNELS_PER_PROCESS = 4  # at least: starting a process takes as long as compiling one kernel
MAX_PROCESSES = 5  # each takes some 200 MB


def compile_kernels(
    kernels: Sequence[CpuKernel],
    progress: Callable[[int, int], None] | None = None,
    processes: int | None = None,
) -> int:
    """Load all kernels, compiling those that are not in the cache; returns how many had to be compiled.

    `progress(compiled, total)` counts the kernels to compile; it is not called if there are none. At most
    `processes` compile, this one included; default: one per processor. The child processes only fill the
    cache, each starting at another place in the list. What they leave undone, because they cannot start or
    die, this process compiles.
    """
    cache = kernel_cache()
    missing = [kernel for kernel in dict.fromkeys(kernels) if kernel.load(cache) is None]
    if not missing:
        return 0
    cache.tidy()
    for kernel in missing:
        cache.remove(kernel.key)  # a damaged file would count as compiled in the other processes
    report = progress or (lambda compiled, total: None)
    n = min(processes or _processors(), len(missing) // KERNELS_PER_PROCESS, MAX_PROCESSES)
    workers = _Workers()
    try:
        for i in range(1, n):
            first = len(missing) * i // n
            workers.start(cache, missing[first:] + missing[:first])
        for kernel in missing:
            report(sum(cache.has(other.key) for other in missing), len(missing))
            if kernel.load(cache) is None:
                kernel.compile(cache)
    finally:
        workers.stop()
    report(len(missing), len(missing))
    return len(missing)


class _Workers:
    """Child processes that compile kernels into a cache. They end at `stop`, or when this process does."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, cache: KernelCache, kernels: Sequence[CpuKernel]) -> None:
        """Start a process that compiles the kernels in this order, if there can be one."""
        work = [f"{kernel.module}:{kernel.name}:{kernel.item}" for kernel in kernels]
        arguments = [str(cache.folder.absolute()), *work]
        process = start_python(f"{__name__}:compile_into_cache", arguments, stdin=subprocess.PIPE)
        if process is not None:
            self._running.append(process)

    def stop(self) -> None:
        """Kill all processes. Nothing is lost but what they are compiling."""
        for process in self._running:
            process.kill()
        for process in self._running:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def compile_into_cache(arguments: Sequence[str]) -> None:
    """Run in a child process: compile what a cache lacks. `arguments`: its folder, then
    "module:name:item" for each kernel."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    cache = KernelCache(Path(arguments[0]))
    for name in arguments[1:]:
        kernel = CpuKernel(*name.split(":"))
        if not cache.has(kernel.key):
            kernel.compile(cache)


def _exit_with_parent() -> None:
    """End this process as soon as its standard input is closed, which happens when its parent ends."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
