"""The rows of a step: which fit into it, whose turn it is if not all do, and the batch that they are."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import NamedTuple

import numpy as np

from ..cache import Batch, PageTable
from ..machine import Machine
from ..sampling.top_k import MAX_TOP_K, TopK
from .placement import Placement
from .sequence import Sequence


class Rows(NamedTuple):
    """The rows of a sequence in a step: `n` ids from `first` on.

    The logits of the last `n_logits` of them are asked for. `chooses`: the last of these are for the next
    token of the answer; the others are for log probabilities of the prompt. The last rows are those of the
    ids that were `drafted`, which the sequence does not have yet; each has logits. `kind` is
    what drafted them.
    """

    sequence: Sequence
    first: int
    n: int
    n_logits: int
    chooses: bool
    drafted: tuple[int, ...] = ()
    kind: str = ""

    @property
    def tokens(self) -> list[int]:
        """The token of each row."""
        return [*self.sequence.ids[self.first : self.first + self.n - len(self.drafted)], *self.drafted]


def by_turn(sequences: List[Sequence]) -> list[Sequence]:
    """Sequences in the order in which a step should take them, if it cannot take all: those that have waited
    the longest, of the highest priority first."""
    return sorted(sequences, key=lambda s: (-s.priority, s.changed_at))


def next_in_turn(decoding: list[Sequence], most: int) -> list[Sequence]:
    """`most` of the sequences that decode, at least one."""
    most = max(1, most)
    return decoding if len(decoding) <= most else sorted(by_turn(decoding)[:most], key=lambda s: s.order)


def prefill_rows(sequence: Sequence, placement: Placement, most: int, most_logits: int) -> Rows | None:
    """The next prefill rows of a sequence, at most so many; None if too few may have logits."""
    if sequence.scores_prompt:
        most = min(most, most_logits)
        if not most:
            return None
    n = min(_end_of_chunk(sequence, placement) - sequence.n_cached, most)
    last = sequence.n_cached + n == sequence.n_prefill
    if last and not most_logits:
        return None
    last = last and sequence.sampler.params.max_tokens != 0 and sequence.n_prefill == len(sequence.ids)
    return Rows(sequence, sequence.n_cached, n, n if sequence.scores_prompt else int(last), last)


def _end_of_chunk(sequence: Sequence, placement: Placement) -> int:
    """Where a prefill step ends at the latest. With recurrent states that is where a copy is saved."""
    if placement.states and sequence.n_cached < placement.saves_at(sequence):
        return placement.saves_at(sequence)
    return sequence.n_prefill


def row_alone(sequence: Sequence) -> Rows:
    """The next id of a sequence that decodes by itself. It is not the last one after it was set back."""
    last = sequence.n_cached == len(sequence.ids) - 1
    return Rows(sequence, sequence.n_cached, 1, int(last), last)


def run_step(machine: Machine, table: PageTable, plan: List[Rows], n_tokens: int) -> list[np.ndarray | TopK]:
    """Run the rows of `plan`; for each row that asks for logits, in order, those of the first `n_tokens`
    ids, or their top k if the samplers need no more.
    """
    batch = batch_of(plan)
    k = 0
    for rows in plan:
        if rows.n_logits:
            n_history = len(rows.sequence.ids) + len(rows.drafted)
            needed = rows.sequence.sampler.top_k_needed(n_tokens, n_history)
            all_choose = rows.chooses and rows.n_logits == 1 + len(rows.drafted)
            plain = rows.sequence.constrained is None and rows.sequence.group is None
            k = max(k, needed) if needed and all_choose and plain else MAX_TOP_K + 1
    if 0 < k <= MAX_TOP_K:
        return list(machine.top_k(batch, table, k, n_tokens))
    return list(machine.step(batch, table)[:, :n_tokens])


def batch_of(plan: List[Rows]) -> Batch:
    """The batch of the rows of one sequence or several."""
    if len(plan) == 1:
        (rows,) = plan
        last = rows.first + rows.n
        length = rows.sequence.n_prefill
        if rows.n == rows.n_logits == 1 and length <= last:
            return RowBatch().of(rows.sequence.ids[rows.first], rows.sequence.slot, rows.first)
        return Batch(
            tokens=np.array(rows.tokens, np.int32),
            sequences=np.full(rows.n, rows.sequence.slot, np.int32),
            positions=np.arange(rows.first, last, dtype=np.int32),
            logits_indices=np.arange(rows.n - rows.n_logits, rows.n, dtype=np.int32),
            lengths=np.full(rows.n, length, np.int32) if length > last else None,
        )
    sizes = [rows.n for rows in plan]
    ends = np.cumsum(sizes)
    tokens = [token for rows in plan for token in rows.tokens]
    rows_to = zip(plan, ends.tolist(), strict=True)
    asking = [row for rows, end in rows_to for row in range(end - rows.n_logits, end)]
    lengths = [max(rows.sequence.n_prefill, rows.first + rows.n) for rows in plan]
    return Batch(
        tokens=np.array(tokens, np.int32),
        sequences=np.repeat(np.array([rows.sequence.slot for rows in plan], np.int32), sizes),
        positions=np.concatenate([np.arange(r.first, r.first + r.n, dtype=np.int32) for r in plan]),
        logits_indices=np.array(asking, np.int32),
        lengths=np.repeat(np.array(lengths, np.int32), sizes),
    )


class RowBatch:
    """The batch of a single row with logits, the same one each time: making arrays is what takes time."""

    def __init__(self) -> None:
        row = np.zeros(4, np.int32)
        self._row = row.data
        self._batch = Batch(row[0:1], row[1:2], row[2:3], row[3:4])

    def of(self, token: int, slot: int, position: int) -> Batch:
        """The batch of a token; it is valid until the next call."""
        row = self._row
        row[0], row[1], row[2] = token, slot, position
        return self._batch
