"""A limit to what a model thinks before it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from ....tokenizer import Tokenizer
from ...engine.constraint import Constraint
from .phases import MarkFinder

_Phase = Literal["start", "thinking", "ending", "over"]


class ThinkingBudget:
    """Ends thinking after so many tokens with a text that leads to the answer; a Constraint for an engine.

    `marks`: what opens thinking, and what closes it. `begun`: the opening mark that the prompt ends with, ""
    if thinking is yet to begin. `ending`: the ids that end it. `inner`: what else holds for the answer, told
    of all tokens. `written`: the tokens that there are of the answer already.
    """

    def __init__(
        self,
        inner: Constraint | None,
        tokenizer: Tokenizer,
        marks: Mapping[str, str],
        begun: str,
        budget: int,
        ending: Sequence[int],
        written: Sequence[int] = (),
    ) -> None:
        self._inner = inner
        self._tokenizer = tokenizer
        self._marks = marks
        self._begun = begun
        self._budget = budget
        self._ending = [*ending]
        self._written = written
        self._begin()

    def _begin(self) -> None:
        self._phase: _Phase = "thinking" if self._begun else "start"
        self._beginning = b""  # of the answer, while it may be an opening mark
        self._finder = MarkFinder(self._tokenizer, [self._marks[self._begun]] if self._begun else [])
        self._n = 0  # tokens that were thought, or of the ending
        for id_ in self._written:
            self._note(id_)

    @property
    def complete(self) -> bool:
        """Whether the answer has its form."""
        return self._inner is None or self._inner.complete

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self._inner is not None and self._inner.ended

    def masks(self, ids: Sequence[int] = ()) -> list[np.ndarray | None]:
        """Which tokens may come here and behind each of `ids`, see Constraint."""
        masks: list[np.ndarray | None] = [None] * (len(ids) + 1)
        if self._inner is not None:
            masks = self._inner.masks(ids)
        for k in range(len(masks)):
            place = self._n + k - (self._budget if self._phase == "thinking" else 0)
            if self._phase in ("thinking", "ending") and 0 <= place < len(self._ending):
                masks[k] = self._only(self._ending[place])
        return masks

    def _only(self, id_: int) -> np.ndarray:
        """Bits of one token, packed."""
        bits = np.zeros(-(-self._tokenizer.vocab_size // 8), np.uint8)
        bits[id_ >> 3] = 1 << (id_ & 7)
        return bits

    def n_allowed(self, ids: Sequence[int]) -> int:
        """How many of `ids` may follow, as long as that is in one phase."""
        if self._phase == "ending":
            return 0  # they are forced
        most = len(ids) if self._inner is None else self._inner.n_allowed(ids)
        if self._phase == "thinking":
            return min(most, self._budget - self._n, self._finder.count_before(ids))
        return most if self._phase == "over" else 0

    def accept(self, id_: int) -> None:
        """Go on behind a token."""
        self._note(id_)
        if self._inner is not None:
            self._inner.accept(id_)

    def _note(self, id_: int) -> None:
        if self._phase == "start":
            self._look_for_opening(id_)
        elif self._phase == "thinking" and self._n < self._budget:
            self._n += 1
            self._finder.tail = self._finder.behind(id_)
            if self._finder.ends_mark(self._finder.tail):
                self._phase = "over"
        elif self._phase in ("thinking", "ending"):
            self._n = 1 if self._phase == "thinking" else self._n + 1
            self._phase = "ending" if self._n < len(self._ending) else "over"

    def _look_for_opening(self, id_: int) -> None:
        special = self._tokenizer.is_special(id_)
        new = self._tokenizer.token_text(id_).encode() if special else self._tokenizer.token_bytes(id_)
        self._beginning += new
        there = self._beginning.lstrip()
        for opening, closing in self._marks.items():
            if there.startswith(opening.encode()):
                self._phase, self._n = "thinking", 0
                self._finder = MarkFinder(self._tokenizer, [closing])
                return
        if not any(opening.encode().startswith(there) for opening in self._marks):
            self._phase = "over"

    def forced(self) -> list[int]:
        """The tokens that follow for sure."""
        if self._phase == "thinking" and self._n >= self._budget:
            return list(self._ending)
        if self._phase == "ending":
            return self._ending[self._n :]
        return [] if self._inner is None or self._phase == "start" else self._inner.forced()

    def restart(self) -> None:
        """Go back to the start."""
        self._begin()
        if self._inner is not None:
            self._inner.restart()
