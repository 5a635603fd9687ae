"""The ops of a mixture of experts. `reference/moe.py` is the specification."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...quant.block import QTensor
from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class Route:
    """Top-k routing: expert numbers into `experts`, and their weights into `routing_weights`.

    Probabilities are the "softmax" of the scores, [rows, n], or the "sigmoid" of each. The top k experts of a
    row are those with the highest probability + `bias` (float32 [n], or None), lower numbers first among
    equals. With `groups` > 1 experts are taken only from the `top_groups` best groups of n / groups
    consecutive experts; a group's merit is the sum of its `group_best` highest values. Routing weights are
    the probabilities without the bias, divided by their sum if `normalised`, times `scale`, times
    `expert_scales` (float32 [n], or None). `experts` and `routing_weights` are [rows, k]; expert numbers are
    stored as float32.
    """

    scores: Buffer
    experts: Buffer
    routing_weights: Buffer
    scoring: str
    bias: np.ndarray | None = None
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    expert_scales: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class LowRankExperts:
    """What an adapter adds to a product with a projection of all experts: (x @ down_eᵀ) @ up_eᵀ.

    `down` has a (rank, inputs) and `up` an (outputs, rank) matrix for each expert.
    """

    down: tuple[QTensor, ...]
    up: tuple[QTensor, ...]


@dataclass(frozen=True, eq=False)
class MoE:
    """out = Σ_e weight_e · act(x @ gate_eᵀ, x @ up_eᵀ) @ down_eᵀ, over the experts e that `Route` selected.

    act(g, u) is f(g) · u as for GatedActivation. With a `limit` it is g · sigmoid(alpha · g) · (u + 1), with
    g clipped to at most `limit` and u to ±limit (clamped SwiGLU). Without `gate` matrices it is f(u). `gate`
    and `up` have a (width, inputs) and `down` an (outputs, width) matrix for each expert, of which only the
    selected are read. Biases, float32 [experts, …] or None, are added to the products, and so are those
    with low-rank matrices.
    """

    x: Buffer
    experts: Buffer
    routing_weights: Buffer
    out: Buffer
    gate: tuple[QTensor, ...]
    up: tuple[QTensor, ...]
    down: tuple[QTensor, ...]
    kind: str
    gate_bias: np.ndarray | None = None
    up_bias: np.ndarray | None = None
    down_bias: np.ndarray | None = None
    limit: float = 0.0
    alpha: float = 1.702
    gate_low: LowRankExperts | None = None
    up_low: LowRankExperts | None = None
    down_low: LowRankExperts | None = None

    @property
    def lows(self) -> tuple[LowRankExperts, ...]:
        """The low-rank matrices that there are."""
        return tuple(low for low in (self.gate_low, self.up_low, self.down_low) if low)
