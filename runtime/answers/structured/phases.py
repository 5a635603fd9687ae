"""Constraints that hold for a part of an answer: what comes behind the model's thinking."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

import numpy as np

from ....tokenizer import Tokenizer
from ...engine.constraint import Constraint
from .constraints import Thinking

MOST_GAP = 4  # tokens of white space between thinking and answer


class MarkFinder:
    """Finds marks in text that comes token by token; special tokens count as they are spelled."""

    def __init__(self, tokenizer: Tokenizer, marks: Collection[str]) -> None:
        self._tokenizer = tokenizer
        self._marks = tuple(mark.encode() for mark in marks)
        self._longest = max(map(len, self._marks), default=1)
        self.tail = b""  # of the text

    def behind(self, id_: int) -> bytes:
        """The tail behind a token."""
        spelled = self._tokenizer.is_special(id_)
        new = self._tokenizer.token_text(id_).encode() if spelled else self._tokenizer.token_bytes(id_)
        return (self.tail + new)[-self._longest - len(new) :]

    def ends_mark(self, tail: bytes) -> bool:
        """Whether a mark ends in the newest token of a tail, or did so, but for white space."""
        return tail.rstrip().endswith(self._marks)

    def count_before(self, ids: Sequence[int]) -> int:
        """How many of `ids` come in front of one with which a mark ends."""
        kept, n = self.tail, 0
        for id_ in ids:
            self.tail = self.behind(id_)
            if self.ends_mark(self.tail):
                break
            n += 1
        self.tail = kept
        return n


class AfterThinking:
    """Lets a model think up to a closing mark, and then keeps its answer to a form.

    Thinking has begun in the prompt, or begins if the first token is the mark that opens it. `written`: the
    tokens that there are of the answer already.
    """

    def __init__(
        self, form: Constraint, tokenizer: Tokenizer, thinking: Thinking, written: Sequence[int] = ()
    ) -> None:
        self._form = form
        self._tokenizer = tokenizer
        self._closing = thinking.closing
        ids = tokenizer.encode(thinking.opening, special=True) if thinking.opening else []
        self._opening = ids if len(ids) == 1 else []
        self._begun = thinking.begun
        self._written = [*written]
        self._anything = _all_but(tokenizer.vocab_size, tokenizer.end_ids)
        spelled = enumerate(tokenizer.all_token_bytes())
        self._gap = [id_ for id_, raw in spelled if raw and not raw.strip()]
        self._thinking = self._begun
        self._finder = MarkFinder(tokenizer, [self._closing])
        self._before_form: list[int] = []  # ids that may come in front of the form
        self._n_gap = 0
        self.restart()

    @property
    def complete(self) -> bool:
        """Whether the answer has its form."""
        return not self._thinking and self._form.complete

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return not self._thinking and self._form.ended

    def masks(self, ids: Sequence[int] = ()) -> list[np.ndarray | None]:
        """Which tokens may come here and behind each of `ids`, see Constraint."""
        if self._thinking:
            return [self._anything] * (len(ids) + 1)
        masks = self._form.masks(ids)
        if self._before_form and masks[0] is not None:
            masks[0] = _with(masks[0], self._before_form)
        return masks

    def n_allowed(self, ids: Sequence[int]) -> int:
        """How many of `ids` may follow, as long as that is in one phase."""
        if self._before_form:
            return 0
        if not self._thinking:
            return self._form.n_allowed(ids)
        ends = self._tokenizer.end_ids
        return self._finder.count_before(list(takewhile(lambda id_: id_ not in ends, ids)))

    def accept(self, id_: int) -> None:
        """Go on behind a token."""
        if self._thinking:
            self._finder.tail = self._finder.behind(id_)
            if self._finder.ends_mark(self._finder.tail):
                self._thinking, self._before_form, self._n_gap = False, self._gap, 0
        elif id_ in self._before_form and id_ in self._opening:
            self._thinking, self._before_form = True, []
        elif self._before_form and id_ in self._gap and not self._form.n_allowed([id_]):
            self._n_gap += 1
            self._before_form = self._gap if self._n_gap < MOST_GAP else []
        else:
            self._before_form = []
            self._form.accept(id_)

    def forced(self) -> list[int]:
        """The tokens that follow for sure."""
        return [] if self._thinking or self._before_form else self._form.forced()

    def restart(self) -> None:
        """Go back to the start."""
        self._thinking = self._begun
        self._finder = MarkFinder(self._tokenizer, [self._closing])
        self._before_form = [] if self._begun else self._opening
        self._n_gap = 0
        self._form.restart()
        for id_ in self._written:
            self.accept(id_)


def _all_but(n: int, banned: Collection[int]) -> np.ndarray:
    """Bits of all of `n` ids but some, packed."""
    flags = np.ones(n, bool)
    flags[[id_ for id_ in banned if id_ < n]] = False
    return np.packbits(flags, bitorder="little")


def _with(mask: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """A copy of packed bits, with those of `ids` set."""
    changed = mask.copy()
    places = np.array(ids)
    np.bitwise_or.at(changed, places >> 3, (1 << (places & 7)).astype(np.uint8))
    return changed
