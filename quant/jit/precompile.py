"""Compiling many kernels at once. LLVM works for one thread at a time, so other processes help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from .kernel import CpuKernel
from .kernel_cache import KernelCache, kernel_cache

LEAST_MISSING = 4  # kernels to compile for each process: a new one needs the time of one to get going
MOST_PROCESSES = 5  # each takes some 200 MB

_START = f"""
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {__name__} import help_out
help_out(sys.argv[2:])
"""


def compile_kernels(
    kernels: Sequence[CpuKernel],
    progress: Callable[[int, int], None] | None = None,
    processes: int | None = None,
) -> int:
    """Give all kernels an address, out of the cache where they are there; returns how many were not.

    `progress` is called with how many of those are compiled, of how many; not at all where none must be.
    `processes` compile at most, this one among them; default: one a processor. The others only fill the
    cache, each beginning elsewhere in the list; where they cannot start, or die, this one does their share.
    """
    cache = kernel_cache()
    missing = [kernel for kernel in dict.fromkeys(kernels) if kernel.load(cache) is None]
    if not missing:
        return 0
    cache.tidy()
    for kernel in missing:
        cache.remove(kernel.key)  # one that is damaged would look finished to the others
    report = progress or (lambda done, total: None)
    n = min(processes or _processors(), len(missing) // LEAST_MISSING, MOST_PROCESSES)
    helpers = _Helpers()
    try:
        for i in range(1, n):
            first = len(missing) * i // n
            helpers.start(cache, missing[first:] + missing[:first])
        for kernel in missing:
            report(sum(cache.has(other.key) for other in missing), len(missing))
            if kernel.load(cache) is None:
                kernel.compile(cache)
    finally:
        helpers.stop()
    report(len(missing), len(missing))
    return len(missing)


class _Helpers:
    """Python processes that compile as well. They end when told to, and when this process does."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen] = []

    def start(self, cache: KernelCache, kernels: Sequence[CpuKernel]) -> None:
        """Start one more, if this is a Python that can."""
        program = Path(sys.executable or "")
        if getattr(sys, "frozen", False) or not program.stem.lower().startswith(("python", "pypy")):
            return  # bundled or embedded: who knows what that program does when it is started
        work = [f"{kernel.module}:{kernel.name}:{kernel.item}" for kernel in kernels]
        command = [
            str(program),
            "-c",
            _START,
            json.dumps(sys.path),
            str(cache.folder),
            *work,
        ]
        flags = getattr(subprocess, "CREATE_NO_WINDOW", 0)
        try:
            self._running.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    creationflags=flags,
                )
            )
        except (OSError, ValueError):
            return

    def stop(self) -> None:
        for process in self._running:
            process.kill()
        for process in self._running:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def help_out(arguments: Sequence[str]) -> None:
    """Fill the cache in a folder with what it lacks of kernels `module:name:item`: what a helper runs."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    cache = KernelCache(Path(arguments[0]))
    for name in arguments[1:]:
        kernel = CpuKernel(*name.split(":"))
        if not cache.has(kernel.key):
            kernel.compile(cache)


def _die_with_parent() -> None:
    """End this process when the one that started it is gone: then nobody holds the other end of its stdin."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
