"""From scores to weights: the online softmax of a block of keys for a tile of queries, and its memory.

Weights are relative to a running maximum, and what was summed up before is scaled down whenever that moves
(Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"). Scores are in units of ln 2, so
that exp is a power of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from .....quant.jit.jit import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd import (
    absolute,
    fma,
    lane_max,
    lane_sum,
    load_f32,
    loadv_f16,
    loadv_f32,
    maximum,
    minimum,
    splat_f32,
    store_f32,
    storev_f32,
    storev_i32,
    to_i32,
)
from ...abi.sizes import FLOAT_BYTES, KEY_BLOCK, ROWS, Scratch
from ...simd.attention_tile import spaced
from ...simd.dot8 import Codes
from ...simd.dot16 import coarse_exp2, exp2, first_lane, keep_lanes, load_i64
from ...simd.tile_sizes import GROUP
from ..common.vector_math import constant
from .kv_cache import limit_of, padded_dim

LOWEST = np.float32(-3e38)  # instead of -inf, so that differences of maxima are numbers
LIMIT = 32767.0  # of int16
LOG2_E = 1.4426950408889634


@jit
def slot_of(i: int) -> int:
    """Bytes from query 0's peak or norm to that of query i."""
    return i // ROWS * 64 + i % ROWS * 4


@jit
def score_rows(m: Scratch, rows: tuple) -> tuple:
    """Where the scores of as many queries as `rows` has members lie."""
    return spaced(rows, m.scores, 4 * KEY_BLOCK)


@jit
def weight_rows(a: Any, m: Scratch, rows: tuple) -> tuple:
    """Where their int16 weights lie."""
    return spaced(rows, m.weights, padded_dim(a) // GROUP * KEY_BLOCK * 2)


@jit
def exp2_of(x: float) -> float:
    return first_lane(exp2(splat_f32(x)))


@jit
def soften(kind: Codes, a: Any, m: Scratch, i: int, count: int, first: int, n: int) -> None:
    """Turn the scores of `count` queries from i on into weights, n keys from position `first` on."""
    for row in range(count):
        low = max(load_i64(m.seen + 16 * (i + row)) - first, 0)
        high = min(load_i64(m.seen + 16 * (i + row) + 8) - first, n)
        if low > 0 or high < n or a.softcap > 0:
            _cap_and_hide(a, m, row, low, high, n)
    slot = slot_of(i)
    before, highest = loadv_f32(m.peaks + slot), loadv_f32(m.highest)
    peak = maximum(highest, before)
    fading = exp2(before - peak)
    storev_f32(m.peaks + slot, peak)
    storev_f32(m.fading, fading)
    origin, factor = peak, constant(1.0)
    if limit_of(kind) != 0:
        # Weights relative to this block's own maximum keep their bits where an earlier score is far above.
        origin, factor = highest, exp2(highest - peak)
        for g in range(padded_dim(a) // GROUP):
            storev_f32(m.factors + 64 * g, factor * splat_f32(load_f32(m.largest + 4 * g)))
    storev_f32(m.origins, origin)
    for row in range(count):
        store_f32(m.totals + 4 * row, _weigh(kind, a, m, row, n))
    norms = loadv_f32(m.norms + slot) * fading
    storev_f32(m.norms + slot, fma(loadv_f32(m.totals), factor, norms))


@jit
def _cap_and_hide(a: Any, m: Scratch, row: int, low: int, high: int, n: int) -> None:
    """softcap · tanh(score / softcap) of the keys low … high-1, -inf for the others; and the largest."""
    scores = m.scores + 4 * KEY_BLOCK * row
    highest = splat_f32(LOWEST)
    for j in range(0, n, LANES):
        x = loadv_f32(scores + 4 * j)
        if a.softcap > 0:  # tanh y = 1 - 2 / (e^2y + 1)
            cap = splat_f32(np.float32(a.softcap * LOG2_E))
            x = x * splat_f32(np.float32(2.0 * LOG2_E / a.softcap))
            x = cap - (cap + cap) / (exp2(minimum(constant(126.0), x)) + constant(1.0))
        x = keep_lanes(x, low - j, high - j, np.float32(-np.inf))
        storev_f32(scores + 4 * j, x)
        highest = maximum(x, highest)
    store_f32(m.highest + 4 * row, lane_max(highest))


def _weigh(kind: Codes, a: Any, m: Scratch, row: int, n: int) -> float:
    """Weights of one query; returns their sum."""
    raise TypeError("for compiled code")


@overload(_weigh, jit_options={"forceinline": True})
def _choose_weigh(kind: Any, a: Any, m: Any, row: Any, n: Any) -> Any:
    signed = kind.value.name == "Q4_0"  # the scales of values

    def floats(kind: Any, a: Any, m: Any, row: Any, n: Any) -> Any:
        scores = m.scores + 4 * KEY_BLOCK * row
        origin, total = splat_f32(load_f32(m.origins + 4 * row)), constant(0.0)
        for j in range(0, 4 * n, 4 * LANES):
            p = exp2(loadv_f32(scores + j) - origin)
            storev_f32(scores + j, p)
            total = total + p
        return lane_sum(total)

    def ints(kind: Any, a: Any, m: Any, row: Any, n: Any) -> Any:
        scores = m.scores + 4 * KEY_BLOCK * row
        groups = padded_dim(a) // GROUP
        origin, total = splat_f32(load_f32(m.origins + 4 * row)), constant(0.0)
        weights = m.weights + row * groups * KEY_BLOCK * 2
        half = constant(0.5)
        for c in range(0, n, 32):
            for j in range(c, c + 16, LANES):
                even = coarse_exp2(loadv_f32(scores + 4 * j) - origin)
                odd = coarse_exp2(loadv_f32(scores + 4 * j + 64) - origin)
                total = total + (even + odd)
                at, relative = weights + 4 * j - 2 * c, m.relative + 4 * j
                for _ in range(groups):
                    low = to_i32(fma(even, loadv_f32(relative), half))
                    high = to_i32(fma(odd, loadv_f32(relative + 64), half))
                    if signed:
                        low = low & 65535
                    storev_i32(at, low | (high << 16))
                    at += 2 * KEY_BLOCK
                    relative += 4 * KEY_BLOCK
        return lane_sum(total)

    return floats if kind.value.name in FLOAT_BYTES else ints


@jit
def weigh_scales(a: Any, m: Scratch, scales: int, page_size: int, n: int, low: int, high: int) -> None:
    """What all queries need of the scales of a block's values; only those of tokens low … high-1 count."""
    for g in range(padded_dim(a) // GROUP):
        out = m.relative + 4 * KEY_BLOCK * g
        peak = constant(0.0)
        for j in range(0, n, LANES):
            x = keep_lanes(loadv_f16(scales + 2 * j), low - j, high - j, np.float32(0.0))
            storev_f32(out + 4 * j, x)
            peak = maximum(absolute(x), peak)
        largest = lane_max(peak)
        factor = splat_f32(np.float32(LIMIT) / largest if largest > 0 else np.float32(0.0))
        for j in range(0, 4 * n, 4 * LANES):
            storev_f32(out + j, loadv_f32(out + j) * factor)
        store_f32(m.largest + 4 * g, largest / np.float32(LIMIT))
        scales += 2 * page_size
