"""What matrix products have in common, and the product of float weights with many rows.

Block-quantised weights meet activations of 8 bits (`activations`): sums of products are exact integers within
a group of 32 (or 16) and float32 across groups. Float weights meet the float32 activations as they are. One
row goes through `matvec`, many through `tiled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....quant.jit.jit import EntryPoint, jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd import fma, load_f32, load_i32, loadv_f32, maximum, minimum, splat_f32, storev_f32
from ...abi.records import CLIPPED, GELU_TANH, MATMUL
from ...abi.sizes import FLOAT_BYTES
from ...simd.dot8 import Codes
from ...simd.tile_sizes import TOKENS
from ..common.access import reader, rows_of, share, step_at
from ..common.vector_math import FLOATS, constant, load_floats, sigmoid

TILE = 4  # rows that a panel of floats meets at once


matmul_at = reader(MATMUL)


@jit
def finish(a: Any, row: int, column: int, bias: int, share: int, value: Any) -> None:
    """Write the outputs of one panel for the row of `out` at address `row`: with the bias, those of an expert
    `bias` bytes further on, times the float32 at `share` unless that is 0, and with what was there."""
    if a.bias != 0:
        value = value + loadv_f32(a.bias + bias + column)
    if share != 0:
        value = value * splat_f32(load_f32(share))
    if a.accumulate:
        value = value + loadv_f32(row + column)
    storev_f32(row + column, value)


@jit
def gated(a: Any, x: Any, y: Any) -> Any:
    """SILU: x · sigmoid(x) · y. GELU_TANH: x · sigmoid(2u) · y, u = sqrt(2/π) (x + 0.044715 x³).

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
    """`gated` of two panels' products, after their biases: those of an expert lie `bias` bytes further on."""
    if a.bias != 0:
        x = x + loadv_f32(a.bias + bias + column)
        y = y + loadv_f32(a.other_bias + bias + column)
    return gated(a, x, y)


@jit
def expert_tiles(a: Any, e: int, n_tiles: int) -> Any:
    """The tiles [first, last) that meet matrix number `e`: all, if it is the only one."""
    if a.n_experts == 0:
        return 0, n_tiles
    return np.int64(load_i32(a.tiles + 4 * e)), np.int64(load_i32(a.tiles + 4 * e + 4))


def _float_matmul(kind: Codes) -> EntryPoint:
    """The kernel for one float type and many rows."""
    stride = FLOAT_BYTES[kind.name] * LANES

    @jit
    def panel_rows(a: Any, weights: int, column: int, bias: int, first: int, n: int) -> None:
        """A panel's products with n rows from `first` on."""
        for token in range(0, n, TILE):
            # The last rows are computed twice rather than by other code.
            start = max(0, min(token, n - TILE))
            x0, row0 = a.x + (first + start) * a.x_stride, a.out + (first + start) * a.out_stride
            x1 = x0 + min(1, n - 1) * a.x_stride
            x2, x3 = x0 + min(2, n - 1) * a.x_stride, x0 + min(3, n - 1) * a.x_stride
            acc0, acc1, acc2, acc3 = constant(0.0), constant(0.0), constant(0.0), constant(0.0)
            for k in range(a.width):
                w = load_floats(kind, weights + k * stride)
                acc0 = fma(w, splat_f32(load_f32(x0 + 4 * k)), acc0)
                acc1 = fma(w, splat_f32(load_f32(x1 + 4 * k)), acc1)
                acc2 = fma(w, splat_f32(load_f32(x2 + 4 * k)), acc2)
                acc3 = fma(w, splat_f32(load_f32(x3 + 4 * k)), acc3)
            skip = token - start  # rows that are written already
            if skip < 1:
                finish(a, row0, column, bias, 0, acc0)
            if skip < 2 and n > 1:
                finish(a, row0 + a.out_stride, column, bias, 0, acc1)
            if skip < 3 and n > 2:
                finish(a, row0 + 2 * a.out_stride, column, bias, 0, acc2)
            if n > 3:
                finish(a, row0 + 3 * a.out_stride, column, bias, 0, acc3)

    @kernel
    def float_matmul(arguments: int, step: int, thread: int) -> None:
        a, s = matmul_at(arguments), step_at(step)
        first, last = share(a.n_panels, thread, s.n_threads)
        n = rows_of(a, s)
        for e in range(max(1, a.n_experts)):
            first_tile, last_tile = expert_tiles(a, e, (n + TOKENS - 1) // TOKENS)
            start, end = first_tile * TOKENS, min(n, last_tile * TOKENS)
            weights = a.weights + e * a.expert_bytes
            for panel in range(first, last):
                at = weights + panel * a.panel_bytes
                panel_rows(a, at, 4 * panel * LANES, e * a.bias_stride, start, end - start)

    return float_matmul


FLOAT_MATMULS: dict[str, EntryPoint] = {name: _float_matmul(kind) for name, kind in FLOATS.items()}
