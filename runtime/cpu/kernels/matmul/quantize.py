"""Activations in 8 bits: a scale ("unit") for each group of 32, and a second digit where that is too coarse.

What rounding costs grows with the square of a group's unit, so a few groups that stand out make up most of
it. Groups whose largest value exceeds `OUTLIER` times the root mean square of the row get a second digit: 8
more bits for what the first 8 left over, and a second dot product with the same weights.

Two layouts. A step of one row keeps the row as int8 first digits [width], int8 second digits [width], then
`FACTS` float32 for each group: the unit of the first digits, that of the second (0 if there are none), the
sum of the 32 values as they are now represented, and the sums of its halves. A step of many rows keeps them
in tiles of `TOKENS` rows:

* records [tiles, groups, RECORD], see `runtime.cpu.simd.gemm_tile`,
* second digits [tiles + 1, groups, TOKENS, SECOND]: 32 int8, then their float32 unit, 0 if there are none;
  the last tile is zeros, for whoever needs to fill up,
* lists [groups, 1 + rows], int32: how many rows have a second digit, then which, in ascending order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....quant.jit.jit import jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd import (
    absolute,
    fma,
    lane_max,
    lane_sum,
    lane_sum_i32,
    load_i32,
    loadv_f32,
    maximum,
    round_even,
    splat_f32,
    splat_i32,
    store_f32,
    store_i32,
    storev_i8,
    to_i32,
)
from ...abi.records import QUANTIZE
from ...abi.sizes import FACTS, HIGH_TOTAL, LOW_TOTAL, SECOND_UNIT, TOTAL, UNIT
from ...simd.tile_sizes import GROUP, HIGH_TOTALS, LOW_TOTALS, RECORD, SECOND, TOKENS, TOTALS, UNITS
from ..common.access import reader, rows_of, share, share_rows, step_at
from ..common.vector_math import constant

OUTLIER = 5.0
DIGIT = 254.0  # the second digit's unit is this fraction of the first's: ±127 of them span half a unit

quantize_at = reader(QUANTIZE)


@jit
def _threshold(x: int, width: int) -> Any:
    """What a group's largest value must exceed to get a second digit. NaN if the row has one."""
    squares = constant(0.0)
    for i in range(0, 4 * width, 4 * LANES):
        values = loadv_f32(x + i)
        squares = fma(values, values, squares)
    return np.float32(OUTLIER) * np.float32(math.sqrt(lane_sum(squares) / np.float32(width)))


@jit
def _largest(x: int) -> Any:
    """The largest magnitude of a group."""
    peak = absolute(loadv_f32(x))
    for i in range(LANES, GROUP, LANES):
        peak = maximum(peak, absolute(loadv_f32(x + 4 * i)))
    return lane_max(peak)


@jit
def _codes(x: int, inverse: Any, out: int) -> Any:
    """Write 16 first digits; their sum."""
    total = splat_i32(np.int32(0))
    for i in range(0, 16, LANES):
        code = to_i32(round_even(loadv_f32(x + 4 * i) * inverse))
        storev_i8(out + i, code)
        total = total + code
    return lane_sum_i32(total)


@jit
def _seconds(x: int, inverse: Any, out: int) -> Any:
    """Write 16 second digits; their sum."""
    total = splat_i32(np.int32(0))
    for i in range(0, 16, LANES):
        scaled = loadv_f32(x + 4 * i) * inverse
        code = to_i32(round_even((scaled - round_even(scaled)) * constant(DIGIT)))
        storev_i8(out + i, code)
        total = total + code
    return lane_sum_i32(total)


@jit
def _quantize_group(x: int, threshold: Any, codes: int, second: int) -> Any:
    """Both digits of a group of 32: (unit, second unit, sums of the halves). `second` may stay as it is."""
    largest = _largest(x)
    if threshold != threshold:  # there is a NaN in the row: no number may come of it
        largest = threshold
    unit = largest / np.float32(127.0)
    inverse = splat_f32(np.float32(127.0) / largest if largest > 0 else np.float32(0.0))
    low = np.float32(_codes(x, inverse, codes)) * unit
    high = np.float32(_codes(x + 64, inverse, codes + 16)) * unit
    second_unit = np.float32(0.0)
    if largest > threshold:
        second_unit = unit / np.float32(DIGIT)
        low += np.float32(_seconds(x, inverse, second)) * second_unit
        high += np.float32(_seconds(x + 64, inverse, second + 16)) * second_unit
    return unit, second_unit, low, high


@kernel
def quantize_row(arguments: int, step: int, thread: int) -> None:
    """The one row, by each thread into memory of its own: cheaper than waiting for another's."""
    a = quantize_at(arguments)
    x, codes = a.x + thread * a.x_private, a.out + thread * a.out_private
    facts, threshold = codes + 2 * a.width, _threshold(x, a.width)
    for _ in range(a.width // GROUP):
        unit, second_unit, low, high = _quantize_group(x, threshold, codes, codes + a.width)
        store_f32(facts + UNIT, unit)
        store_f32(facts + SECOND_UNIT, second_unit)
        store_f32(facts + TOTAL, low + high)
        store_f32(facts + LOW_TOTAL, low)
        store_f32(facts + HIGH_TOTAL, high)
        x += 4 * GROUP
        codes += GROUP
        facts += 4 * FACTS


@kernel
def quantize_tiles(arguments: int, step: int, thread: int) -> None:
    """Many rows into tiles. Rows that lack to a whole tile become zeros."""
    a, s = quantize_at(arguments), step_at(step)
    n = rows_of(a, s)
    first, last = share_rows(n, thread, s.n_threads)
    groups = a.width // GROUP
    for start in range(first, last, TOKENS):
        tile = start // TOKENS
        for t in range(TOKENS):
            row = start + t
            x = a.x + row * a.x_stride
            facts = a.out + tile * groups * RECORD
            digits = a.seconds + (tile * groups * TOKENS + t) * SECOND
            threshold = _threshold(x, a.width) if row < n else np.float32(0.0)
            for _ in range(groups):
                unit = second_unit = low = high = np.float32(0.0)
                if row < n:
                    codes = facts + GROUP * t
                    unit, second_unit, low, high = _quantize_group(x, threshold, codes, digits)
                store_f32(facts + UNITS + 4 * t, unit)
                store_f32(facts + TOTALS + 4 * t, low + high)
                store_f32(facts + LOW_TOTALS + 4 * t, low)
                store_f32(facts + HIGH_TOTALS + 4 * t, high)
                store_f32(digits + GROUP, second_unit)
                x += 4 * GROUP
                facts += RECORD
                digits += TOKENS * SECOND


@kernel
def list_seconds(arguments: int, step: int, thread: int) -> None:
    """The lists of rows with second digits; threads share the groups."""
    a, s = quantize_at(arguments), step_at(step)
    n = rows_of(a, s)
    groups, tiles = a.width // GROUP, (n + TOKENS - 1) // TOKENS
    first, last = share(groups, thread, s.n_threads)
    for g in range(first, last):
        entries, count = a.lists + g * a.list_stride, 0
        for tile in range(tiles):
            digits = a.seconds + (tile * groups + g) * TOKENS * SECOND
            for t in range(TOKENS):
                if load_i32(digits + t * SECOND + GROUP) != 0:
                    count += 1
                    store_i32(entries + 4 * count, tile * TOKENS + t)
        store_i32(entries, count)
