"""Turns: calls of one model from several threads, one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from ..engine.errors import ModelClosed, StaleGeneration

Result = TypeVar("Result")
MOST_IDLE_SECONDS = 60.0  # between two steps of a generation, while another thread waits for its end


class _Turn:
    """One call: `thread` is the one that made its latest step, which was at `seen` (monotonic seconds)."""

    def __init__(self) -> None:
        self.begun = False
        self.thread = 0
        self.seen = 0.0


class Turns:
    """Lets one call at a time have the model's machine and its KV cache.

    A generation has its turn from its first step until it ends or is closed. A call from another thread
    waits for that; a call from the same thread, which could wait for ever, takes the turn over, and the
    earlier generation cannot go on (StaleGeneration). So does a call that has waited for MOST_IDLE_SECONDS
    without a step of the generation in front of it, which may have been forgotten half-way.

    A process made by `fork` has the memory of a model, but not its threads, nor a context of the GPU: there,
    every call raises ModelClosed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = os.getpid()
        # Reentrant, because the garbage collector may close a generation in the middle of a call.
        self._changed = threading.Condition(threading.RLock())
        self._holder: _Turn | None = None
        self._stepping = False
        self._closed = False

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that loaded the model."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise ModelClosed in a fork."""
        if self.forked:
            raise ModelClosed(
                f"{self._name} was loaded before this process was forked, and its threads stayed behind: "
                "load it in this process, or start processes by 'spawn'"
            )

    def call(self, function: Callable[[], Result]) -> Result:
        """The result of `function`, called when it is this thread's turn."""
        turn = _Turn()
        try:
            with self._step(turn):
                return function()
        finally:
            self._end(turn)

    def close(self, function: Callable[[], None]) -> None:
        """Call `function`, unless this process is a fork, once no step is running; later calls, and steps of
        generations, raise ModelClosed."""
        if self.forked:
            self._closed = True
            return
        with self._changed:
            while self._stepping and self._holder is not None:
                if self._holder.thread == threading.get_ident():
                    break
                self._changed.wait()
            self._closed = True
            function()
            self._changed.notify_all()

    def steps(self, items: Generator[Result, None, None]) -> Generator[Result, None, None]:
        """`items`, one turn from the first to the last of them. Each is computed as a step of that turn."""
        turn = _Turn()
        try:
            while True:
                with self._step(turn):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item
        finally:
            items.close()
            self._end(turn)

    @contextmanager
    def _step(self, turn: _Turn) -> Iterator[None]:
        """Wait for the turn, and have it while the block runs."""
        self.check_process()
        try:
            with self._changed:
                self._wait(turn)
                self._holder, self._stepping = turn, True
                turn.begun, turn.thread = True, threading.get_ident()
            yield
        finally:
            with self._changed:
                if self._holder is turn:
                    turn.seen = monotonic()
                    self._stepping = False
                    self._changed.notify_all()

    def _wait(self, turn: _Turn) -> None:
        """Return when no other thread has the turn. Raises StaleGeneration if this one was taken over, and
        ModelClosed after `close`."""
        while True:
            if self._closed:
                raise ModelClosed(f"{self._name} is closed; load it again")
            holder = self._holder
            if turn.begun and holder is not turn:
                raise StaleGeneration("another call took the cache over; this generation cannot go on")
            if self._stepping:
                if holder is not None and holder.thread == threading.get_ident():
                    raise StaleGeneration("this thread is in the middle of a step of the same model")
                self._changed.wait()
            elif holder is None or holder is turn or holder.thread == threading.get_ident():
                return
            else:
                idle = monotonic() - holder.seen
                if idle >= MOST_IDLE_SECONDS:
                    return
                self._changed.wait(MOST_IDLE_SECONDS - idle)

    def _end(self, turn: _Turn) -> None:
        """Give the turn back."""
        if self.forked:
            return
        with self._changed:
            if self._holder is turn:
                self._holder = None
                self._changed.notify_all()
