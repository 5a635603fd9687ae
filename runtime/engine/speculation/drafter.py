"""Drafter: what proposes ids by computing, in contrast to n-grams, which are looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..machine import Machine
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


@dataclass(frozen=True)
class Seen:
    """Rows of a step of the model: those of the sequence `owner` in `slot`, from position `first` on.

    `rows` are their numbers in the step, of `n_step` in all. `ids` are the ids that follow each of them: all,
    or all but the last.
    """

    owner: object
    slot: int
    first: int
    rows: range
    n_step: int
    ids: Sequence[int]


class Drafter(Protocol):
    """Proposes ids for many sequences at once."""

    @property
    def kind(self) -> str: ...  # its name in statistics

    @property
    def own_tokens(self) -> bool: ...  # whether its ids are those of the model, not of another tokenizer

    @property
    def companion(self) -> Machine | None: ...  # its machine, if that has the pages of the model's table

    def observe(self, seen: Sequence[Seen]) -> None:
        """Take note of what a step of the model has computed, before its next one."""
        ...

    def seconds(self, n: int, n_sequences: int, step: StepCosts) -> float:
        """What it takes to draft `n` ids for each of some sequences; `step`: costs of the model's own."""
        ...

    def propose(self, wishes: Sequence[Wish]) -> list[list[int]]:
        """Up to `n` ids for each wish; none where it cannot, or not yet."""
        ...
