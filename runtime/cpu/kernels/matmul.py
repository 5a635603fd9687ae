"""What matrix products have in common, and the product of float weights with many rows.

Block-quantised weights meet activations of 8 bits (`activations`): sums of products are exact integers within
a group of 32 (or 16) and float32 across groups. Float weights meet the float32 activations as they are. One
row goes through `matvec`, many through `tiled`.
"""

from __future__ import annotations

from typing import Any

from ....quant.dot8 import Codes
from ....quant.jit import EntryPoint, jit, kernel
from ....quant.levels import LANES
from ....quant.simd import fma, load_f32, loadv_f32, splat_f32, storev_f32
from ..records import GELU_TANH, MATMUL
from ..sizes import FLOAT_BYTES
from .floats import FLOATS, constant, load_floats, sigmoid
from .views import reader, share, step_at

TILE = 4  # rows that a panel of floats meets at once


matmul_at = reader(MATMUL)


@jit
def finish(a: Any, row: int, column: int, value: Any) -> None:
    """Write the outputs of one panel for the row of `out` at address `row`, with bias and what was there."""
    if a.bias != 0:
        value = value + loadv_f32(a.bias + column)
    if a.accumulate:
        value = value + loadv_f32(row + column)
    storev_f32(row + column, value)


@jit
def gated(gate: int, x: Any, y: Any) -> Any:
    """x · sigmoid(x) · y; or the tanh form of GELU, x · sigmoid(2u) · y, u = sqrt(2/π) (x + 0.044715 x³)."""
    u = x
    if gate == GELU_TANH:
        u = constant(2 * 0.7978845608028654) * (x + constant(0.044715) * x * x * x)
    return x * sigmoid(u) * y


def _float_matmul(kind: Codes) -> EntryPoint:
    """The kernel for one float type and many rows."""
    stride = FLOAT_BYTES[kind.name] * LANES

    @kernel
    def float_matmul(arguments: int, step: int, thread: int) -> None:
        a, s = matmul_at(arguments), step_at(step)
        first, last = share(a.n_panels, thread, s.n_threads)
        n = s.n_wanted if a.on_wanted else s.n_rows
        for panel in range(first, last):
            weights, column = a.weights + panel * a.panel_bytes, 4 * panel * LANES
            for token in range(0, n, TILE):
                # The last rows are computed twice rather than by other code.
                start = max(0, min(token, n - TILE))
                x0, row0 = a.x + start * a.x_stride, a.out + start * a.out_stride
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
                    finish(a, row0, column, acc0)
                if skip < 2 and n > 1:
                    finish(a, row0 + a.out_stride, column, acc1)
                if skip < 3 and n > 2:
                    finish(a, row0 + 2 * a.out_stride, column, acc2)
                if n > 3:
                    finish(a, row0 + 3 * a.out_stride, column, acc3)

    return float_matmul


FLOAT_MATMULS: dict[str, EntryPoint] = {name: _float_matmul(kind) for name, kind in FLOATS.items()}
