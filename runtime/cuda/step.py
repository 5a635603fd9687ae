"""A step of the CUDA machine as data: its shape, what that launches, and a step that is ready to start."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..engine.cache import Batch
from .abi.arguments import Region
from .driver.launch import Graph, Launch
from .lowering.base import DECODE_ROWS, HostMixture
from .top_k import TopKPlan


class StepShape(NamedTuple):
    """What the launches of a step depend on: the parameters of `Lowering.launches`."""

    n_rows: int
    n_logits: int
    all_logits: bool
    one_prompt: bool

    @classmethod
    def of(cls, batch: Batch, one_prompt: bool) -> StepShape:
        """The shape of the step that runs `batch`."""
        n, m = len(batch.tokens), len(batch.logits_indices)
        all_logits = m == n and (n == 1 or bool((batch.logits_indices == np.arange(n)).all()))
        return cls(n, m, all_logits, one_prompt)


class StepPlan(NamedTuple):
    """What steps of a shape launch, where they leave `boundary_out`, how many sums over the cards of a group
    they have, and the mixtures that the host computes between launches."""

    launches: list[Launch]
    left: list[Region]
    n_sums: int
    mixtures: list[HostMixture]


class TopKRequest(NamedTuple):
    """Select the top `k` (one of TOP_K_SIZES) of the first `n_tokens` logits of every row with logits."""

    k: int
    n_tokens: int


class Step(NamedTuple):
    """A step that is ready to start: `graph`, or single launches if there is none. `n_sums`: over cards."""

    batch: Batch
    shape: StepShape
    graph: Graph | None
    top_k: TopKPlan | None
    n_sums: int = 0


def is_one_prompt(batch: Batch) -> bool:
    """Whether a prefill batch consists of consecutive positions of one sequence."""
    n = len(batch.tokens)
    if n <= DECODE_ROWS:
        return False
    same = bool((batch.sequences == batch.sequences[0]).all())
    return same and bool((np.diff(batch.positions) == 1).all())
