"""Activations in 8 bits: a scale ("unit") for each group of 32, and a second digit where one stands out.

A group whose largest activation exceeds `OUTLIER` times its root mean square would leave few bits to the other 31. It
gets a second digit: 8 more bits for what the first 8 left over, and a second dot product with the same weights.

Two layouts. A step of one row keeps the row as int8 first digits [width], int8 second digits [width], then `FACTS`
float32 for each group: the unit of the first digits, that of the second (0 if there are none), the sum of the 32 values
as they are now represented, and the sums of its halves. A step of many rows keeps them in tiles of `TOKENS` rows:

* records [tiles, groups, RECORD], see `quant.tiles`,
* second digits [tiles, groups, SECOND]: for each token 32 int8, then `TOKENS` float32 units,
* lists [tiles, blocks of BLOCK groups, LIST]: int32 count, then group · TOKENS + token of each second digit that counts,
  the groups numbered within their block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...quant.jit import jit, kernel
from ...quant.simd import (
    LANES,
    absolute,
    fma,
    lane_max,
    lane_sum,
    lane_sum_i32,
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
from ...quant.tiles import GROUP, HIGH_TOTALS, LOW_TOTALS, RECORD, TOKENS, TOTALS, UNITS
from .floats import constant
from .records import reader, record, share_rows, step_at

OUTLIER = 5.0
DIGIT = 254.0  # the second digit's unit is this fraction of the first's: ±127 of them span half a unit

FACTS = 5
UNIT, SECOND_UNIT, TOTAL, LOW_TOTAL, HIGH_TOTAL = (4 * i for i in range(FACTS))

BLOCK = 16 if LANES == 16 else 32  # groups of a row whose unpacked weights stay in the first-level cache
SECOND = TOKENS * (GROUP + 4)
SECOND_UNITS = TOKENS * GROUP
LIST = 4 * (1 + BLOCK * TOKENS)


def row_bytes(width: int) -> int:
    """Bytes of a quantised row, whole cache lines."""
    return -(-(2 * width + width // GROUP * FACTS * 4) // 64) * 64


def tile_bytes(width: int, max_rows: int) -> tuple[int, int, int]:
    """Bytes of the records, of the second digits and of the lists, whole cache lines."""
    tiles, groups = -(-max_rows // TOKENS), width // GROUP
    sizes = tiles * groups * RECORD, tiles * groups * SECOND, tiles * -(-groups // BLOCK) * LIST
    return tuple(-(-size // 64) * 64 for size in sizes)  # type: ignore[return-value]


QUANTIZE = record(
    "x",
    "x_stride",
    "x_private",  # bytes between the threads' copies of x, 0 if they share it
    "width",
    "out",  # a row for each thread, or the records
    "out_private",
    "seconds",
    "lists",
    "on_wanted",
)
quantize_at = reader(QUANTIZE)


@jit
def _measure(x: int) -> Any:
    """The largest magnitude of a group and whether it stands out; NaN if the group has a NaN."""
    values = loadv_f32(x)
    peak, squares = absolute(values), values * values
    for i in range(LANES, GROUP, LANES):
        values = loadv_f32(x + 4 * i)
        peak, squares = maximum(peak, absolute(values)), fma(values, values, squares)
    largest, energy = lane_max(peak), lane_sum(squares)
    two = largest * largest > np.float32(OUTLIER * OUTLIER / GROUP) * energy
    if energy != energy:  # the maximum may have passed over it: no number may come of it
        largest = energy
    return largest, two


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
def _quantize_group(x: int, codes: int, second: int) -> Any:
    """Both digits of a group of 32: (unit, second unit, sums of the halves). `second` is written if need be."""
    largest, two = _measure(x)
    unit = largest / np.float32(127.0)
    inverse = splat_f32(np.float32(127.0) / largest if largest > 0 else np.float32(0.0))
    low = np.float32(_codes(x, inverse, codes)) * unit
    high = np.float32(_codes(x + 64, inverse, codes + 16)) * unit
    second_unit = np.float32(0.0)
    if two:
        second_unit = unit / np.float32(DIGIT)
        low += np.float32(_seconds(x, inverse, second)) * second_unit
        high += np.float32(_seconds(x + 64, inverse, second + 16)) * second_unit
    return unit, second_unit, low, high


@kernel
def quantize_row(arguments: int, step: int, thread: int) -> None:
    """The one row, by each thread into memory of its own: cheaper than waiting for another's."""
    a = quantize_at(arguments)
    x, codes = a.x + thread * a.x_private, a.out + thread * a.out_private
    facts = codes + 2 * a.width
    for _ in range(a.width // GROUP):
        unit, second_unit, low, high = _quantize_group(x, codes, codes + a.width)
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
    n = s.n_wanted if a.on_wanted else s.n_rows
    first, last = share_rows(n, thread, s.n_threads)
    groups = a.width // GROUP
    n_lists = (groups + BLOCK - 1) // BLOCK
    for start in range(first, last, TOKENS):
        tile = start // TOKENS
        records, seconds = a.out + tile * groups * RECORD, a.seconds + tile * groups * SECOND
        lists = a.lists + tile * n_lists * LIST
        for block in range(n_lists):
            count, entry = 0, lists + block * LIST
            for g in range(block * BLOCK, min(groups, (block + 1) * BLOCK)):
                facts, digits = records + g * RECORD, seconds + g * SECOND
                for t in range(TOKENS):
                    unit = second_unit = low = high = np.float32(0.0)
                    if start + t < n:
                        x = a.x + (start + t) * a.x_stride + 4 * g * GROUP
                        unit, second_unit, low, high = _quantize_group(x, facts + GROUP * t, digits + GROUP * t)
                    store_f32(facts + UNITS + 4 * t, unit)
                    store_f32(facts + TOTALS + 4 * t, low + high)
                    store_f32(facts + LOW_TOTALS + 4 * t, low)
                    store_f32(facts + HIGH_TOTALS + 4 * t, high)
                    if second_unit != 0:
                        store_f32(digits + SECOND_UNITS + 4 * t, second_unit)
                        count += 1
                        store_i32(entry + 4 * count, (g - block * BLOCK) * TOKENS + t)
            store_i32(entry, count)
