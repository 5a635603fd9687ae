"""Constraint: what the answer of one sequence must look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Constraint(Protocol):
    """A state behind the tokens that an answer has so far, from which follows what may come next.

    An engine calls `masks` in a thread of its own while the machine runs, and nothing else meanwhile. All
    methods may raise ConstraintError, which ends the generation.
    """

    @property
    def complete(self) -> bool:
        """Whether the answer has the form it must have, and may end here."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the answer is complete, and nothing can follow."""
        ...

    def masks(self, ids: Sequence[int] = ()) -> list[np.ndarray | None]:
        """Which tokens may come next, here and behind each of `ids`, which all are allowed in their places.

        Each is uint8 [at least vocab / 8]: bit i % 8 of byte i // 8 is token i, and end tokens have theirs;
        None: every token may come. The state stays as it is.
        """
        ...

    def n_allowed(self, ids: Sequence[int]) -> int:
        """How many of `ids` may follow one after the other, none of which ends the answer. The state stays as
        it is."""
        ...

    def accept(self, id_: int) -> None:
        """Note that a token has come, which `masks` allowed."""
        ...

    def forced(self) -> list[int]:
        """The tokens that follow for sure, of which the state is not told; often none."""
        ...

    def restart(self) -> None:
        """Go back to the state before the first token."""
        ...
