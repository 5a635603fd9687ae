"""Observation of steps: what the buffers of a program hold between its ops, copied out while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..ops import Buffer
from .cache import Batch, PageTable

if TYPE_CHECKING:
    from .machine import Machine


@dataclass(frozen=True)
class Tap:
    """The contents of `buffer` in front of op number `at` of a program, or at its end (the number of ops)."""

    at: int
    buffer: Buffer


@dataclass(frozen=True)
class Observed:
    """What an observed step gave.

    `logits` is float32 [len(batch.logits_indices), vocab], valid until the next step. `values` are copies,
    float32 [rows, width] for each tap; of a buffer with `logits_rows` the rows are `logits_indices`.
    """

    logits: np.ndarray
    values: Mapping[Tap, np.ndarray]


# Called with the position of a step's first row and what the step gave.
TakeObserved = Callable[[int, Observed], None]


def observe_sequence(
    machine: Machine,
    table: PageTable,
    ids: Sequence[int],
    taps: Sequence[Tap],
    take: TakeObserved,
    most_rows: int | None = None,
) -> None:
    """Run `ids` from position 0 on as sequence 0, which must be empty and is empty behind, with logits of all
    rows, and hand what each step of up to `most_rows` rows gave to `take`."""
    most = min(machine.max_rows, machine.max_logits, most_rows or machine.max_rows)
    try:
        for start in range(0, len(ids), most):
            part = np.array(ids[start : start + most], np.int32)
            rows = np.arange(len(part), dtype=np.int32)
            table.extend(0, len(part))
            lengths = np.full(len(part), len(ids), np.int32)
            batch = Batch(part, rows * 0, rows + start, rows, lengths)
            take(start, machine.observe(batch, table, taps))
    finally:  # also behind Ctrl-C
        table.truncate(0, 0)
