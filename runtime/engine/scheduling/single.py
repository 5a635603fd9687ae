"""A step of one sequence that decodes, alone on the machine: what a person at a desk waits for.

It does what the scheduler does for any plan, where that has one row of one sequence, whose next token is
chosen by the top k of the logits.
"""

from __future__ import annotations

from time import monotonic

from ..cache import PageTable
from ..machine import Machine
from ..sampling.top_k import MAX_TOP_K, TopK
from .batching import RowBatch, Rows
from .choosing import choose_one
from .placement import Limits
from .sequence import Sequence


class SingleStep:
    """Runs and counts steps of the only sequence. Its rows are in order, and nothing is drafted."""

    def __init__(self, machine: Machine, table: PageTable, limits: Limits) -> None:
        self._machine = machine
        self._table = table
        self._limits = limits
        self._batch = RowBatch()

    def top_k(self, sequence: Sequence) -> int:
        """The k of the logits that the next token needs; 0 if this is not for such a step."""
        n, cached = len(sequence.ids), sequence.n_cached
        if n - cached != 1 or cached < sequence.n_prefill or n > self._limits.context or self._limits.alone:
            return 0
        if sequence.constrained is not None or sequence.group is not None or sequence.paused:
            return 0
        table = self._table
        if table.lengths.item(sequence.slot) != cached or not (cached % table.page_size or table.free_tokens):
            return 0
        k = sequence.sampler.top_k_needed(self._limits.n_tokens, n)
        return k if k <= MAX_TOP_K else 0

    def rows(self, sequence: Sequence) -> Rows:
        """The step as one of a plan."""
        return Rows(sequence, sequence.n_cached, 1, 1, True)

    def run(self, sequence: Sequence, k: int) -> TopK:
        """The top k of the logits behind the last id."""
        position, slot = sequence.n_cached, sequence.slot
        self._table.extend(slot, 1)
        batch = self._batch.of(sequence.ids[position], slot, position)
        return self._machine.top_k(batch, self._table, k, self._limits.n_tokens)[0]

    def choose(self, sequence: Sequence, top: TopK) -> None:
        """Choose the next token, or note why there is none."""
        choose_one(self.rows(sequence), top, 0)

    def count(self, sequence: Sequence, seconds: float) -> None:
        """Note that the row is in the cache, and whether the sequence ends with it."""
        stats, limits = sequence.stats, self._limits
        sequence.n_cached += 1
        n_new = stats.new_tokens = len(sequence.ids) - sequence.n_prompt
        stats.decode_seconds += seconds
        stats.decode_steps += 1
        stats.decode_tokens += 1
        sequence.changed_at = monotonic()
        if sequence.n_cached <= limits.original_context:
            sequence.n_original = sequence.n_cached
        if sequence.error is not None:
            sequence.finish("interrupted")
        elif n_new == sequence.sampler.params.max_tokens:
            sequence.finish("length")
        elif len(sequence.ids) > limits.context:
            sequence.finish("context")
