"""The steps that change the logits of some ids: bias and penalties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from .candidates import Candidates
from .params import SamplingParams


class Change(NamedTuple):
    """What becomes of the logits of some ids: positive ones are divided by `factor`, others multiplied, and
    then each loses what `ids` says; a set says nothing."""

    ids: dict[int, float] | set[int]
    factor: float = 1.0

    def of(self, logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The changed `logits` of `ids`, which are all among those of this change."""
        if self.factor != 1.0:
            factor = logits.dtype.type(self.factor)
            logits = np.where(logits > 0, logits / factor, logits * factor)
        if isinstance(self.ids, dict):
            amounts = (self.ids[id_] for id_ in ids.tolist())
            logits = logits - np.fromiter(amounts, logits.dtype, len(logits))
        return logits


class Edit(Protocol):
    """A step that changes logits."""

    def change(self, history: Sequence[int]) -> Change | None:
        """What it changes behind `history`, the ids of prompt and answer; None: nothing."""
        ...

    def n_lowered(self, n_history: int) -> int | None:
        """The most ids that are changed behind so many; None: a logit may rise, or it is not known."""
        ...


class Bias:
    """Adds a number to the logits of some ids."""

    def __init__(self, params: SamplingParams) -> None:
        amounts: dict[int, float] = {}
        for id_, bias in params.logit_bias:
            if isinstance(id_, str):
                raise ValueError(f"logit_bias is for the text {id_!r:.40}; an engine takes token ids")
            amounts[id_] = -bias
        self._change = Change(amounts)
        self._lowers = all(amount >= 0.0 for amount in amounts.values())

    def change(self, history: Sequence[int]) -> Change:
        return self._change

    def n_lowered(self, n_history: int) -> int | None:
        return len(self._change.ids) if self._lowers else None


class Penalties:
    """Repeat, frequency and presence penalty of the ids in the last `repeat_last_n` of the history."""

    def __init__(self, params: SamplingParams) -> None:
        self._last = params.repeat_last_n
        self._repeat = params.repeat_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._lowers = self._repeat >= 1.0 and self._presence >= 0.0 and self._frequency >= 0.0

    def change(self, history: Sequence[int]) -> Change | None:
        recent = history[-self._last :] if self._last > 0 else history
        if not len(recent):
            return None
        if not self._presence and not self._frequency:
            return Change(set(recent), self._repeat)
        counts = Counter(recent)
        return Change({id_: n * self._frequency + self._presence for id_, n in counts.items()}, self._repeat)

    def n_lowered(self, n_history: int) -> int | None:
        if not self._lowers:
            return None
        return n_history if self._last < 0 else min(self._last, n_history)


class LaterEdit:
    """An edit as a step behind others."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit

    def __call__(self, tokens: Candidates, history: Sequence[int]) -> Candidates:
        change = self._edit.change(history)
        if change is None:
            return tokens
        ids = np.arange(len(tokens.values)) if tokens.ids is None else tokens.ids
        values = tokens.values.astype(np.float64) + tokens.offset
        ids, values = edited(ids, values, change, tokens.ordered)
        top = float(values[0] if tokens.ordered else values.max())
        return Candidates(ids, values, top, 0.0, tokens.ordered)


def edited(
    ids: np.ndarray, logits: np.ndarray, change: Change, ordered: bool
) -> tuple[np.ndarray, np.ndarray]:
    """`ids` and their logits after a change, in order of likelihood again if they were `ordered`."""
    changed = change.ids
    places = [place for place, id_ in enumerate(ids.tolist()) if id_ in changed]
    if not places:
        return ids, logits
    logits = logits.copy()
    logits[places] = change.of(logits[places], ids[places])
    if ordered:
        order = np.lexsort((ids, -logits))
        return ids[order], logits[order]
    return ids, logits


def edit_all(logits: np.ndarray, change: Change) -> None:
    """Change `logits`, those of all ids, in place. Ids beyond them, which only a prompt has, do not count."""
    ids = np.fromiter(change.ids, np.intp, len(change.ids))
    ids = ids[ids < len(logits)]
    logits[ids] = change.of(logits[ids], ids)
