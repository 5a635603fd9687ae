"""What ran in an engine's last steps: rows by sequence, prefill and decode, pages. Nothing of any text.

Steps are noted only while somebody watches; else a step costs one look at a flag.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

STEPS = 512  # that are kept
WATCH_SECONDS = 30.0  # after the last look, until steps are noted no longer


@dataclass(frozen=True, slots=True)
class StepPart:
    """The rows of one sequence in a step: `rows` tokens from position `first` on.

    `sequence` numbers an engine's requests in order of arrival. Of the rows, the last `drafted` were guesses,
    of which the first `right` came true. `pages` of the KV cache hold the sequence up to its last row.
    """

    sequence: int
    kind: Literal["prefill", "decode"]
    first: int
    rows: int
    drafted: int
    right: int
    pages: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `start` is on the clock of `perf_counter`; `seconds` include choosing the tokens.

    `running` and `waiting` count sequences in slots and in the queue behind it, `free_pages` the pages that
    nothing refers to then.
    """

    number: int
    start: float
    seconds: float
    parts: tuple[StepPart, ...]
    running: int
    waiting: int
    free_pages: int


class Timeline:
    """The last steps of a scheduler, while `watching`. `note` is the scheduler's, the rest for any thread."""

    def __init__(self, steps: int = STEPS) -> None:
        self.watching = False
        self._steps: deque[Step] = deque(maxlen=steps)
        self._number = 0
        self._until = 0.0
        self._lock = threading.Lock()

    def watch(self, seconds: float = WATCH_SECONDS) -> None:
        """Note steps for so many seconds from now on."""
        with self._lock:
            self._until = perf_counter() + seconds
            self.watching = True

    def since(self, number: int = -1) -> list[Step]:
        """The steps that are kept and have a higher number."""
        with self._lock:
            return [step for step in self._steps if step.number > number]

    def note(
        self,
        start: float,
        seconds: float,
        parts: Sequence[StepPart],
        running: int,
        waiting: int,
        free_pages: int,
    ) -> None:
        """Keep a step, in place of the oldest one; where nobody has looked for long, forget them instead."""
        with self._lock:
            if start > self._until:
                self.watching = False
                self._steps.clear()
                return
            self._steps.append(Step(self._number, start, seconds, tuple(parts), running, waiting, free_pages))
            self._number += 1
