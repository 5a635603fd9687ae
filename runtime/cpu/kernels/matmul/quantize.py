"""Activations in 8 bits: int8 codes, a float32 scale for each group of 32, residual codes for outliers.

The error of rounding grows with the square of a group's scale, so that a few groups with outliers make up
most of the error of a row. A group whose largest magnitude exceeds OUTLIER times the root mean square of the
row gets *residual codes*: another int8 for each value, which quantises the rounding error of the first code,
and a residual dot product with the same weights.

Layouts. A decode step or a step of few rows keeps a row as int8 codes [width], int8 residual codes [width],
and for each group the float32 GROUP_STATS (`simd.tile_sizes`): the scale, the residual scale (0 without
residual codes), the sum of the 32 dequantised values, and the sums of its two halves. A prefill step keeps
tiles of TOKENS rows:

* records [tiles, groups, RECORD], see `simd.gemm_tile`;
* residuals [tiles + 1, groups, TOKENS, RESIDUAL]: 32 int8 residual codes and their float32 scale, which is 0
  if there are none. The last tile is zeros and serves as padding;
* residual lists [groups, 1 + rows], int32: the number of rows with residual codes, then the rows, ascending.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....quant.jit.decorators import jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import (
    absolute,
    fma,
    lane_max,
    lane_sum,
    lane_sum_i32,
    maximum,
    round_even,
    splat_f32,
    splat_i32,
    to_i32,
)
from .....quant.jit.simd.memory import load_i32, loadv_f32, store_f32, store_i32, storev_i8
from ...abi.records import QUANTIZE
from ...simd.tile_sizes import (
    CODES_GAP,
    GROUP,
    GROUP_STATS,
    GROUP_SUM,
    GROUP_SUMS,
    HIGH_SUM,
    HIGH_SUMS,
    LOW_SUM,
    LOW_SUMS,
    RECORD,
    RESIDUAL,
    RESIDUAL_SCALE,
    SCALE,
    SCALES,
    TOGETHER,
    TOKENS,
)
from ..common.access import record_reader, step_at
from ..common.partition import n_rows_of, partition, partition_rows, pooled, rows_within
from ..common.vector_math import constant

OUTLIER = 5.0  # in root mean squares of the row
RESIDUAL_STEPS = 254.0  # scale / residual scale: ±127 residual steps span half a step of the first code

quantize_at = record_reader(QUANTIZE)


@jit
def _threshold(x: int, width: int) -> Any:
    """The magnitude above which a group of float32 [width] at `x` gets residual codes; NaN if one is NaN."""
    squares = constant(0.0)
    for i in range(0, 4 * width, 4 * LANES):
        values = loadv_f32(x + i)
        squares = fma(values, values, squares)
    return np.float32(OUTLIER) * np.float32(math.sqrt(lane_sum(squares) / np.float32(width)))


@jit
def _largest(x: int) -> Any:
    """The largest magnitude of a group of 32 float32."""
    peak = absolute(loadv_f32(x))
    for i in range(LANES, GROUP, LANES):
        peak = maximum(peak, absolute(loadv_f32(x + 4 * i)))
    return lane_max(peak)


@jit
def _codes(x: int, inverse: Any, out: int, gap: int) -> Any:
    """Quantise 16 float32 at `x` to int8 codes at `out`, `inverse` being 1 / scale; returns their sum.

    There are `gap` bytes between the first 8 codes and the others.
    """
    total = splat_i32(np.int32(0))
    for i in range(0, 16, LANES):
        code = to_i32(round_even(loadv_f32(x + 4 * i) * inverse))
        storev_i8(out + i + i // 8 * gap, code)
        total = total + code
    return lane_sum_i32(total)


@jit
def _residual_codes(x: int, inverse: Any, out: int) -> Any:
    """Quantise the rounding errors of 16 float32 at `x` to int8 residual codes at `out`; return their sum."""
    total = splat_i32(np.int32(0))
    for i in range(0, 16, LANES):
        scaled = loadv_f32(x + 4 * i) * inverse
        code = to_i32(round_even((scaled - round_even(scaled)) * constant(RESIDUAL_STEPS)))
        storev_i8(out + i, code)
        total = total + code
    return lane_sum_i32(total)


@jit
def _quantize_group(x: int, threshold: Any, codes: int, gap: int, residual: int) -> Any:
    """Quantise 32 float32 at `x`: codes to address `codes`, residual codes (if any) to address `residual`.

    There are `gap` bytes between 8 codes and the next 8, but not between residual codes. Returns (scale,
    residual scale, sum of the first 16 dequantised values, sum of the last 16).
    """
    largest = _largest(x)
    if threshold != threshold:  # a NaN anywhere in the row makes all products NaN
        largest = threshold
    scale = largest / np.float32(127.0)
    inverse = splat_f32(np.float32(127.0) / largest if largest > 0 else np.float32(0.0))
    low = np.float32(_codes(x, inverse, codes, gap)) * scale
    high = np.float32(_codes(x + 64, inverse, codes + 16 + 2 * gap, gap)) * scale
    residual_scale = np.float32(0.0)
    if largest > threshold:
        residual_scale = scale / np.float32(RESIDUAL_STEPS)
        low += np.float32(_residual_codes(x, inverse, residual)) * residual_scale
        high += np.float32(_residual_codes(x + 64, inverse, residual + 16)) * residual_scale
    return scale, residual_scale, low, high


@jit
def _quantize_row(x: int, width: int, codes: int) -> None:
    """Quantise float32 [width] at `x` to codes, residual codes and GROUP_STATS at address `codes`."""
    stats, threshold = codes + 2 * width, _threshold(x, width)
    for _ in range(width // GROUP):
        scale, residual_scale, low, high = _quantize_group(x, threshold, codes, 0, codes + width)
        store_f32(stats + SCALE, scale)
        store_f32(stats + RESIDUAL_SCALE, residual_scale)
        store_f32(stats + GROUP_SUM, low + high)
        store_f32(stats + LOW_SUM, low)
        store_f32(stats + HIGH_SUM, high)
        x += 4 * GROUP
        codes += GROUP
        stats += 4 * GROUP_STATS


@kernel
def quantize_row(arguments: int, step: int, thread: int) -> None:
    """Quantise the only row, float32 [width]. Every thread makes its own copy, cheaper than a barrier."""
    a = quantize_at(arguments)
    if a.pool != 0:
        first, last = pooled(a, thread, step_at(step).n_threads)
        if first == last:
            return
    _quantize_row(a.x + thread * a.x_thread_stride, a.width, a.out + thread * a.out_thread_stride)


@kernel
def quantize_rows(arguments: int, step: int, thread: int) -> None:
    """Quantise x, float32 [rows, width], each row as `quantize_row` does. Threads partition the rows."""
    a, s = quantize_at(arguments), step_at(step)
    first, last = partition_rows(rows_within(a, s), thread, s)
    for row in range(first, last):
        _quantize_row(a.x + row * a.x_stride, a.width, a.out + row * a.out_stride)


@kernel
def quantize_tiles(arguments: int, step: int, thread: int) -> None:
    """Quantise x, float32 [rows, width], to tiles padded with zeros. Threads partition the tiles, for which
    `row_tile` must be TOKENS."""
    a, s = quantize_at(arguments), step_at(step)
    n = n_rows_of(a, s)
    first, last = partition_rows(n, thread, s)
    groups = a.width // GROUP
    for start in range(first, last, TOKENS):
        tile = start // TOKENS
        for t in range(TOKENS):
            row = start + t
            x = a.x + row * a.x_stride
            stats = a.out + tile * groups * RECORD
            residual = a.residuals + (tile * groups * TOKENS + t) * RESIDUAL
            threshold = _threshold(x, a.width) if row < n else np.float32(0.0)
            for _ in range(groups):
                scale = residual_scale = low = high = np.float32(0.0)
                if row < n:
                    codes = stats + GROUP * (t - t % TOGETHER) + 8 * (t % TOGETHER)
                    scale, residual_scale, low, high = _quantize_group(
                        x, threshold, codes, CODES_GAP, residual
                    )
                store_f32(stats + SCALES + 4 * t, scale)
                store_f32(stats + GROUP_SUMS + 4 * t, low + high)
                store_f32(stats + LOW_SUMS + 4 * t, low)
                store_f32(stats + HIGH_SUMS + 4 * t, high)
                store_f32(residual + GROUP, residual_scale)
                x += 4 * GROUP
                stats += RECORD
                residual += TOKENS * RESIDUAL


@kernel
def list_residuals(arguments: int, step: int, thread: int) -> None:
    """Write the residual lists of all groups. Threads partition the groups."""
    a, s = quantize_at(arguments), step_at(step)
    n = n_rows_of(a, s)
    groups, tiles = a.width // GROUP, (n + TOKENS - 1) // TOKENS
    first, last = partition(groups, thread, s.n_threads)
    for g in range(first, last):
        entries, count = a.residual_lists + g * a.residual_list_stride, 0
        for tile in range(tiles):
            residual = a.residuals + (tile * groups + g) * TOKENS * RESIDUAL
            for t in range(TOKENS):
                if load_i32(residual + t * RESIDUAL + GROUP) != 0:
                    count += 1
                    store_i32(entries + 4 * count, tile * TOKENS + t)
        store_i32(entries, count)
