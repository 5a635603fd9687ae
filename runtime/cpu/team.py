"""A standing team of threads that runs whole steps in compiled code.

A step wakes each worker once. Within the step the threads meet at spin barriers (a fifth of a microsecond
each), since a decode step has hundreds of instructions. After a step the workers spin for about as long as
choosing a token and planning the next step takes, to catch that without a wake-up, and then sleep.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from time import perf_counter
from typing import Any

import numpy as np

from .abi.records import TEAM
from .kernels import FOLLOW, LEAD, POST
from .processors import prefer_performance_cores
from .simd.panels import aligned_empty

IDLE_SECONDS = 4e-4  # that a worker spins behind a step
TRIAL_SPINS = 5000  # to find out how long one takes: the pause between two reads has 40 to 140 cycles

_POSTED, _LED = (TEAM.fields[name][1] // 8 for name in ("posted", "led"))  # type: ignore[index]  # words


class _Workers:
    """State that the worker threads share with their Team.

    The threads reference this object and not the Team, so that the Team can be garbage-collected and its
    finalizer can end them.
    """

    def __init__(self, n_threads: int) -> None:
        self.memory = _cleared(TEAM.itemsize).view(TEAM)
        self._arrivals = _cleared(64 * n_threads)
        self.memory["arrivals"] = self._arrivals.ctypes.data
        self.memory["give_way"] = _give_way_address()
        self.memory["n_threads"] = n_threads
        # The same as a flat list of numbers: NumPy would take a tenth of the time between two steps.
        self._words = self.memory.view(np.int64).data
        self.closed = False
        self.done = np.zeros((n_threads, 8), np.int64)  # steps that each thread has run, a cache line apart
        # A worker sleeps while it acquires its lock, which only `wake` releases.
        self.locks = [threading.Lock() for _ in range(n_threads - 1)]
        for lock in self.locks:
            lock.acquire()

    @property
    def posted(self) -> int:
        """Steps that thread 0 has posted."""
        return self._words[_POSTED]

    @property
    def led(self) -> int:
        """Steps that thread 0 has finished."""
        return self._words[_LED]

    def set_idle_spins(self, follow: Any, seconds_idle: float) -> None:
        """Let workers spin for so long behind a step; `follow` is the compiled kernel of that name."""
        done, seconds = np.zeros(1, np.int64), []
        self.memory["idle_spins"] = TRIAL_SPINS
        for _ in range(3):
            start = perf_counter()
            follow(self.memory.ctypes.data, done.ctypes.data, 1)
            seconds.append(perf_counter() - start)
        self.memory["idle_spins"] = int(TRIAL_SPINS * seconds_idle / min(seconds))

    def wake(self) -> None:
        """Wake all workers that sleep."""
        for asleep in self.locks:
            if asleep.locked():
                asleep.release()

    def close(self) -> None:
        """End all workers."""
        self.closed = True
        self.wake()

    def work(self, thread: int, follow: Any) -> None:
        """The loop of worker number `thread`; `follow` is the compiled kernel of that name."""
        prefer_performance_cores()
        done = self.done[thread].ctypes.data
        while True:
            self.locks[thread - 1].acquire()
            if self.closed:
                return
            follow(self.memory.ctypes.data, done, thread)


class Team:
    """`n_threads` threads, including the caller's; `run` executes a step on all of them.

    Behind a step the workers spin for `idle_seconds`. Not for use from two threads at once. `close()` ends
    the workers, as does garbage collection of the team. RuntimeError if the system has no room for so many.
    """

    def __init__(self, n_threads: int, idle_seconds: float = IDLE_SECONDS) -> None:
        self.n_threads = n_threads
        self._workers = _Workers(n_threads)
        self._memory = int(self._workers.memory.ctypes.data)
        self._post: Any = POST.compiled.ctypes
        self._lead: Any = LEAD.compiled.ctypes
        follow = FOLLOW.compiled.ctypes
        if n_threads > 1:
            self._workers.set_idle_spins(follow, idle_seconds)
        self.close = weakref.finalize(self, self._workers.close)
        for i in range(1, n_threads):
            work = (i, follow)
            thread = threading.Thread(target=self._workers.work, args=work, name=f"kukri-{i}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a limit of the system, or no memory for its stack
                self.close()
                raise RuntimeError(
                    f"cannot start {n_threads} threads: the system allows only {i} here"
                ) from None

    @property
    def give_way(self) -> int:
        """Address of the C function that yields the processor to another thread; 0 if there is none."""
        return int(self._workers.memory["give_way"][0])

    @property
    def closed(self) -> bool:
        """Whether the workers have been ended."""
        return self._workers.closed

    def run(self, step: int) -> None:
        """Run the step whose STEP record is at address `step`, and return when all threads have finished it.
        RuntimeError if closed.

        An interrupt that arrives during the step is raised after it: workers that have begun the step would
        otherwise wait for thread 0 at a barrier for ever.
        """
        workers = self._workers
        if workers.closed:
            raise RuntimeError("the team of threads is closed")
        interrupt: BaseException | None = None
        ticket, memory = workers.led + 1, self._memory
        while workers.led < ticket:
            try:
                if workers.posted < ticket:
                    self._post(memory, step, 0)
                workers.wake()  # after posting, so that a worker about to sleep cannot miss the step
                self._lead(memory, step, 0)
            except BaseException as error:  # noqa: BLE001 - raised again once the step is done
                interrupt = error
        if interrupt is not None:
            raise interrupt


def _cleared(n_bytes: int) -> np.ndarray:
    """uint8 [n_bytes] of zeros, aligned to cache lines."""
    memory = aligned_empty(n_bytes)
    memory[:] = 0
    return memory


def _give_way_address() -> int:
    """Address of the C function that yields the processor to another thread; 0 if there is none."""
    try:
        library = ctypes.CDLL("kernel32" if os.name == "nt" else None)
        function = library.SwitchToThread if os.name == "nt" else library.sched_yield
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0
