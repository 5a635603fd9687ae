"""A constraint that llguidance computes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from ...engine.errors import ConstraintError
from .library import stuck
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher


class GuidedConstraint:
    """An answer in the language of a grammar; a Constraint for an engine.

    The grammar is compiled when it is first needed: by the thread that computes masks, while the machine
    reads the prompt.
    """

    def __init__(self, vocabulary: Vocabulary, grammar: str, written: Sequence[int] = ()) -> None:
        """`written`: the tokens that there are of the answer already."""
        self._vocabulary = vocabulary
        self._grammar = grammar
        self._written = list(written)

    @cached_property
    def _matcher(self) -> LLMatcher:
        matcher = self._vocabulary.matcher(self._grammar)
        matcher.consume_tokens(self._written)
        return matcher

    @property
    def complete(self) -> bool:
        """Whether the answer is one of the language, and may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return bool(self._matcher.is_stopped())

    def masks(self, ids: Sequence[int] = ()) -> list[np.ndarray | None]:
        """Which tokens may come here and behind each of `ids`, packed: uint8 [vocab / 8]. An end token among
        them would be more than the matcher takes back."""
        masks: list[np.ndarray | None] = [self._mask()]
        done = 0
        for id_ in ids:
            if not self._matcher.consume_token(id_):
                break
            done += 1
            masks.append(self._mask())
        if done:
            self._matcher.rollback(done)
        self._check()
        return masks

    def _mask(self) -> np.ndarray:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return bits

    def n_allowed(self, ids: Sequence[int]) -> int:
        """How many of `ids` may follow, without what ends the answer."""
        ends = self._vocabulary.end_ids
        going_on = list(takewhile(lambda id_: id_ not in ends, ids))
        return int(self._matcher.validate_tokens(going_on))

    def accept(self, id_: int) -> None:
        """Go on behind a token. ConstraintError if it is not allowed, or takes too much work."""
        if not self._matcher.consume_token(id_):
            self._check()
            raise ConstraintError(f"token {id_} does not fit the grammar")

    def forced(self) -> list[int]:
        """The tokens that follow for sure, encoded as the model's tokenizer encodes their text."""
        return list(self._matcher.compute_ff_tokens())

    def restart(self) -> None:
        """Go back to the start."""
        if "_matcher" in self.__dict__:
            self._matcher.reset()
            self._matcher.consume_tokens(self._written)

    def _check(self) -> None:
        if self._matcher.is_error():
            if stuck(self._matcher):
                raise ConstraintError("the grammar cannot be followed further: nothing may come next")
            message = " ".join(self._matcher.get_error().partition("<state>")[0].split())
            raise ConstraintError(f"the grammar cannot be followed further: {message:.300}")
