"""The ops of a mixture of experts. `reference_experts.py` is the specification."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...quant.block import QTensor
from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class Route:
    """Choose the top experts for each row: numbers into `experts`, their weights into `routing_weights`.

    The scores, [rows, n], become probabilities by "softmax" or each by its "sigmoid". The best are those
    with the highest probability + `bias` (float32 [n], or None), lower numbers first among equals; with
    `groups` > 1 only of the `top_groups` groups of neighbours whose `group_best` best add up to most. Routing
    weights are probabilities, without the bias, divided by their sum if `normalised`, times `scale`, times
    each expert's own `expert_scales` (float32 [n], or None). `experts` and `routing_weights` have one column
    for each choice; numbers are whole float32.
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
class MoE:
    """out = Σ_e weight_e · act(x @ gate_eᵀ, x @ up_eᵀ) @ down_eᵀ, over the experts e that `Route` chose.

    act(g, u) is f(g) · u as for GatedActivation; with a `limit` it is, for g at most `limit` and u clipped
    to ±limit, g · sigmoid(alpha · g) · (u + 1). `gate` and `up` hold a (width, inputs) and `down` a
    (outputs, width) matrix for each expert, of which only the chosen are read; biases are float32
    [experts, …] or None, and added to the products. Without matrices for the `gate`, act is f(u).
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
