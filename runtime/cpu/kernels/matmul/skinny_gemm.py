"""Matrix products of a few rows (skinny gemm): out = x · Wᵀ, reading the packed weights once for all rows.

A gemv with several rows: a group of 32 columns of a panel is unpacked into registers and multiplied with up
to PASS_ROWS rows there (`simd.row_products`). So few rows take no longer than one while memory is the limit.
More rows go over a panel in several passes, of which only the first reads it from memory. The rows are as
`quantize_rows` writes them, with memory for PASS_ROWS more behind them. Threads partition the panels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....quant.formats import FORMATS
from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.memory import loadv_f32, prefetch, storev_f32
from ...abi.sizes import PASS_ROWS
from ...simd.dot8 import Codes
from ...simd.panels import PLANES
from ...simd.row_products import Rows, add_row_products, store_rows, zero_rows
from ...simd.tile_sizes import GROUP, VECTOR
from ..common.access import step_at
from ..common.partition import n_rows_of, partition
from .epilogue import expert_rows, finish, gated_outputs, matmul_at
from .gemv import AHEAD, STATS_BYTES
from .unpack import CODES, unpack

HEIGHTS = (2, 3, 4, 6, PASS_ROWS)  # rows that there is code for; others compute rows that nobody reads


def _pass(codes: Codes, height: int) -> Callable:
    """A function that multiplies a panel of one format with `height` rows."""
    rows, block = Rows(height), FORMATS[codes.name].block_size
    groups = block // GROUP  # of a block
    group_bytes = LANES * sum(p.n_bytes for p in PLANES[codes.name]) // groups

    @jit
    def multiply(a: Any, panel: int, x: int, out: int) -> None:
        """Write F32 [height], the products of a panel with the quantised rows from `x` on, to `out`."""
        sums, stats, ahead = zero_rows(rows), x + 2 * a.width, panel + AHEAD
        for g in range(a.n_blocks * groups):
            for line in range(0, group_bytes, 64):
                prefetch(ahead + line)
            ahead += group_bytes
            weights = unpack(codes, panel, a.n_blocks, g)
            sums = add_row_products(sums, weights, codes, x, a.width, stats, a.x_stride)
            x += GROUP
            stats += STATS_BYTES
        store_rows(out, sums)

    return multiply


def _skinny_gemm(codes: Codes) -> EntryPoint:
    """The kernel for one block format."""
    two, three, four, six, eight = (_pass(codes, height) for height in HEIGHTS)

    @jit
    def multiply(a: Any, n: int, panel: int, x: int, out: int) -> None:
        """Write the products of a panel with n of the quantised rows from `x` on, F32 [n], to `out`."""
        if n <= 2:
            two(a, panel, x, out)
        elif n == 3:
            three(a, panel, x, out)
        elif n == 4:
            four(a, panel, x, out)
        elif n <= 6:
            six(a, panel, x, out)
        else:
            eight(a, panel, x, out)

    @kernel
    def skinny_gemm(arguments: int, step: int, thread: int) -> None:
        """out [rows, n_panels · LANES] = x · Wᵀ, float32, with the epilogue of `epilogue`.

        Each expert is multiplied with its own rows.
        """
        a, s = matmul_at(arguments), step_at(step)
        n = n_rows_of(a, s)
        first, last = partition(a.n_panels, thread, s.n_threads)
        sums = a.scratch + thread * a.scratch_stride
        other_sums = sums + PASS_ROWS * VECTOR
        for e in range(max(1, a.n_experts)):
            start, stop = expert_rows(a, s, e, n)
            if start == stop:
                continue
            matrix, bias = a.weights + e * a.expert_stride, e * a.bias_stride
            passes = (stop - start + PASS_ROWS - 1) // PASS_ROWS
            for panel in range(first, last):
                column = panel * VECTOR
                at = matrix + panel * (a.pair_stride if a.gate else a.panel_bytes)
                for i in range(passes):
                    begin, end = partition(stop - start, i, passes)
                    x = a.x + (start + begin) * a.x_stride
                    out = a.out + (start + begin) * a.out_stride
                    # In one loop, so that the code of the passes is there once.
                    for second in range(2 if a.gate else 1):
                        to = other_sums if second else sums
                        multiply(a, end - begin, at + second * a.second_offset, x, to)
                    for t in range(end - begin):
                        value = loadv_f32(sums + t * VECTOR)
                        if a.gate:
                            other = loadv_f32(other_sums + t * VECTOR)
                            storev_f32(out + column, gated_outputs(a, column, bias, value, other))
                        else:
                            finish(a, out, column, bias, 0, value)
                        out += a.out_stride

    return skinny_gemm


SKINNY_GEMMS: dict[str, EntryPoint] = {name: _skinny_gemm(codes) for name, codes in CODES.items()}
