"""The driver: which thread runs the scheduler's steps.

One thread at a time does. A thread that waits for a token takes the part itself if nobody has it, so that a
single conversation needs no other thread and no switch between threads; a token for another thread comes
along in the same steps. `start` makes a thread that keeps the part as long as there is work, for consumers
that cannot run steps themselves, such as coroutines.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ModelClosed
from .scheduler import Scheduler
from .sequence import Sequence

IDLE_SECONDS = 0.01  # between looks at sequences that cannot go on now
LONGEST_WAIT = 1.0  # seconds, after which a waiting thread looks by itself


class Driver:
    """Runs the steps of a scheduler, on whichever thread waits for them.

    A process made by `fork` has the memory of an engine, but neither its threads nor a context of the GPU:
    there, and after `close`, calls raise ModelClosed.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._changed = threading.Condition(threading.Lock())
        self._driving = False  # a thread runs steps
        self._wanted = 0  # threads that wait for the machine to themselves
        self._waiting = 0  # threads that wait for a token
        self._thread: threading.Thread | None = None
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
            self._notify()

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence, now if no step is running, else behind it."""
        if sequence.finished or self.forked:
            return
        self.scheduler.cancel(sequence)
        # Nothing waits here: the garbage collector may call this in the middle of anything.
        if self._changed.acquire(blocking=False):
            try:
                if not self._driving:
                    self._drop_cancelled()
                self._changed.notify_all()
            finally:
                self._changed.release()

    def _drop_cancelled(self) -> None:
        """Take cancelled sequences out, unless a thread is changing the queue, which does it then."""
        if self.scheduler.lock.acquire(blocking=False):
            try:
                self.scheduler.drop_cancelled()
            finally:
                self.scheduler.lock.release()

    def advance(self, sequence: Sequence) -> None:
        """Return when a sequence has a token that was not read yet, or has ended.

        Raises what the machine raises, KeyboardInterrupt, and ModelClosed.
        """
        self.check()
        sequence.reader = threading.get_ident()
        if self._thread is not None:
            self._notify()
        while not sequence.readable:
            with self._hold(sequence) as mine:
                self.check()
                while mine and not sequence.readable and not self._wanted:
                    if self.scheduler.step():
                        self._notify_waiting()
                        continue
                    with self.scheduler.lock:
                        self.scheduler.ensure(sequence)
                    break
            if mine and not sequence.readable and not self._wanted:
                with self._changed:
                    self._changed.wait(IDLE_SECONDS)

    @contextmanager
    def _hold(self, sequence: Sequence | None = None) -> Iterator[bool]:
        """Have the driver's part while the block runs, once no other thread has it.

        False if `sequence` became readable while another thread had the part. Without a sequence, the other
        thread is asked to give it up behind its step.
        """
        mine = False
        try:
            with self._changed:
                self._wanted += sequence is None
                self._waiting += 1
                try:
                    while self._driving or (sequence is not None and self._wanted):
                        self._changed.wait(LONGEST_WAIT)
                        if sequence is not None and sequence.readable:
                            break
                    else:
                        mine = self._driving = True
                finally:
                    self._wanted -= sequence is None
                    self._waiting -= 1
            yield mine
        finally:
            if mine:
                self._give_up()

    def _give_up(self) -> None:
        """Let another thread drive. Sequences that were cancelled meanwhile are taken out first."""
        with self._changed:
            self._drop_cancelled()
            self._driving = False
            self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Have the machine to oneself while the block runs: no step of a sequence runs meanwhile."""
        self.check()
        with self._hold():
            self.check()
            yield

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _notify_waiting(self) -> None:
        if self._waiting:
            self._notify()

    # ---- a thread of its own

    def start(self) -> None:
        """Let a thread of its own run the steps from now on, if there is none yet."""
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="kukri-engine", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread of `start`, and all steps, behind the one that runs; nothing happens in a fork."""
        if self.forked or self._closed:
            return
        with self._hold():
            self._closed = True
            with self.scheduler.lock:
                self.scheduler.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        """Run steps whenever there are some."""
        while not self._closed:
            worked = False
            with self._hold_for_work():
                while not self._closed and not self._wanted:
                    try:
                        if not self.scheduler.step():
                            break
                    except Exception:  # noqa: BLE001 - the sequences of that step have ended with it
                        worked = True
                        continue
                    worked = True
                    self._notify_waiting()
            if not worked:
                with self._changed:
                    if not self._closed:
                        idle = not self.scheduler.waiting and not self.scheduler.running
                        self._changed.wait(LONGEST_WAIT if idle else IDLE_SECONDS)

    @contextmanager
    def _hold_for_work(self) -> Iterator[None]:
        with self._changed:
            while self._driving or self._wanted:
                self._changed.wait(LONGEST_WAIT)
            self._driving = True
        try:
            yield
        finally:
            self._give_up()
