"""Which rows of a sequence fit into a step, and whose turn it is if not all do."""

from __future__ import annotations

from collections.abc import Sequence as List

from .batching import Rows
from .placement import Placement
from .sequence import Sequence


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
