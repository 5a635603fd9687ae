"""A draft model: a smaller model that is asked what may follow, with a KV cache of its own.

Its cache follows the tokens of each sequence: what it has read of ids that were drafted and not accepted is
given back before it reads on. Sequences are drafted for side by side, a row each in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np

from ..cache import Batch, PageTable
from ..machine import Machine
from ..sampling.top_k import MAX_TOP_K, TopK
from ..state import SavedState, States
from .drafter import Seen, Wish
from .policy import StepCosts


class Translation(Protocol):
    """Between the ids of a model and those of a draft model with another tokenizer."""

    def to_draft(self, owner: object, ids: Sequence[int]) -> Sequence[int]:
        """The draft model's ids of the text of `ids`, which belong to the sequence `owner`."""
        ...

    def to_target(self, ids: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """The model's ids for the text of `drafted`, behind `ids`; none where the texts do not agree."""
        ...


@dataclass
class _Reading:
    """What the draft model has read for one slot.

    `ids` have their keys and values in its cache; `n_sure` of them are ids of the sequence `owner`, those
    behind were drafted. `saved` is the recurrent state behind the sure ones.
    """

    owner: object = None
    ids: list[int] = field(default_factory=list)
    n_sure: int = 0
    saved: SavedState | None = None


@dataclass
class _Draft:
    """A draft in the making: `ids` to be read, then one drafted id after the other."""

    slot: int
    ids: Sequence[int]
    wish: Wish
    drafted: list[int] = field(default_factory=list)


class DraftModel:
    """Drafts by a model on a `machine` of its own, whose cache has the pages of `table`.

    `context` is the most tokens of a sequence, `n_tokens` the number of ids that it may draft, all of which
    must be ids of the model that it drafts for unless there is a `translation`. It reads at most `chunk` ids
    in one call for all sequences, so that a long prompt does not hold others up. `relative_cost` is what one
    of its steps is guessed to cost, in steps of the model, until both are measured. `states` are its
    machine's.
    """

    kind = "draft"

    def __init__(
        self,
        machine: Machine,
        table: PageTable,
        *,
        context: int,
        n_tokens: int,
        chunk: int,
        relative_cost: float,
        states: States | None = None,
        translation: Translation | None = None,
    ) -> None:
        self.machine = machine
        self.table = table
        self.costs = StepCosts()
        self._context = context
        self._n_tokens = n_tokens
        self._chunk = max(1, min(chunk, machine.max_rows))
        self._relative_cost = relative_cost
        self._translation = translation
        self._states = states if states and states.layers else None
        self._readings = [_Reading() for _ in range(table.max_sequences)]

    @property
    def own_tokens(self) -> bool:
        """Whether its ids are those of the model."""
        return self._translation is None

    @property
    def companion(self) -> None:
        """It has pages of its own."""
        return None

    def observe(self, seen: Sequence[Seen]) -> None:
        """What it needs to know stands in the ids."""

    def seconds(self, n: int, n_sequences: int, step: StepCosts) -> float:
        """What it takes to draft `n` ids for each of `n_sequences`; `step`: costs of the model's steps."""
        if self.costs.known and step.known:
            return n * self.costs.seconds(n_sequences)
        return n * self._relative_cost * step.seconds(n_sequences)

    def propose(self, wishes: Sequence[Wish]) -> list[list[int]]:
        """Up to `n` ids for each wish; none for a sequence that it has not read yet, or that is too long."""
        drafts = [self._begin(wish) for wish in wishes]
        active = [draft for draft in drafts if draft is not None]
        active = self._read(active)
        while active := [draft for draft in active if len(draft.drafted) < draft.wish.n]:
            start = perf_counter()
            if not all(self._extend(draft.slot, 1, active) for draft in active):
                break
            self._step([(draft, [draft.drafted[-1]]) for draft in active], active)
            self.costs.observe(len(active), perf_counter() - start)
        return [self._proposal(draft, wish) for draft, wish in zip(drafts, wishes, strict=True)]

    def _proposal(self, draft: _Draft | None, wish: Wish) -> list[int]:
        """A draft in ids of the model."""
        if draft is None or not draft.drafted:
            return []
        if self._translation is None:
            return draft.drafted
        return self._translation.to_target(wish.ids, draft.drafted)[: wish.n]

    def _begin(self, wish: Wish) -> _Draft | None:
        """Bring what is read of a slot in line with the sequence's ids; None: it is too long for a draft."""
        ids, slot = wish.ids, wish.slot
        if self._translation is not None:
            ids = self._translation.to_draft(wish.owner, ids)
        if not ids or len(ids) + wish.n > self._context:
            return None
        reading = self._readings[slot]
        first = reading.n_sure if reading.owner is wish.owner else 0
        n = first + _common(reading.ids[first:], ids[first : first + len(reading.ids)])
        n = min(n, len(ids) - 1)  # the last one is read anew for its logits
        if self._states is not None and n < len(reading.ids):
            n = self._restore(self._states, slot, reading, n)
        del reading.ids[n:]
        reading.owner, reading.n_sure = wish.owner, n
        self.table.truncate(slot, n)
        if max(ids[n:]) >= self._n_tokens:  # an id that the draft model does not have
            return None
        return _Draft(slot, ids, wish)

    @staticmethod
    def _restore(states: States, slot: int, reading: _Reading, n: int) -> int:
        """Set the recurrent state back to `n` ids or fewer; how many it has seen then."""
        if reading.saved is None or reading.saved.length > n:
            return 0
        states.restore(slot, reading.saved)
        return reading.saved.length

    def _read(self, drafts: list[_Draft]) -> list[_Draft]:
        """Read what is new of each sequence, as far as the chunk reaches, and draft an id behind those that
        are read to the end: these are returned."""
        left, rows, whole = self._chunk, list[tuple[_Draft, list[int]]](), list[_Draft]()
        for draft in drafts:
            n_read = len(self._readings[draft.slot].ids)
            part = list(draft.ids[n_read : n_read + left])
            if part and self._extend(draft.slot, len(part), drafts):
                rows.append((draft, part))
                left -= len(part)
                if n_read + len(part) == len(draft.ids) and len(whole) < self.machine.max_logits:
                    whole.append(draft)
        if rows:
            self._step(rows, whole)
        for draft, _ in rows:
            reading = self._readings[draft.slot]
            reading.n_sure = len(reading.ids)
            if self._states is not None:
                reading.saved = self._states.save(draft.slot)
        return whole

    def _extend(self, slot: int, n: int, drafts: Sequence[_Draft]) -> bool:
        """Make room for `n` more ids of a slot, if need be by forgetting sequences without a draft now."""
        in_use = {draft.slot for draft in drafts}
        for other, reading in enumerate(self._readings):
            if self.table.pages_needed(slot, n) <= self.table.free_pages:
                break
            if other not in in_use and reading.ids:
                self._readings[other] = _Reading()
                self.table.truncate(other, 0)
        if self.table.pages_needed(slot, n) > self.table.free_pages:
            return False
        self.table.extend(slot, n)
        return True

    def _step(self, rows: Sequence[tuple[_Draft, list[int]]], asking: Sequence[_Draft]) -> None:
        """Run rows of several sequences, and draft an id behind the last row of each that is `asking`."""
        ends = np.cumsum([len(part) for _, part in rows])
        asks = [any(draft is other for other in asking) for draft, _ in rows]
        sizes = [len(part) for _, part in rows]
        firsts = [len(self._readings[draft.slot].ids) for draft, _ in rows]
        batch = Batch(
            tokens=np.array([id_ for _, part in rows for id_ in part], np.int32),
            sequences=np.repeat(np.array([draft.slot for draft, _ in rows], np.int32), sizes),
            positions=np.concatenate(
                [np.arange(f, f + n, dtype=np.int32) for f, n in zip(firsts, sizes, strict=True)]
            ),
            logits_indices=(ends - 1)[np.array(asks)].astype(np.int32),
        )
        results = self._logits(batch, asking)
        for draft, part in rows:
            self._readings[draft.slot].ids += part
        chosen = [draft for (draft, _), asked in zip(rows, asks, strict=True) if asked]
        for draft, logits in zip(chosen, results, strict=True):
            draft.drafted.append(draft.wish.sampler.sample(logits, [*draft.ids, *draft.drafted]))

    def _logits(self, batch: Batch, asking: Sequence[_Draft]) -> Sequence[np.ndarray | TopK]:
        """The logits of a step's last rows, or their top k if the samplers need no more."""
        needed = [d.wish.sampler.top_k_needed(self._n_tokens, len(d.ids) + len(d.drafted)) for d in asking]
        k = max(needed, default=1) if all(needed) else 0
        if 0 < k <= MAX_TOP_K:
            return self.machine.top_k(batch, self.table, k, self._n_tokens)
        return list(self.machine.step(batch, self.table)[:, : self._n_tokens])


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common beginning of two lists of ids."""
    if a == b[: len(a)]:
        return len(a)
    return next(i for i, (ours, theirs) in enumerate(zip(a, [*b, -1], strict=False)) if ours != theirs)
