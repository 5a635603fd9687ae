"""Attention of a tile of queries over the blocks of one sequence's cache.

The tile's queries all read the same kv head: some rows, times the heads of its group. Block by block of up to
64 keys, four queries at a time meet the keys in register tiles (quant/dot16.py), their scores become weights
relative to a running maximum, and the weights meet the values (Dao et al. 2022, "FlashAttention"; Milakov
& Gimelshein 2018, "Online normalizer calculation for softmax"). Memory does not grow with the context.

A quantised cache is computed with in int16: queries become int16 with one scale a head, weights with one
scale for each query, block and 32 dimensions (the values' scales are multiplied into the weights), which
adds next to nothing to the error of the codes. Scores are in units of ln 2, so that exp is a power of two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from ...quant.dot16 import (
    WIDTH,
    add_scaled,
    first_lane,
    float_tile,
    int_tile,
    keep_lanes,
    load_byte_pairs,
    load_i64,
    load_nibble_pairs,
    load_tile,
    load_two_nibble_pairs,
    multiply_tile,
    scale_tile,
    store_i64,
    store_tile,
    storev_i16,
    times_power,
)
from ...quant.jit import jit
from ...quant.simd import (
    LANES,
    Codes,
    absolute,
    fma,
    lane_max,
    lane_sum,
    load_f32,
    loadv_f16,
    loadv_f32,
    maximum,
    round_even,
    splat_f32,
    store_f32,
    storev_f32,
    storev_i32,
    to_i32,
)
from .floats import SIZES, constant, load_floats, tanh
from .kv import GROUP, limit_of, padded, padded_dim, pieces

ROWS = 4  # queries in a register tile
BLOCK = 64  # keys between two looks at the running maximum
TILE = WIDTH * LANES
LOWEST = np.float32(-3e38)  # instead of -inf, so that differences of maxima are numbers
LIMIT = 32767.0  # of int16
LOG2_E = 1.4426950408889634


class Scratch(NamedTuple):
    """Addresses of a thread's working memory, for a tile of n queries."""

    q: int  # int16 or float32 [n, dim]
    sums: int  # float32 [n, dim]: weights · values
    peaks: int  # float32 [n]: largest score so far
    norms: int  # float32 [n]: sum of weights
    units: int  # float32 [n]: what a query's scores are multiplied by
    seen: int  # int64 [n, 2]: first visible position, last visible position + 1
    scores: int  # float32 [ROWS, BLOCK]
    weights: int  # int32 [ROWS, dim / 32, BLOCK / 2], pairs of int16
    relative: int  # float32 [dim / 32, BLOCK]: the values' scales, the largest of a group LIMIT
    largest: int  # float32 [dim / 32]: the largest / LIMIT
    fading: int  # float32 [ROWS]: what earlier sums are multiplied by
    factors: int  # float32 [ROWS, dim / 32]: what integer sums are multiplied by
    stage: int  # float32 [2, dim] and 32 bytes
    end: int


@jit
def scratch_at(base: int, n: int, dim: int) -> Scratch:
    groups = dim // GROUP
    some = (n + 15) // 16 * 64
    q = base
    sums = q + n * 4 * dim
    peaks = sums + n * 4 * dim
    norms = peaks + some
    units = norms + some
    seen = units + some
    scores = seen + 4 * some
    weights = scores + ROWS * BLOCK * 4
    relative = weights + ROWS * groups * BLOCK * 2
    largest = relative + groups * BLOCK * 4
    fading = largest + (groups + 15) // 16 * 64
    factors = fading + 64
    stage = factors + (ROWS * groups + 15) // 16 * 64
    end = stage + 8 * dim + 64
    return Scratch(
        q, sums, peaks, norms, units, seen, scores, weights, relative, largest, fading, factors, stage, end
    )


def tile_bytes(n: int, head_dim: int) -> int:
    """Bytes of the scratch of a tile of n queries."""
    return scratch_at.py_func(0, n, padded(head_dim)).end


@jit
def exp2(x: Any) -> Any:
    """2^x in each lane for x ≤ 0, to 1e-7 relative; below -126 the smallest normal number; NaN stays NaN.

    2^x = 2^n · 2^r with n the nearest integer; 2^r for |r| ≤ 1/2 by its minimax polynomial of degree 5.
    """
    x = maximum(constant(-126.0), x)
    n = round_even(x)
    r = x - n
    p = fma(constant(0.0013264727193397395), r, constant(0.009671512639929547))
    p = fma(p, r, constant(0.055507337432645965))
    p = fma(p, r, constant(0.24022242085368942))
    p = fma(p, r, constant(0.6931469775991551))
    p = fma(p, r, constant(1.0))
    return times_power(p, n)


@jit
def exp2_of(x: float) -> float:
    return first_lane(exp2(splat_f32(x)))


def _prepare_query(kind: Codes, a: Any, x: int, q: int) -> float:
    """float32 [dim] at `x` → the form that meets keys at `q`; returns what to multiply scores by."""
    raise TypeError("for compiled code")


@overload(_prepare_query, jit_options={"forceinline": True})
def _choose_prepare_query(kind: Any, a: Any, x: Any, q: Any) -> Any:
    def floats(kind: Any, a: Any, x: Any, q: Any) -> Any:
        for d in range(0, 4 * padded_dim(a), 4 * LANES):
            storev_f32(q + d, loadv_f32(x + d))
        return np.float32(1.0)

    def ints(kind: Any, a: Any, x: Any, q: Any) -> Any:
        peak, total = constant(0.0), constant(0.0)
        for d in range(0, 4 * padded_dim(a), 4 * LANES):
            value = loadv_f32(x + d)
            peak = maximum(absolute(value), peak)
            total = total + value * constant(0.0)
        largest = lane_max(peak)
        unit = largest / np.float32(LIMIT) + lane_sum(total)  # NaN and infinity make it NaN
        inverse = splat_f32(np.float32(LIMIT) / largest if largest > 0 else np.float32(0.0))
        for d in range(0, padded_dim(a), LANES):
            storev_i16(q + 2 * d, to_i32(round_even(loadv_f32(x + 4 * d) * inverse)))
        return unit

    return floats if kind.codes.name in SIZES else ints


@jit
def prepare_query(kind: Codes, a: Any, m: Scratch, i: int, x: int, position: int) -> None:
    """Make query i of the tile, which looks from a position, of float32 [dim] at `x`."""
    unit = _prepare_query(kind, a, x, m.q + i * query_bytes(kind) * padded_dim(a))
    scale = a.scale if a.softcap > 0 else a.scale * LOG2_E
    store_f32(m.units + 4 * i, np.float32(unit * scale))
    store_i64(m.seen + 16 * i, max(0, position - a.window + 1) if a.window > 0 else 0)
    store_i64(m.seen + 16 * i + 8, position + 1)


@jit
def begin_sums(a: Any, m: Scratch, i: int) -> None:
    """Query i has seen nothing yet."""
    store_f32(m.peaks + 4 * i, LOWEST)
    store_f32(m.norms + 4 * i, np.float32(0.0))
    for d in range(0, 4 * padded_dim(a), 4 * LANES):
        storev_f32(m.sums + 4 * i * padded_dim(a) + d, constant(0.0))


def query_bytes(kind: Codes) -> int:
    """Bytes of a query's element; a constant in compiled code."""
    raise TypeError("for compiled code")


@overload(query_bytes, jit_options={"forceinline": True})
def _choose_query_bytes(kind: Any) -> Any:
    size = 4 if kind.codes.name in SIZES else 2

    def constant_size(kind: Any) -> Any:
        return size

    return constant_size


# --- scores ----------------------------------------------------------------------------------------------


def _score_tile(kind: Codes, a: Any, page_size: int, rows: Any, keys: int, slot: int) -> Any:
    """The tile q · k of the queries at `rows` and the TILE keys from `slot` of a page's piece on."""
    raise TypeError("for compiled code")


@overload(_score_tile, jit_options={"forceinline": True})
def _choose_score_tile(kind: Any, a: Any, page_size: Any, rows: Any, keys: Any, slot: Any) -> Any:
    size = SIZES.get(kind.codes.name, 0)

    def floats(kind: Any, a: Any, page_size: Any, rows: Any, keys: Any, slot: Any) -> Any:
        total = float_tile(rows)
        at = keys + slot * size
        for d in range(0, 4 * a.head_dim, 4):
            vectors = load_floats(kind, at), load_floats(kind, at + LANES * size)
            total = multiply_tile(total, vectors, rows, d)
            at += page_size * size
        return total

    def bytes_(kind: Any, a: Any, page_size: Any, rows: Any, keys: Any, slot: Any) -> Any:
        total = float_tile(rows)
        at, stride = keys + 2 * slot, 2 * page_size
        scale = keys + padded_dim(a) * page_size + 2 * slot
        for g in range(0, 2 * padded_dim(a), 2 * GROUP):
            sums = int_tile(rows)
            for d in range(g, g + 2 * GROUP, 4):
                sums = multiply_tile(sums, load_byte_pairs(at), rows, d)
                at += stride
            total = scale_tile(total, sums, loadv_f16(scale), loadv_f16(scale + 2 * LANES))
            scale += stride
        return total

    def nibbles(kind: Any, a: Any, page_size: Any, rows: Any, keys: Any, slot: Any) -> Any:
        total = float_tile(rows)
        at, stride = keys + 2 * slot, 2 * page_size
        scale = keys + padded_dim(a) // 2 * page_size + 2 * slot
        for g in range(0, 2 * padded_dim(a), 2 * GROUP):
            sums = int_tile(rows)
            for d in range(g, g + 2 * GROUP, 8):
                sums = multiply_tile(sums, load_two_nibble_pairs(at), rows, d)
                at += stride
            total = scale_tile(total, sums, loadv_f16(scale), loadv_f16(scale + 2 * LANES))
            scale += stride
        return total

    return floats if size else {"Q8_0": bytes_, "Q4_0": nibbles}[kind.codes.name]


@jit
def _score(kind: Codes, a: Any, page_size: int, rows: Any, outs: Any, keys: int, slot: int, n: int) -> None:
    """Scores of n keys, a multiple of TILE, to the addresses `outs`."""
    for i in range(0, n, TILE):
        tile = _score_tile(kind, a, page_size, rows, keys, slot + i)
        store_tile(tile, outs, 4 * LANES)
        outs = advanced(outs, 4 * TILE)


def advanced(addresses: Any, n: int) -> Any:
    """All of a tuple's addresses moved by n."""
    raise TypeError("for compiled code")


@overload(advanced, jit_options={"forceinline": True})
def _choose_advanced(addresses: Any, n: Any) -> Any:
    def one(addresses: Any, n: Any) -> Any:
        return (addresses[0] + n,)

    def two(addresses: Any, n: Any) -> Any:
        return addresses[0] + n, addresses[1] + n

    def three(addresses: Any, n: Any) -> Any:
        return addresses[0] + n, addresses[1] + n, addresses[2] + n

    def four(addresses: Any, n: Any) -> Any:
        return addresses[0] + n, addresses[1] + n, addresses[2] + n, addresses[3] + n

    return (one, two, three, four)[addresses.count - 1]


# --- softmax ---------------------------------------------------------------------------------------------


@jit
def _shape_scores(a: Any, m: Scratch, i: int, row: int, first: int, n: int) -> float:
    """Scale, cap and hide the scores of query i, in place; returns the largest."""
    scores = m.scores + 4 * BLOCK * row
    unit = splat_f32(load_f32(m.units + 4 * i))
    low = max(load_i64(m.seen + 16 * i) - first, 0)
    high = min(load_i64(m.seen + 16 * i + 8) - first, n)
    hidden = low > 0 or high < n
    highest = splat_f32(LOWEST)
    for j in range(0, n, LANES):
        x = loadv_f32(scores + 4 * j) * unit
        if a.softcap > 0:
            cap = splat_f32(np.float32(a.softcap * LOG2_E))
            x = cap * tanh(x * splat_f32(np.float32(1.0 / a.softcap)))
        if hidden:
            x = keep_lanes(x, low - j, high - j, np.float32(-np.inf))
        storev_f32(scores + 4 * j, x)
        highest = maximum(x, highest)
    return lane_max(highest)


def _weigh(kind: Codes, a: Any, m: Scratch, i: int, row: int, highest: float, n: int) -> None:
    """Turn the scores of query i into weights and update its maximum and norm."""
    raise TypeError("for compiled code")


@overload(_weigh, jit_options={"forceinline": True})
def _choose_weigh(kind: Any, a: Any, m: Any, i: Any, row: Any, highest: Any, n: Any) -> Any:
    def floats(kind: Any, a: Any, m: Any, i: Any, row: Any, highest: Any, n: Any) -> Any:
        scores = m.scores + 4 * BLOCK * row
        before = load_f32(m.peaks + 4 * i)
        peak = max(before, highest)
        shift, total = splat_f32(peak), constant(0.0)
        for j in range(0, 4 * n, 4 * LANES):
            p = exp2(loadv_f32(scores + j) - shift)
            storev_f32(scores + j, p)
            total = total + p
        fading = exp2_of(before - peak)
        store_f32(m.peaks + 4 * i, peak)
        store_f32(m.norms + 4 * i, load_f32(m.norms + 4 * i) * fading + lane_sum(total))
        store_f32(m.fading + 4 * row, fading)

    def ints(kind: Any, a: Any, m: Any, i: Any, row: Any, highest: Any, n: Any) -> Any:
        scores = m.scores + 4 * BLOCK * row
        groups = padded_dim(a) // GROUP
        # Weights relative to this block's own maximum keep their bits where an earlier score is far above.
        shift, total = splat_f32(highest), constant(0.0)
        weights = m.weights + row * groups * BLOCK * 2
        half = constant(0.5)
        for c in range(0, n, 32):
            for j in range(c, c + 16, LANES):
                even = exp2(loadv_f32(scores + 4 * j) - shift)
                odd = exp2(loadv_f32(scores + 4 * j + 64) - shift)
                total = total + (even + odd)
                at, relative = weights + 2 * c + 4 * (j - c), m.relative + 4 * j
                for _ in range(groups):
                    low = to_i32(fma(even, loadv_f32(relative), half))
                    high = to_i32(fma(odd, loadv_f32(relative + 64), half))
                    if limit_of(kind) == 8:  # whose scales may be negative
                        low = low & 65535
                    storev_i32(at, low | (high << 16))
                    at += 2 * BLOCK
                    relative += 4 * BLOCK
        before = load_f32(m.peaks + 4 * i)
        peak = max(before, highest)
        fading, factor = exp2_of(before - peak), exp2_of(highest - peak)
        store_f32(m.peaks + 4 * i, peak)
        store_f32(m.norms + 4 * i, load_f32(m.norms + 4 * i) * fading + lane_sum(total) * factor)
        store_f32(m.fading + 4 * row, fading)
        for g in range(groups):
            store_f32(m.factors + 4 * (row * groups + g), load_f32(m.largest + 4 * g) * factor)

    return floats if kind.codes.name in SIZES else ints


def _scales_of_values(
    kind: Codes, a: Any, m: Scratch, page_size: int, values: int, slot: int, n: int, low: int, high: int
) -> None:
    """Prepare what all queries need of the scales of a block's values; those of tokens low … high-1 count."""
    raise TypeError("for compiled code")


@overload(_scales_of_values, jit_options={"forceinline": True})
def _choose_scales_of_values(
    kind: Any, a: Any, m: Any, page_size: Any, values: Any, slot: Any, n: Any, low: Any, high: Any
) -> Any:
    shift = 0 if kind.codes.name == "Q8_0" else 1

    def floats(
        kind: Any, a: Any, m: Any, page_size: Any, values: Any, slot: Any, n: Any, low: Any, high: Any
    ) -> Any:
        pass

    def ints(
        kind: Any, a: Any, m: Any, page_size: Any, values: Any, slot: Any, n: Any, low: Any, high: Any
    ) -> Any:
        at = values + ((padded_dim(a) * page_size) >> shift) + 2 * slot
        for g in range(padded_dim(a) // GROUP):
            out = m.relative + 4 * BLOCK * g
            peak = constant(0.0)
            for j in range(0, n, LANES):
                x = keep_lanes(loadv_f16(at + 2 * j), low - j, high - j, np.float32(0.0))
                storev_f32(out + 4 * j, x)
                peak = maximum(absolute(x), peak)
            largest = lane_max(peak)
            factor = splat_f32(np.float32(LIMIT) / largest if largest > 0 else np.float32(0.0))
            for j in range(0, 4 * n, 4 * LANES):
                storev_f32(out + j, loadv_f32(out + j) * factor)
            store_f32(m.largest + 4 * g, largest / np.float32(LIMIT))
            at += 2 * page_size

    return floats if kind.codes.name in SIZES else ints


# --- values ----------------------------------------------------------------------------------------------


def _add_values(
    kind: Codes, a: Any, m: Scratch, rows: Any, sums: Any, values: int, slot: int, n: int
) -> None:
    """sums = sums · fading + weights · values for the queries whose float32 [dim] sums lie at `sums`."""
    raise TypeError("for compiled code")


@overload(_add_values, jit_options={"forceinline": True})
def _choose_add_values(
    kind: Any, a: Any, m: Any, rows: Any, sums: Any, values: Any, slot: Any, n: Any
) -> Any:
    size = SIZES.get(kind.codes.name, 0)

    def floats(kind: Any, a: Any, m: Any, rows: Any, sums: Any, values: Any, slot: Any, n: Any) -> Any:
        dim = padded_dim(a)
        for d in range(0, dim, TILE):
            total = load_tile(sums, 4 * LANES, m.fading)
            at = values + (slot * dim + d) * size
            for j in range(0, 4 * n, 4):
                vectors = load_floats(kind, at), load_floats(kind, at + LANES * size)
                total = multiply_tile(total, vectors, rows, j)
                at += dim * size
            store_tile(total, sums, 4 * LANES)
            sums = advanced(sums, 4 * TILE)

    def bytes_(kind: Any, a: Any, m: Any, rows: Any, sums: Any, values: Any, slot: Any, n: Any) -> Any:
        dim = padded_dim(a)
        stride, factor_stride = 2 * dim, 4 * (dim // GROUP)
        for g in range(dim // GROUP):
            for d in range(0, GROUP, TILE):
                products = int_tile(rows)
                at = values + slot * dim + 2 * (g * GROUP + d)
                for j in range(0, 2 * n, 4):
                    products = multiply_tile(products, load_byte_pairs(at), rows, j)
                    at += stride
                total = load_tile(sums, 4 * LANES, m.fading)
                total = add_scaled(total, products, m.factors + 4 * g, factor_stride)
                store_tile(total, sums, 4 * LANES)
                sums = advanced(sums, 4 * TILE)
            rows = advanced(rows, 2 * BLOCK)

    def nibbles(kind: Any, a: Any, m: Any, rows: Any, sums: Any, values: Any, slot: Any, n: Any) -> Any:
        dim = padded_dim(a)
        factor_stride = 4 * (dim // GROUP)
        for g in range(dim // GROUP):
            for d in range(0, GROUP // 2, LANES):
                products = int_tile(rows)
                at = values + (slot // 2) * dim + g * GROUP + 2 * d
                for j in range(0, 2 * n, 4):
                    products = multiply_tile(products, load_nibble_pairs(at), rows, j)
                    at += dim
                out = advanced(sums, 4 * d)
                total = load_tile(out, 64, m.fading)
                total = add_scaled(total, products, m.factors + 4 * g, factor_stride)
                store_tile(total, out, 64)
            sums = advanced(sums, 4 * GROUP)
            rows = advanced(rows, 2 * BLOCK)

    return floats if size else {"Q8_0": bytes_, "Q4_0": nibbles}[kind.codes.name]


def _weights_of(kind: Codes, a: Any, m: Scratch) -> Any:
    """Address of the first query's weights and the bytes to the next one's."""
    raise TypeError("for compiled code")


@overload(_weights_of, jit_options={"forceinline": True})
def _choose_weights_of(kind: Any, a: Any, m: Any) -> Any:
    def floats(kind: Any, a: Any, m: Any) -> Any:
        return m.scores, 4 * BLOCK

    def ints(kind: Any, a: Any, m: Any) -> Any:
        return m.weights, padded_dim(a) // GROUP * BLOCK * 2

    return floats if kind.codes.name in SIZES else ints


# --- blocks ----------------------------------------------------------------------------------------------


@jit
def _block(
    kind: Codes,
    a: Any,
    m: Scratch,
    page_size: int,
    n_queries: int,
    keys: int,
    values: int,
    first: int,
    n: int,
    begin: int,
    end: int,
) -> None:
    """All of the tile's queries over the n keys at positions first …; begin and end bound what is in use."""
    slot, dim = first % page_size, padded_dim(a)
    _scales_of_values(kind, a, m, page_size, values, slot, n, begin - first, end - first)
    width, sums_width = query_bytes(kind) * dim, 4 * dim
    weights, weights_width = _weights_of(kind, a, m)
    w1, w2, w3 = weights + weights_width, weights + 2 * weights_width, weights + 3 * weights_width
    o0 = m.scores
    o1, o2, o3 = o0 + 4 * BLOCK, o0 + 8 * BLOCK, o0 + 12 * BLOCK
    for i in range(0, n_queries, ROWS):
        count = min(ROWS, n_queries - i)
        q0, s0 = m.q + i * width, m.sums + i * sums_width
        q1, q2, q3 = q0 + width, q0 + 2 * width, q0 + 3 * width
        s1, s2, s3 = s0 + sums_width, s0 + 2 * sums_width, s0 + 3 * sums_width
        if count == 4:
            _score(kind, a, page_size, (q0, q1, q2, q3), (o0, o1, o2, o3), keys, slot, n)
        elif count == 3:
            _score(kind, a, page_size, (q0, q1, q2), (o0, o1, o2), keys, slot, n)
        elif count == 2:
            _score(kind, a, page_size, (q0, q1), (o0, o1), keys, slot, n)
        else:
            _score(kind, a, page_size, (q0,), (o0,), keys, slot, n)
        for row in range(count):
            highest = _shape_scores(a, m, i + row, row, first, n)
            _weigh(kind, a, m, i + row, row, highest, n)
        if count == 4:
            _add_values(kind, a, m, (weights, w1, w2, w3), (s0, s1, s2, s3), values, slot, n)
        elif count == 3:
            _add_values(kind, a, m, (weights, w1, w2), (s0, s1, s2), values, slot, n)
        elif count == 2:
            _add_values(kind, a, m, (weights, w1), (s0, s1), values, slot, n)
        else:
            _add_values(kind, a, m, (weights,), (s0,), values, slot, n)


@jit
def attend_tile(
    kind: Codes, a: Any, s: Any, m: Scratch, n_queries: int, sequence: int, kv_head: int, begin: int, end: int
) -> None:
    """The tile's queries over positions begin … end-1 of a sequence; `prepare_query` made the queries."""
    at = begin // 32 * 32
    while at < end:
        n = min(BLOCK, s.page_size - at % s.page_size, (end - at + 31) // 32 * 32)
        keys, values = pieces(kind, a, s, sequence, at, kv_head)
        _block(kind, a, m, s.page_size, n_queries, keys, values, at, n, begin, end)
        at += n
