"""The ops of `ops_experts.py` in NumPy, over `buffers`, the float32 contents by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ...quant.block import QTensor
from ..ops import moe as ops
from .activations import ACTIVATIONS, sigmoid

Buffers = dict[str, np.ndarray]
# A matrix in float32, in blocks of rows, each with the number of its first row
Dequantized = Callable[[QTensor], Iterable[tuple[int, np.ndarray]]]


def route(op: ops.Route, buffers: Buffers) -> None:
    scores = buffers[op.scores.name]
    if op.scoring == "softmax":
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probabilities = powers / powers.sum(axis=-1, keepdims=True)
    else:
        probabilities = sigmoid(scores)
    choice = probabilities if op.bias is None else probabilities + op.bias
    if op.groups > 1:
        grouped = choice.reshape(len(choice), op.groups, -1)
        merit = np.sort(grouped, axis=-1)[:, :, -op.group_best :].sum(axis=-1)
        best = np.argsort(-merit, axis=-1, kind="stable")[:, : op.top_groups]
        allowed = np.zeros_like(merit, bool)
        np.put_along_axis(allowed, best, True, axis=-1)
        choice = np.where(allowed[:, :, None], grouped, -np.inf).reshape(choice.shape)
    chosen = np.argsort(-choice, axis=-1, kind="stable")[:, : op.experts.width]
    weights = np.take_along_axis(probabilities, chosen, axis=-1)
    if op.normalised:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), np.float32(1e-20))
    if op.expert_scales is not None:
        weights = weights * op.expert_scales[chosen]
    buffers[op.experts.name] = chosen.astype(np.float32)
    buffers[op.routing_weights.name] = weights * np.float32(op.scale)


def moe(
    op: ops.MoE, buffers: Buffers, dequantized: Dequantized, reads: Callable[[QTensor, np.ndarray], None]
) -> None:
    """`reads` is told what each expert's matrix is going to multiply."""
    x, chosen = buffers[op.x.name], buffers[op.experts.name].astype(int)
    out = np.zeros((len(x), op.out.width), np.float32)

    def product(x: np.ndarray, weights: tuple[QTensor, ...], biases: np.ndarray | None) -> np.ndarray:
        """x @ weightsᵀ + biases of expert e."""
        reads(weights[e], x)
        product = np.concatenate([x @ weight.T for _, weight in dequantized(weights[e])], axis=1)
        return product if biases is None else product + biases[e]

    for e in np.unique(chosen):
        rows, place = np.nonzero(chosen == e)
        up = product(x[rows], op.up, op.up_bias)
        gate = product(x[rows], op.gate, op.gate_bias) if op.gate else up
        if not op.gate:
            inner = ACTIVATIONS[op.kind](up)
        elif op.limit:
            gate, up = np.minimum(gate, op.limit), np.clip(up, -op.limit, op.limit)
            inner = gate * sigmoid(np.float32(op.alpha) * gate) * (up + 1)
        else:
            inner = ACTIVATIONS[op.kind](gate) * up
        share = buffers[op.routing_weights.name][rows, place, None]
        out[rows] += share * product(inner, op.down, op.down_bias)
    buffers[op.out.name] = out
