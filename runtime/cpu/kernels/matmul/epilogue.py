"""Shared parts of the matrix-product kernels: expert ranges, and the epilogue that finishes output vectors.

An epilogue adds the bias, applies the gated activation or the routing weight, and stores or accumulates one
vector: LANES outputs of one row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....quant.jit.decorators import jit
from .....quant.jit.simd.arithmetic import maximum, minimum, splat_f32
from .....quant.jit.simd.memory import load_f32, load_i32, loadv_f32, storev_f32
from ...abi.records import CLIPPED, GELU_TANH, MATMUL
from ..common.access import record_reader
from ..common.vector_math import constant, sigmoid

matmul_at = record_reader(MATMUL)


@jit
def finish(a: Any, row: int, column: int, bias: int, routing_weight: int, value: Any) -> None:
    """Store LANES outputs of one row: (value + bias) · routing weight, added to `out` if `accumulate`.

    `row` is the address of the row of `out`, `column` the byte offset of the panel's columns. `bias` is the
    byte offset of the expert's bias in `a.bias`; `routing_weight` is the address of a float32, or 0 for none.
    """
    if a.bias != 0:
        value = value + loadv_f32(a.bias + bias + column)
    if routing_weight != 0:
        value = value * splat_f32(load_f32(routing_weight))
    if a.accumulate:
        value = value + loadv_f32(row + column)
    storev_f32(row + column, value)


@jit
def gated(a: Any, x: Any, y: Any) -> Any:
    """The gated activation f(x) · y that `a.gate` selects.

    SILU: x · sigmoid(x) · y. GELU_TANH: x · sigmoid(2u) · y, u = sqrt(2/π) (x + 0.044715 x³).

    CLIPPED: x · sigmoid(alpha · x) · (y + 1), x at most `limit` and y clipped to ± `limit`.
    """
    u = x
    if a.gate == GELU_TANH:
        u = constant(2 * 0.7978845608028654) * (x + constant(0.044715) * x * x * x)
    if a.gate == CLIPPED:
        limit = splat_f32(np.float32(a.limit))
        x = minimum(limit, x)  # in this order NaN stays NaN
        y = maximum(constant(0.0) - limit, minimum(limit, y)) + constant(1.0)
        u = x * splat_f32(np.float32(a.alpha))
    return x * sigmoid(u) * y


@jit
def gated_outputs(a: Any, column: int, bias: int, x: Any, y: Any) -> Any:
    """The gated activation of a gate panel's products x and an up panel's products y, biases added first.

    `column` is the byte offset of the panels' columns, `bias` the byte offset of the expert's biases.
    """
    if a.bias != 0:
        x = x + loadv_f32(a.bias + bias + column)
        y = y + loadv_f32(a.second_bias + bias + column)
    return gated(a, x, y)


@jit
def expert_tiles(a: Any, e: int, n_tiles: int) -> Any:
    """The row tiles [first, last) that meet the matrix of expert `e`; all tiles if there are no experts."""
    if a.n_experts == 0:
        return 0, n_tiles
    return np.int64(load_i32(a.expert_tiles + 4 * e)), np.int64(load_i32(a.expert_tiles + 4 * e + 4))


@jit
def expert_rows(a: Any, s: Any, e: int, n: int) -> Any:
    """The rows [first, last) of the n rows of x that meet expert `e`; `s` is the STEP record."""
    first, last = expert_tiles(a, e, (n + s.expert_tile - 1) // s.expert_tile)
    return first * s.expert_tile, min(n, last * s.expert_tile)
