"""Matrix products of a few rows (skinny gemm): out = x · Wᵀ, reading the packed weights once for all rows.

A gemv with several rows: a group of 32 columns of a pair of panels is unpacked into registers and multiplied
with one row after the other there (`simd.row_products`); the accumulators of all rows are in the L1 cache. So
few rows take no longer than one while memory is the limit. Levels with 16 registers take the panels of a pair
one by one. The rows are as `quantize_rows` writes them. Threads partition the pairs of panels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....quant.formats import FORMATS
from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.levels import LEVEL
from .....quant.jit.simd.memory import loadv_f32, prefetch, storev_f32
from ...simd.dot8 import Codes
from ...simd.row_products import ROW_SUMS, add_row_products, add_two_rows_products
from ...simd.tile_sizes import GROUP, PANELS, VECTOR
from ..common.access import step_at
from ..common.partition import partition, rows_within
from ..common.vector_math import constant
from .epilogue import expert_rows, finish, gated_outputs, matmul_at
from .gemv import STATS_BYTES
from .unpack import CODES, HALVES, unpack
from .unpack_words import group_bytes

AHEAD = 4096  # prefetch distance in bytes


def _multiply_pair(codes: Codes) -> Callable:
    """A function that multiplies a pair of panels of one format with all rows."""
    groups = FORMATS[codes.name].block_size // GROUP  # of a block
    n_bytes = group_bytes(codes.name)

    @jit
    def prefetch_group(at: int) -> None:
        for line in range(0, n_bytes, 64):
            prefetch(at + line)

    @jit
    def multiply_rows(a: Any, n: int, weights: Any, g: int, x: int, sums: int) -> None:
        """Add the products of group g of the panels whose unpacked weights are given with n rows from `x`."""
        stats = x + 2 * a.width + g * STATS_BYTES
        x += g * GROUP
        for _ in range(n):
            add_row_products(sums, weights, codes, x, a.width, stats)
            x += a.x_stride
            stats += a.x_stride
            sums += ROW_SUMS

    @jit
    def multiply_pairs(a: Any, n: int, weights: Any, g: int, x: int, sums: int) -> None:
        """The same by two rows at a time; the last of an odd number is multiplied twice, once for nothing."""
        stats = x + 2 * a.width + g * STATS_BYTES
        x += g * GROUP
        for row in range(0, n, 2):
            stride = a.x_stride if row + 1 < n else 0
            add_two_rows_products(sums, weights, codes, x, stride, a.width, stats)
            x += 2 * a.x_stride
            stats += 2 * a.x_stride
            sums += 2 * ROW_SUMS

    # Where a group has two scales, joining the sums of both halves costs what smmla saves.
    multiply = multiply_pairs if LEVEL == "i8mm" and codes.name not in HALVES else multiply_rows

    @jit
    def both(a: Any, n: int, left: int, right: int, x: int, sums: int) -> None:
        """Add the products of both panels with n quantised rows from `x` on to F32 [n, PANELS] at `sums`."""
        ahead = AHEAD
        for g in range(a.n_blocks * groups):
            prefetch_group(left + ahead)
            prefetch_group(right + ahead)
            ahead += n_bytes
            weights = (unpack(codes, left, a.n_blocks, g), unpack(codes, right, a.n_blocks, g))
            multiply(a, n, weights, g, x, sums)

    @jit
    def one_by_one(a: Any, n: int, left: int, right: int, x: int, sums: int) -> None:
        """The same, first of the one panel and then of the other."""
        for second in range(PANELS):
            panel = right if second else left
            ahead = AHEAD
            for g in range(a.n_blocks * groups):
                prefetch_group(panel + ahead)
                ahead += n_bytes
                weights = (unpack(codes, panel, a.n_blocks, g),)
                multiply_rows(a, n, weights, g, x, sums + second * VECTOR)

    return both if LEVEL in ("avx512vnni", "avx512", "i8mm", "neon") else one_by_one


def _skinny_gemm(codes: Codes) -> EntryPoint:
    """The kernel for one block format."""
    multiply_pair = _multiply_pair(codes)

    @kernel
    def skinny_gemm(arguments: int, step: int, thread: int) -> None:
        """out [rows, n_panels · LANES] = x · Wᵀ, float32, with the epilogue of `epilogue`.

        Each expert is multiplied with its own rows.
        """
        a, s = matmul_at(arguments), step_at(step)
        n_rows = rows_within(a, s)
        pairs = a.n_panels if a.gate else (a.n_panels + 1) // 2
        first, last = partition(pairs, thread, s.n_threads)
        sums = a.scratch + thread * a.scratch_stride
        for e in range(max(1, a.n_experts)):
            start, end = expert_rows(a, s, e, n_rows)
            if start == end:
                continue
            matrix, bias = a.weights + e * a.expert_stride, e * a.bias_stride
            for pair in range(first, last):
                left = matrix + pair * a.pair_stride
                alone = a.gate == 0 and 2 * pair + 1 == a.n_panels
                right = left if alone else left + a.second_offset
                for at in range(sums, sums + (end - start) * ROW_SUMS, VECTOR):
                    storev_f32(at, constant(0.0))
                multiply_pair(a, end - start, left, right, a.x + start * a.x_stride, sums)
                for row in range(start, end):
                    out, at = a.out + row * a.out_stride, sums + (row - start) * ROW_SUMS
                    value, other = loadv_f32(at), loadv_f32(at + VECTOR)
                    if a.gate:
                        column = pair * VECTOR
                        storev_f32(out + column, gated_outputs(a, column, bias, value, other))
                        continue
                    finish(a, out, 2 * pair * VECTOR, bias, 0, value)
                    if not alone:
                        finish(a, out, (2 * pair + 1) * VECTOR, bias, 0, other)

    return skinny_gemm


SKINNY_GEMMS: dict[str, EntryPoint] = {name: _skinny_gemm(codes) for name, codes in CODES.items()}
