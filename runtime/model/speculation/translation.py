"""Drafts of a model with another tokenizer: its ids are turned into text, and that into ids of the model.

What is drafted need not be what the model would have cut the text into: a wrong draft costs time, not truth.
So only the end of a text is encoded anew, and drafts whose text does not survive the way are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

OVERLAP = 16  # ids of the model whose text is encoded anew, since further text may cut it differently
SEQUENCES = 64  # whose texts are remembered


class Vocabulary(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, special: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class TokenTranslation:
    """Between a model's tokenizer `target`, of whose ids the model knows the first `n_ids`, and a draft
    model's `draft`, which begins texts with `prefix`."""

    def __init__(self, target: Vocabulary, draft: Vocabulary, n_ids: int, prefix: Sequence[int] = ()) -> None:
        self._target = target
        self._n_ids = n_ids
        self._draft = draft
        self._prefix = list(prefix)
        # By sequence: ids of the model whose text is settled, and the draft model's ids for it.
        self._settled: dict[int, tuple[list[int], list[int]]] = {}

    def to_draft(self, owner: object, ids: Sequence[int]) -> list[int]:
        """The draft model's ids of the text of `ids`, which belong to the sequence `owner`."""
        known, drafted = self._settled.get(id(owner), ([], self._prefix))
        if known != list(ids[: len(known)]):
            known, drafted = [], self._prefix
        n = max(len(known), len(ids) - OVERLAP)
        if n > len(known):
            known, drafted = list(ids[:n]), drafted + self._encoded(ids[len(known) : n])
            while len(self._settled) >= SEQUENCES:
                self._settled.pop(next(iter(self._settled)))
            self._settled[id(owner)] = (known, drafted)
        return drafted + self._encoded(ids[n:])

    def _encoded(self, ids: Sequence[int]) -> list[int]:
        return self._draft.encode(self._target.decode(list(ids)), special=True)

    def to_target(self, ids: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """The model's ids for the text of `drafted`, behind `ids`; none where the texts do not agree."""
        text = self._draft.decode(list(drafted))
        tail = list(ids[-OVERLAP:])
        whole = self._target.encode(self._target.decode(tail) + text, special=True)
        if whole[: len(tail)] == tail:
            return self._known(whole[len(tail) :])
        alone = self._target.encode(text, special=True)
        return self._known(alone) if self._target.decode(alone) == text else []

    def _known(self, ids: list[int]) -> list[int]:
        """`ids` up to the first that the model does not know."""
        return ids[: next((i for i, id_ in enumerate(ids) if id_ >= self._n_ids), len(ids))]
