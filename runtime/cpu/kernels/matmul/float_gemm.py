"""Matrix products of float weights with float32 rows in a prefill step: out = x · Wᵀ + bias.

W is F32, F16 or BF16, stored as panels of LANES rows side by side, [column][row]. A panel is read once for
ROWS rows of x, each of which is broadcast element by element. Threads partition the panels.
"""

from __future__ import annotations

from typing import Any

from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma, splat_f32
from .....quant.jit.simd.memory import load_f32
from ...abi.sizes import FLOAT_BYTES
from ...simd.dot8 import Codes
from ..common.access import step_at
from ..common.float_types import FLOATS, load_floats
from ..common.partition import partition, rows_within
from ..common.vector_math import constant
from .epilogue import expert_rows, finish, matmul_at

ROWS = 4  # rows of x that a panel is multiplied with at once


def _float_gemm(kind: Codes) -> EntryPoint:
    """The kernel for one float type."""
    stride = FLOAT_BYTES[kind.name] * LANES

    @jit
    def panel_rows(a: Any, weights: int, column: int, bias: int, first: int, n: int) -> None:
        """Products of a panel at address `weights` with n rows of x from number `first` on.

        `column` is the byte offset of the panel's columns in out, `bias` that of the expert's bias.
        """
        for token in range(0, n, ROWS):
            # The last ROWS rows overlap the rows before them if n is no multiple of ROWS.
            start = max(0, min(token, n - ROWS))
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
            skip = token - start  # rows that are stored already
            if skip < 1:
                finish(a, row0, column, bias, 0, acc0)
            if skip < 2 and n > 1:
                finish(a, row0 + a.out_stride, column, bias, 0, acc1)
            if skip < 3 and n > 2:
                finish(a, row0 + 2 * a.out_stride, column, bias, 0, acc2)
            if n > 3:
                finish(a, row0 + 3 * a.out_stride, column, bias, 0, acc3)

    @kernel
    def float_gemm(arguments: int, step: int, thread: int) -> None:
        """out [rows, n_panels · LANES] = x [rows, width] · Wᵀ, float32; each expert on its own rows."""
        a, s = matmul_at(arguments), step_at(step)
        first, last = partition(a.n_panels, thread, s.n_threads)
        n = rows_within(a, s)
        for e in range(max(1, a.n_experts)):
            start, end = expert_rows(a, s, e, n)
            weights = a.weights + e * a.expert_stride
            for panel in range(first, last):
                at = weights + panel * a.panel_bytes
                panel_rows(a, at, 4 * panel * LANES, e * a.bias_stride, start, end - start)

    return float_gemm


FLOAT_GEMMS: dict[str, EntryPoint] = {name: _float_gemm(kind) for name, kind in FLOATS.items()}
