"""A standing team of threads that runs a whole step in compiled code.

A step costs one wake-up a thread; from there on the threads meet at spin barriers (a fifth of a
microsecond), since a decode step has hundreds of instructions. After a step the workers look out for the next
one for as long as a sampler needs, then they sleep.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any

import numpy as np

from .abi.records import TEAM
from .kernels import FOLLOW, LEAD, POST


class _Workers:
    """What the worker threads share with their team; they hold this and not the team itself, so that a
    forgotten team can end them."""

    def __init__(self, n_threads: int) -> None:
        self.memory = np.zeros(1, TEAM)
        self.memory["give_way"] = _give_way_address()
        self.memory["n_threads"] = n_threads
        self.closed = False
        self.done = np.zeros((n_threads, 8), np.int64)  # steps that each thread has run, a cache line each
        # A worker sleeps in acquiring its lock, which only `wake` releases.
        self.locks = [threading.Lock() for _ in range(n_threads - 1)]
        for lock in self.locks:
            lock.acquire()

    @property
    def posted(self) -> int:
        return int(self.memory["posted"][0])

    @property
    def led(self) -> int:
        return int(self.memory["led"][0])

    def wake(self) -> None:
        for asleep in self.locks:
            if asleep.locked():
                asleep.release()

    def close(self) -> None:
        self.closed = True
        self.wake()

    def work(self, thread: int, follow: Any) -> None:
        done = self.done[thread].ctypes.data
        while True:
            self.locks[thread - 1].acquire()
            if self.closed:
                return
            follow(self.memory.ctypes.data, done, thread)


class Team:
    """`n_threads` threads, the caller's own among them; `run` executes a STEP record on all of them.

    Not for use from two threads at once. `close` ends the workers, as does forgetting the team.
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._workers = _Workers(n_threads)
        self._post: Any = POST.compiled.ctypes
        self._lead: Any = LEAD.compiled.ctypes
        for i in range(1, n_threads):
            work = (i, FOLLOW.compiled.ctypes)
            threading.Thread(target=self._workers.work, args=work, name=f"kukri-{i}", daemon=True).start()
        self.close = weakref.finalize(self, self._workers.close)

    @property
    def closed(self) -> bool:
        return self._workers.closed

    def run(self, step: np.ndarray) -> None:
        """Run one step and return when all threads have finished it. RuntimeError if closed.

        An interrupt that arrives in between is raised after the step: workers that are already at it
        would wait for ever for thread 0.
        """
        workers = self._workers
        if workers.closed:
            raise RuntimeError("the team of threads is closed")
        interrupt: BaseException | None = None
        ticket, memory = workers.led + 1, workers.memory.ctypes.data
        while workers.led < ticket:
            try:
                if workers.posted < ticket:
                    self._post(memory, step.ctypes.data, 0)
                workers.wake()  # after posting: who looks out for a step until then must not miss it
                self._lead(memory, step.ctypes.data, 0)
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


def _give_way_address() -> int:
    """The C function that lets another thread run, or 0."""
    try:
        library = ctypes.CDLL("kernel32" if os.name == "nt" else None)
        function = library.SwitchToThread if os.name == "nt" else library.sched_yield
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0
