"""Routing and experts in NumPy float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...quant.block import QTensor
from .. import ops
from .activations import ACTIVATIONS, Buffers, sigmoid
from .dense import Dequantize


def route(op: ops.Route, buffers: Buffers) -> None:
    scores = buffers[op.scores.name]  # [rows, n_experts]
    if op.scoring == "softmax":
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probabilities = powers / powers.sum(axis=-1, keepdims=True)
    else:
        probabilities = sigmoid(scores)
    merits = probabilities if op.bias is None else probabilities + op.bias
    if op.groups > 1:
        grouped = merits.reshape(len(merits), op.groups, merits.shape[1] // op.groups)  # there may be no rows
        group_merits = np.sort(grouped, axis=-1)[:, :, -op.group_best :].sum(axis=-1)
        best = np.argsort(-group_merits, axis=-1, kind="stable")[:, : op.top_groups]
        allowed = np.zeros_like(group_merits, bool)
        np.put_along_axis(allowed, best, True, axis=-1)
        merits = np.where(allowed[:, :, None], grouped, -np.inf).reshape(merits.shape)
    top_k = np.argsort(-merits, axis=-1, kind="stable")[:, : op.experts.width]  # [rows, k]
    weights = np.take_along_axis(probabilities, top_k, axis=-1)
    if op.normalised:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), np.float32(1e-20))
    if op.expert_scales is not None:
        weights = weights * op.expert_scales[top_k]
    buffers[op.experts.name] = top_k.astype(np.float32)
    buffers[op.routing_weights.name] = weights * np.float32(op.scale)


def moe(
    op: ops.MoE,
    buffers: Buffers,
    dequantize: Dequantize,
    before_product: Callable[[QTensor, np.ndarray], None],
) -> None:
    """`before_product` is called with an expert's matrix and its input before each product."""
    x, top_k = buffers[op.x.name], buffers[op.experts.name].astype(int)
    out = np.zeros((len(x), op.out.width), np.float32)

    def times(x: np.ndarray, matrix: QTensor) -> np.ndarray:
        return np.concatenate([x @ weight.T for _, weight in dequantize(matrix)], axis=1)

    def product(
        x: np.ndarray,
        weights: tuple[QTensor, ...],
        biases: np.ndarray | None,
        low: ops.LowRankExperts | None,
    ) -> np.ndarray:
        """x @ weightsᵀ + biases of expert e, and what is beside them."""
        before_product(weights[e], x)
        product = times(x, weights[e])
        if low:
            product += times(times(x, low.down[e]), low.up[e])
        return product if biases is None else product + biases[e]

    for e in np.unique(top_k):
        rows, place = np.nonzero(top_k == e)
        up = product(x[rows], op.up, op.up_bias, op.up_low)
        gate = product(x[rows], op.gate, op.gate_bias, op.gate_low) if op.gate else up
        if not op.gate:
            inner = ACTIVATIONS[op.kind](up)
        elif op.limit:
            gate, up = np.minimum(gate, op.limit), np.clip(up, -op.limit, op.limit)
            inner = gate * sigmoid(np.float32(op.alpha) * gate) * (up + 1)
        else:
            inner = ACTIVATIONS[op.kind](gate) * up
        weight = buffers[op.routing_weights.name][rows, place, None]
        out[rows] += weight * product(inner, op.down, op.down_bias, op.down_low)
    buffers[op.out.name] = out
