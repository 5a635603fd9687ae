"""The driver: which thread runs the scheduler's steps.

One thread at a time does. A thread that waits for a token takes the part itself if nobody has it, so that a
single conversation needs no other thread and no switch between threads; a token for another thread comes
along in the same steps. `start` makes a thread that keeps the part as long as there is work, for consumers
that cannot run steps themselves, such as coroutines.

An interrupt (Ctrl-C) may come between any two instructions, and nothing may stay taken then. So who has the
part is an entry of a dict, which single calls of the interpreter take and give back, the latter as the first
thing of a `finally`; and a thread that waits has a lock of its own. A `threading.Condition` would not do:
what interrupts its `__exit__` leaves its lock taken for ever.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..errors import ModelClosed
from .scheduler import Scheduler
from .sequence import Sequence

IDLE_SECONDS = 0.01  # between looks at sequences that cannot go on now
LONGEST_WAIT = 1.0  # seconds, after which a waiting thread looks by itself
PART = "part"


class Driver:
    """Runs the steps of a scheduler, on whichever thread waits for them.

    A process made by `fork` has the memory of an engine, but neither its threads nor a context of the GPU:
    there, and after `close`, calls raise ModelClosed.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._taken: dict[str, object] = {}  # PART: who has it, a thread's number or what drops sequences
        self._wanted = set[object]()  # those that wait for the machine to themselves
        self._bells = deque[threading.Lock]()  # of threads that wait
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that made the engine."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raise ModelClosed if no step can be run any more."""
        if self.forked:
            raise ModelClosed(
                "this model was loaded before the process was forked, and its threads stayed behind: load it "
                "in this process, or start processes by 'spawn'"
            )
        if self._closed:
            raise ModelClosed("this model is closed; load it again")

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.check()
        self.scheduler.submit(sequence)
        if self._thread is not None:
            self._ring()

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence, now if no step is running, else behind it.

        Nothing waits here: the garbage collector may call this in the middle of anything.
        """
        if sequence.finished or self.forked:
            return
        self.scheduler.cancel(sequence)
        self._drop_cancelled()
        self._ring()

    def advance(self, sequence: Sequence) -> None:
        """Return when a sequence has a token that was not read yet, or has ended.

        Raises what the machine raises, KeyboardInterrupt, and ModelClosed.
        """
        self.check()
        sequence.reader = threading.get_ident()
        if self._thread is not None:
            self._ring()
        while not sequence.readable:
            self.check()
            if self._wanted or not self._take():
                self._wait(LONGEST_WAIT, lambda: sequence.readable or self._is_free())
                continue
            try:
                while not sequence.readable and not self._wanted and self.scheduler.step():
                    if self._bells:
                        self._ring()
                if not sequence.readable:
                    with self.scheduler.lock:
                        self.scheduler.ensure(sequence)
            finally:
                self._taken.clear()
                self._leave()
            if not sequence.readable and not self._wanted:
                self._wait(IDLE_SECONDS, lambda: sequence.readable)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Have the machine to oneself while the block runs: no step of a sequence runs meanwhile."""
        self.check()
        with self._alone():
            self.check()
            yield

    # ---- the part

    def _take(self) -> bool:
        """Take the part if no other thread has it. (An interrupt may have left this one with it.)"""
        here = threading.get_ident()
        return self._taken.setdefault(PART, here) == here

    def _is_free(self) -> bool:
        """Whether a thread that reads may take the part."""
        return not self._taken and not self._wanted

    def _leave(self) -> None:
        """Behind the part: what other threads left to the one that had it. Nothing is lost without this."""
        self._drop_cancelled()
        if self._bells:
            self._ring()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Have the part while the block runs; the thread that has it gives it up behind its step."""
        this = object()
        try:
            self._wanted.add(this)
            while not self._take():
                self._wait(LONGEST_WAIT, lambda: not self._taken)
            try:
                self._wanted.discard(this)
                yield
            finally:
                self._taken.clear()
        finally:
            self._wanted.discard(this)
            self._leave()

    def _drop_cancelled(self) -> None:
        """Take cancelled sequences out, unless a thread runs steps or changes the queue: then it does it."""
        this = object()
        if not self.scheduler.has_cancelled or self._taken.setdefault(PART, this) is not this:
            return
        try:
            if self.scheduler.lock.acquire(blocking=False):
                try:
                    self.scheduler.drop_cancelled()
                finally:
                    self.scheduler.lock.release()
        finally:
            self._taken.clear()

    # ---- waiting

    def _wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        """Wait until `_ring`, and so many seconds at most, unless what is waited for is there."""
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        if not ready():
            bell.acquire(timeout=seconds)
        with suppress(ValueError):  # it was rung
            self._bells.remove(bell)

    def _ring(self) -> None:
        """Let all threads that wait look again."""
        with suppress(IndexError):
            while self._bells:
                self._bells.popleft().release()

    # ---- a thread of its own

    def start(self) -> None:
        """Let a thread of its own run the steps from now on, if there is none yet."""
        with self._starting:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="kukri-engine", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread of `start`, and all steps, behind the one that runs; nothing happens in a fork."""
        if self.forked or self._closed:
            return
        with self._alone():
            self._closed = True
            with self.scheduler.lock:
                self.scheduler.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        """Run steps whenever there are some."""
        while not self._closed:
            if self._wanted or not self._take():
                self._wait(LONGEST_WAIT, lambda: self._closed or self._is_free())
            elif not self._run_steps():
                if self.scheduler.waiting or self.scheduler.running:
                    self._wait(IDLE_SECONDS, lambda: self._closed)
                else:
                    self._wait(LONGEST_WAIT, lambda: self._closed or bool(self.scheduler.waiting))

    def _run_steps(self) -> bool:
        """Run steps as long as there are some, with the part; whether there was one."""
        worked = False
        try:
            while not self._closed and not self._wanted:
                try:
                    if not self.scheduler.step():
                        break
                except Exception:  # noqa: BLE001 - the sequences of that step have ended with it
                    worked = True
                    continue
                worked = True
                if self._bells:
                    self._ring()
        finally:
            self._taken.clear()
            self._leave()
        return worked
