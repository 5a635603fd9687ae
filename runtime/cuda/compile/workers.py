"""Compiling kernels to PTX in several child processes at once: Numba compiles in one thread at a time."""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import Condition, Thread, current_thread
from typing import Any

from ....quant.child_process import start_python
from .kernel import CudaKernel

MAX_PROCESSES = 16
BACKGROUND_NICE = 10  # added to the priority of a process once nobody waits for its kernels
_ENTRY = f"{__name__}:serve"  # what a child process runs
_GARBAGE = 200_000, 20, 20  # of gc.set_threshold: objects of a kernel live until it is compiled

Kernel = CudaKernel[Any]


class Workers:
    """Child processes that compile kernels for cards of a compute capability, in the order of a queue.

    `take(kernel, ptx)` is called in a thread with each kernel that is ready; one for which it raises counts
    as one that could not be compiled. While somebody waits, there are as many processes as cores; the rest of
    the queue takes half of them. They end when the queue is empty.
    """

    def __init__(self, capability: tuple[int, int], take: Callable[[Kernel, str], None]) -> None:
        self._capability, self._take = capability, take
        self._changed = Condition()
        self._urgent: deque[Kernel] = deque()
        self._later: deque[Kernel] = deque()
        self._running: set[Kernel] = set()
        self._done: set[Kernel] = set()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[Thread] = []
        self._busy = 0  # processes that have a kernel of `_later`
        self._cores = os.cpu_count() or 1
        self._closed = False

    def add(self, kernels: Iterable[Kernel]) -> None:
        """Put kernels at the end of the queue, if they were not in it before."""
        with self._changed:
            known = {*self._urgent, *self._later, *self._running, *self._done}
            self._later.extend(each for each in dict.fromkeys(kernels) if each not in known)
            self._start((self._cores + 1) // 2)

    def compile_now(
        self, kernels: Iterable[Kernel], progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Compile kernels before all others, and wait until they are ready or could not be compiled.

        `progress` is called with the number of them that are done, and of all.
        """
        wanted = list(dict.fromkeys(kernels))
        with self._changed:
            for each in wanted:
                with suppress(ValueError):
                    self._later.remove(each)
            known = {*self._urgent, *self._running}
            self._urgent.extend(each for each in wanted if each not in known)
            self._start(self._cores)
            self._changed.notify_all()
            while left := self._left(wanted):
                if progress is not None:
                    progress(len(wanted) - left, len(wanted))
                self._changed.wait()
        if progress is not None:
            progress(len(wanted), len(wanted))

    def close(self) -> None:
        """End all processes, and wait for that. What is still queued is not compiled."""
        with self._changed:
            self._closed = True
            self._urgent.clear()
            self._later.clear()
            for process in self._processes:
                process.kill()
            threads = list(self._threads)
            self._changed.notify_all()
        for thread in threads:
            thread.join()
        atexit.unregister(self.close)

    def _start(self, most: int) -> None:
        """Start threads, up to `most` and no more than there is to do."""
        wanted = min(most, len(self._urgent) + len(self._later) + len(self._running), MAX_PROCESSES)
        if self._closed or wanted <= len(self._threads):
            return
        atexit.register(self.close)
        for _ in range(wanted - len(self._threads)):
            thread = Thread(target=self._work, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _left(self, wanted: Sequence[Kernel]) -> int:
        """How many are still to be waited for."""
        if not self._threads:  # none could start a process, or all processes have died
            self._urgent.clear()
            self._later.clear()
        waiting = {*self._urgent, *self._running}
        return sum(each in waiting for each in wanted)

    def _next(self) -> tuple[Kernel, bool] | None:
        """The next kernel, and whether somebody waits for it; None when nothing is left for this thread."""
        with self._changed:
            while not self._closed:
                if self._urgent:
                    kernel, urgent = self._urgent.popleft(), True
                elif self._later and self._busy < (self._cores + 1) // 2:
                    kernel, urgent = self._later.popleft(), False
                    self._busy += 1
                elif self._later:
                    self._changed.wait()
                    continue
                else:
                    break
                self._running.add(kernel)
                return kernel, urgent
            self._leave()
        return None

    def _leave(self) -> None:
        """This thread takes no more kernels: `_start` starts another one if there are more later on."""
        with suppress(ValueError):
            self._threads.remove(current_thread())
        self._changed.notify_all()

    def _work(self) -> None:
        """Start a process, and hand it one kernel after the other until none is left; for one that dies start
        another, but not twice in a row."""
        process, died = None, 0
        while died < 2 and (task := self._next()) is not None:
            kernel, urgent = task
            process = process or self._start_process()
            ptx = "" if process is None else _request(process, kernel, self._capability, urgent)
            if ptx:
                died = 0
                with suppress(Exception):  # it is compiled again where it is needed, and the error raised
                    self._take(kernel, ptx)
            else:
                died += 1
                self._end(process)
                process = None
            with self._changed:
                self._running.discard(kernel)
                self._done.add(kernel)
                self._busy -= not urgent
                if died == 2:
                    self._leave()
                self._changed.notify_all()
        self._end(process)

    def _end(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is not None:
            with self._changed:
                self._processes.remove(process)
            process.kill()
            process.communicate()

    def _start_process(self) -> subprocess.Popen[bytes] | None:
        with self._changed:
            if self._closed:
                return None
            process = start_python(_ENTRY, [], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if process is not None:
                self._processes.append(process)
            return process


def _request(
    process: subprocess.Popen[bytes], kernel: Kernel, capability: tuple[int, int], urgent: bool
) -> str:
    """The PTX of a kernel, from a process that runs `serve`; empty if the process died."""
    assert process.stdin is not None
    assert process.stdout is not None
    fields = kernel.module, kernel.name, kernel.threads, kernel.constants, kernel.resident
    try:
        process.stdin.write(json.dumps([fields, capability, urgent]).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else ""
    except (OSError, ValueError):
        return ""


def serve(arguments: Sequence[str]) -> None:
    """Run in a child process: read kernels from stdin and write their PTX to stdout, each a line of JSON.

    There are no `arguments`.
    """
    gc.set_threshold(*_GARBAGE)
    in_background = False
    for line in sys.stdin:
        (module, name, threads, constants, resident), (major, minor), urgent = json.loads(line)
        if not urgent and not in_background and hasattr(os, "nice"):
            os.nice(BACKGROUND_NICE)
            in_background = True
        kernel: Kernel = CudaKernel(module, name, threads, tuple((k, v) for k, v in constants), resident)
        print(json.dumps(kernel.ptx((major, minor))), flush=True)
