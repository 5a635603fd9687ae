"""Drafter: what proposes ids by computing, in contrast to n-grams, which are looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..sampling.sampler import Sampler
from .policy import StepCosts


@dataclass(frozen=True)
class Wish:
    """A sequence for which a drafter shall propose up to `n` ids behind `ids`, which it has in `slot`.

    `owner` tells sequences apart. `sampler` chooses the ids, as the sequence's own would from these logits.
    """

    owner: object
    slot: int
    ids: Sequence[int]
    n: int
    sampler: Sampler


class Drafter(Protocol):
    """Proposes ids for many sequences at once."""

    @property
    def kind(self) -> str: ...  # its name in statistics

    @property
    def own_tokens(self) -> bool: ...  # whether its ids are those of the model, not of another tokenizer

    def seconds(self, n: int, n_sequences: int, step: StepCosts) -> float:
        """What it takes to draft `n` ids for each of some sequences; `step`: costs of the model's own."""
        ...

    def propose(self, wishes: Sequence[Wish]) -> list[list[int]]:
        """Up to `n` ids for each wish; none where it cannot, or not yet."""
        ...
