"""Multi-token prediction: a further layer of the model drafts from the model's own hidden states.

A row of the layer has the id behind a token, the hidden state of the token, and its position; it predicts the
id after that one, and hands a hidden state on for the next draft. The layer has a place in its KV cache for
each of the model's tokens, in the same pages of the same table, so that beginnings which sequences share are
shared here too. What it has in place of the last token of a page depends on the first of the next, and may
be another sequence's: a draft may be worse for it, an answer is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from ..cache import NO_LOGITS, Batch, PageTable
from ..errors import CacheFull
from ..machine import Machine
from ..sampling.top_k import MAX_TOP_K, TopK
from .drafter import Seen, Wish
from .policy import StepCosts

MOST_PENDING = 64  # rows of a sequence that wait for the next draft


class HiddenMachine(Machine, Protocol):
    """A machine whose program reads or leaves hidden states of rows."""

    def read_boundary(self, n_rows: int) -> list[np.ndarray]: ...

    def write_boundary(self, values: Sequence[np.ndarray]) -> None: ...


@dataclass
class _Pending:
    """Rows that the layer has not read: `hidden`, [rows, hidden], of the tokens of `owner` from position
    `first` on, and the ids behind them."""

    owner: object
    first: int
    hidden: np.ndarray
    ids: list[int]

    @property
    def end(self) -> int:
        """The position behind the last row."""
        return self.first + len(self.hidden)


class MtpDrafter:
    """Drafts by the layer on `machine`, from the hidden states that the steps of `model` leave.

    `table` is the model's. `n_tokens` is the number of ids that may be drafted; `relative_cost` as for
    `DraftModel`.
    """

    kind = "mtp"
    own_tokens = True

    def __init__(
        self,
        machine: HiddenMachine,
        model: HiddenMachine,
        table: PageTable,
        *,
        n_tokens: int,
        relative_cost: float,
    ) -> None:
        self.companion = machine
        self.costs = StepCosts()
        self._machine = machine
        self._model = model
        self._table = table
        self._n_tokens = n_tokens
        self._relative_cost = relative_cost
        self._pending: dict[int, _Pending] = {}  # by slot

    def seconds(self, n: int, n_sequences: int, step: StepCosts) -> float:
        """What it takes to draft `n` ids for each of `n_sequences`; `step`: costs of the model's steps."""
        if self.costs.known and step.known:
            return n * self.costs.seconds(n_sequences)
        return n * self._relative_cost * step.seconds(n_sequences)

    def observe(self, seen: Sequence[Seen]) -> None:
        """Keep the hidden states of a step of the model; those of a prompt are read at once."""
        if not seen:
            return
        hidden = self._model.read_boundary(seen[0].n_step)[0]
        for each in seen:
            known = self._pending.get(each.slot)
            if known is None or known.owner is not each.owner or not known.first <= each.first <= known.end:
                known = _Pending(each.owner, each.first, hidden[:0].copy(), [])
            again = known.end - each.first  # computed once more, since a recurrent state had gone back
            rows = hidden[each.rows.start + again : each.rows.stop]
            known.hidden = np.concatenate([known.hidden, rows])
            known.ids[each.first - known.first :] = each.ids
            self._pending[each.slot] = known
            if len(known.hidden) > MOST_PENDING:
                self._read(each.slot, known, keep=1)

    def _read(self, slot: int, pending: _Pending, keep: int) -> None:
        """Let the layer read all pending rows of a slot but the last `keep`."""
        n = max(0, min(len(pending.hidden) - keep, len(pending.ids)))
        most = self._machine.max_rows
        for start in range(0, n, most):
            end = min(n, start + most)
            positions = np.arange(pending.first + start, pending.first + end, dtype=np.int32)
            self._machine.write_boundary([pending.hidden[start:end]])
            batch = Batch(
                np.array(pending.ids[start:end], np.int32),
                np.full(end - start, slot, np.int32),
                positions,
                NO_LOGITS,
            )
            self._machine.step(batch, self._table)
        pending.first += n
        pending.hidden, pending.ids = pending.hidden[n:].copy(), pending.ids[n:]

    def propose(self, wishes: Sequence[Wish]) -> list[list[int]]:
        """Up to `n` ids for each wish; none for a sequence whose hidden states are not known."""
        drafted: list[list[int]] = [[] for _ in wishes]
        lengths = {wish.slot: int(self._table.lengths[wish.slot]) for wish in wishes}
        ready = [i for i, wish in enumerate(wishes) if self._is_known(wish)]
        try:
            hidden = self._first_drafts(wishes, ready, drafted)
            while ready:
                going_on = [j for j, i in enumerate(ready) if len(drafted[i]) < wishes[i].n]
                ready, hidden = [ready[j] for j in going_on], hidden[going_on]
                if ready:
                    hidden = self._further_drafts(wishes, ready, drafted, hidden)
        except CacheFull:
            pass
        finally:
            for slot, length in lengths.items():
                self._table.truncate(slot, length)
        return drafted

    def _is_known(self, wish: Wish) -> bool:
        """Whether the hidden state of the last token that the model has read is there."""
        pending = self._pending.get(wish.slot)
        if pending is None or pending.owner is not wish.owner or not len(pending.hidden):
            return False
        return pending.end == len(wish.ids) - 1 == pending.first + len(pending.ids)

    def _first_drafts(self, wishes: Sequence[Wish], ready: list[int], drafted: list[list[int]]) -> np.ndarray:
        """Read what is pending and draft an id for each wish; the hidden states behind, [wishes, hidden]."""
        start = perf_counter()
        parts = [self._pending[wishes[i].slot] for i in ready]
        for i, part in zip(ready, parts, strict=True):
            self._read(wishes[i].slot, part, keep=min(len(part.hidden), 16))
        if not ready:
            return np.empty((0, 0), np.float32)
        sizes = [len(part.hidden) for part in parts]
        for i, part in zip(ready, parts, strict=True):  # a state that went back may be behind these rows
            missing = part.end - int(self._table.lengths[wishes[i].slot])
            self._table.extend(wishes[i].slot, max(0, missing))
        batch = Batch(
            np.array([id_ for part in parts for id_ in part.ids], np.int32),
            np.repeat(np.array([wishes[i].slot for i in ready], np.int32), sizes),
            np.concatenate([np.arange(part.first, part.end, dtype=np.int32) for part in parts]),
            (np.cumsum(sizes) - 1).astype(np.int32),
        )
        hidden = self._step(batch, np.concatenate([part.hidden for part in parts]), wishes, ready, drafted)
        for part in parts:
            part.first, part.hidden, part.ids = part.end, part.hidden[:0].copy(), []
        if all(size <= 2 for size in sizes):
            self.costs.observe(len(ready), perf_counter() - start)
        return hidden

    def _further_drafts(
        self, wishes: Sequence[Wish], ready: list[int], drafted: list[list[int]], hidden: np.ndarray
    ) -> np.ndarray:
        """Draft an id more for each wish, behind the one drafted last, whose `hidden` states are given."""
        start = perf_counter()
        slots = np.array([wishes[i].slot for i in ready], np.int32)
        positions = np.array([len(wishes[i].ids) - 2 + len(drafted[i]) for i in ready], np.int32)
        for slot, position in zip(slots.tolist(), positions.tolist(), strict=True):
            self._table.extend(slot, max(0, position + 1 - int(self._table.lengths[slot])))
        tokens = np.array([drafted[i][-1] for i in ready], np.int32)
        batch = Batch(tokens, slots, positions, np.arange(len(ready), dtype=np.int32))
        result = self._step(batch, hidden, wishes, ready, drafted)
        self.costs.observe(len(ready), perf_counter() - start)
        return result

    def _step(
        self,
        batch: Batch,
        hidden: np.ndarray,
        wishes: Sequence[Wish],
        ready: list[int],
        drafted: list[list[int]],
    ) -> np.ndarray:
        """Run a step, and draft an id for each of the `ready` wishes; the hidden states behind them."""
        self._machine.write_boundary([hidden])
        lengths = [len(wishes[i].ids) + len(drafted[i]) for i in ready]
        samplers = [wishes[i].sampler for i in ready]
        needed = [s.top_k_needed(self._n_tokens, n) for s, n in zip(samplers, lengths, strict=True)]
        results: Sequence[np.ndarray | TopK]
        if all(needed) and max(needed) <= MAX_TOP_K:
            results = self._machine.top_k(batch, self._table, max(needed), self._n_tokens)
        else:
            results = list(self._machine.step(batch, self._table)[:, : self._n_tokens])
        behind = self._machine.read_boundary(len(batch.tokens))[0][: len(ready)].copy()
        for i, logits in zip(ready, results, strict=True):
            drafted[i].append(wishes[i].sampler.sample(logits, [*wishes[i].ids, *drafted[i]]))
        return behind
