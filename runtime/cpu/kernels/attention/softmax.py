"""Online softmax: scores of a block of keys become softmax numerators, for ROWS queries at once.

The numerators of a query are relative to its running maximum. When that grows, the sums made so far are
rescaled (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022,
"FlashAttention"). Scores are in units of ln 2, so that the exponential is a power of two. `m` is the thread's
`sizes.Scratch`.

For quantised values the numerators are int16, with one scale for each query, block of keys and 32
dimensions: the scales of the values are multiplied into the numerators, which are then rounded to 15 bits and
written as `dot16.store_pairs` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import (
    absolute,
    fma,
    lane_max,
    lane_sum,
    maximum,
    minimum,
    splat_f32,
    to_i32,
)
from .....quant.jit.simd.memory import load_f32, loadv_f16, loadv_f32, store_f32, storev_f32
from ...abi.sizes import FLOAT_BYTES, KEY_BLOCK, ROWS, Scratch
from ...simd.attention_tile import spaced
from ...simd.dot8 import Codes
from ...simd.dot16 import LARGEST, first_lane, keep_lanes, load_i64, store_pairs
from ...simd.exp2 import coarse_exp2, exp2
from ...simd.tile_sizes import GROUP
from ..common.vector_math import constant
from .kv_cache import limit_of, padded_dim

LOWEST = np.float32(-3e38)  # initial maximum; finite, since -inf - -inf is NaN
LIMIT = float(LARGEST)  # the range of integer numerators
LOG2_E = 1.4426950408889634


@jit
def initial_softmax(a: Any, head: int) -> Any:
    """(running maximum, denominator) of a query before any key.

    The attention sink of `head`, if there is one, counts as a key without a value; head -1 skips it.
    """
    if a.sinks != 0 and head >= 0:
        return load_f32(a.sinks + 4 * head), np.float32(1.0)
    return LOWEST, np.float32(0.0)


@jit
def slot_offset(i: int) -> int:
    """Byte offset of query i in `m.maxima` and `m.denominators`."""
    return i // ROWS * 64 + i % ROWS * 4


@jit
def score_rows(m: Scratch, rows: tuple) -> tuple:
    """Addresses of the scores of as many queries as `rows` has members."""
    return spaced(rows, m.scores, 4 * KEY_BLOCK)


@jit
def weight_rows(a: Any, m: Scratch, rows: tuple) -> tuple:
    """Addresses of the int16 numerators of as many queries as `rows` has members."""
    return spaced(rows, m.weights, padded_dim(a) // GROUP * KEY_BLOCK * 2)


@jit
def exp2_scalar(x: float) -> float:
    """2^x of one float32."""
    return first_lane(exp2(splat_f32(x)))


@jit
def update_softmax(kind: Codes, a: Any, m: Scratch, i: int, count: int, first: int, n: int) -> None:
    """One step of the online softmax for `count` queries from i on: scores of n keys become numerators.

    `first` is the position of the first key. Updates the running maxima and denominators, and writes
    `m.rescale`, by which the sums so far must be multiplied.
    """
    for row in range(count):
        low = max(load_i64(m.visible + 16 * (i + row)) - first, 0)
        high = min(load_i64(m.visible + 16 * (i + row) + 8) - first, n)
        if low > 0 or high < n or a.softcap > 0:
            _cap_and_mask(a, m, row, low, high, n)
    slot = slot_offset(i)
    earlier_top, block_top = loadv_f32(m.maxima + slot), loadv_f32(m.block_maxima)
    top = maximum(block_top, earlier_top)
    rescale = exp2(earlier_top - top)
    storev_f32(m.maxima + slot, top)
    storev_f32(m.rescale, rescale)
    origin, factor = top, constant(1.0)
    if limit_of(kind) != 0:
        # Integer numerators are relative to the block's own maximum: they keep all their bits even where the
        # running maximum is far above.
        origin, factor = block_top, exp2(block_top - top)
        for g in range(padded_dim(a) // GROUP):
            storev_f32(m.int_scales + 64 * g, factor * splat_f32(load_f32(m.max_value_scales + 4 * g)))
    storev_f32(m.exponent_origins, origin)
    for row in range(count):
        store_f32(m.block_sums + 4 * row, _exponentiate(kind, a, m, row, n))
    denominators = loadv_f32(m.denominators + slot) * rescale
    storev_f32(m.denominators + slot, fma(loadv_f32(m.block_sums), factor, denominators))


@jit
def capped(a: Any, x: Any) -> Any:
    """softcap · tanh(x / softcap) of scores, in units of ln 2; tanh y = 1 - 2 / (e^2y + 1)."""
    cap = splat_f32(np.float32(a.softcap * LOG2_E))
    x = x * splat_f32(np.float32(2.0 * LOG2_E / a.softcap))
    return cap - (cap + cap) / (exp2(minimum(constant(126.0), x)) + constant(1.0))


@jit
def _cap_and_mask(a: Any, m: Scratch, row: int, low: int, high: int, n: int) -> None:
    """Soft-cap the scores of a query, softcap · tanh(score / softcap); keys outside low … high-1 get -inf.

    Writes the largest score to `m.block_maxima`.
    """
    scores = m.scores + 4 * KEY_BLOCK * row
    highest = splat_f32(LOWEST)
    for j in range(0, n, LANES):
        x = loadv_f32(scores + 4 * j)
        if a.softcap > 0:
            x = capped(a, x)
        x = keep_lanes(x, low - j, high - j, np.float32(-np.inf))
        storev_f32(scores + 4 * j, x)
        highest = maximum(x, highest)
    store_f32(m.block_maxima + 4 * row, lane_max(highest))


def _exponentiate(kind: Codes, a: Any, m: Scratch, row: int, n: int) -> float:
    """Softmax numerators of one query for n keys, into `m.scores` or `m.weights`; returns their sum."""
    raise TypeError("for compiled code")


@overload(_exponentiate, jit_options={"forceinline": True})
def _choose_exponentiate(kind: Any, a: Any, m: Any, row: Any, n: Any) -> Any:
    signed = kind.value.name == "Q4_0"  # the scales of values may be negative

    def floats(kind: Any, a: Any, m: Any, row: Any, n: Any) -> Any:
        scores = m.scores + 4 * KEY_BLOCK * row
        origin, total = splat_f32(load_f32(m.exponent_origins + 4 * row)), constant(0.0)
        for j in range(0, 4 * n, 4 * LANES):
            p = exp2(loadv_f32(scores + j) - origin)
            storev_f32(scores + j, p)
            total = total + p
        return lane_sum(total)

    def ints(kind: Any, a: Any, m: Any, row: Any, n: Any) -> Any:
        scores = m.scores + 4 * KEY_BLOCK * row
        groups = padded_dim(a) // GROUP
        origin, total = splat_f32(load_f32(m.exponent_origins + 4 * row)), constant(0.0)
        weights = m.weights + row * groups * KEY_BLOCK * 2
        half = constant(0.5)
        for c in range(0, n, 32):
            for j in range(c, c + 16, LANES):
                even = coarse_exp2(loadv_f32(scores + 4 * j) - origin)
                odd = coarse_exp2(loadv_f32(scores + 4 * j + 64) - origin)
                total = total + (even + odd)
                at, relative = weights + 4 * j - 2 * c, m.value_scales + 4 * j
                for _ in range(groups):
                    low = to_i32(fma(even, loadv_f32(relative), half))
                    high = to_i32(fma(odd, loadv_f32(relative + 64), half))
                    if signed:
                        low = low & 65535
                    store_pairs(at, low | (high << 16))
                    at += 2 * KEY_BLOCK
                    relative += 4 * KEY_BLOCK
        return lane_sum(total)

    return floats if kind.value.name in FLOAT_BYTES else ints


@jit
def normalise_value_scales(
    a: Any, m: Scratch, scales: int, page_size: int, n: int, low: int, high: int
) -> None:
    """Multipliers of a block's values, normalised so that the largest of each 32 dimensions is LIMIT.

    `scales` is the address of the first group's fp16 scales, [n] tokens of a piece. Tokens outside
    low … high-1 get 0. Writes `m.value_scales` and `m.max_value_scales`.
    """
    for g in range(padded_dim(a) // GROUP):
        out = m.value_scales + 4 * KEY_BLOCK * g
        peak = constant(0.0)
        for j in range(0, n, LANES):
            x = keep_lanes(loadv_f16(scales + 2 * j), low - j, high - j, np.float32(0.0))
            storev_f32(out + 4 * j, x)
            peak = maximum(absolute(x), peak)
        largest = lane_max(peak)
        factor = splat_f32(np.float32(LIMIT) / largest if largest > 0 else np.float32(0.0))
        for j in range(0, 4 * n, 4 * LANES):
            storev_f32(out + j, loadv_f32(out + j) * factor)
        store_f32(m.max_value_scales + 4 * g, largest / np.float32(LIMIT))
        scales += 2 * page_size
