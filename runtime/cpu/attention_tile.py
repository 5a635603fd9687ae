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
    same_for_each,
    scale_tile,
    store_highest,
    store_i64,
    store_scores,
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
    prefetch,
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
    peaks: int  # float32 [n / ROWS, 16]: largest score so far
    norms: int  # float32 [n / ROWS, 16]: sum of weights
    units: int  # float32 [n]: what a query's scores are multiplied by
    seen: int  # int64 [n, 2]: first visible position, last visible position + 1
    scores: int  # float32 [ROWS, BLOCK]
    weights: int  # int32 [ROWS, dim / 32, BLOCK / 2], pairs of int16
    relative: int  # float32 [dim / 32, BLOCK]: the values' scales, the largest of a group LIMIT
    largest: int  # float32 [dim / 32]: the largest / LIMIT
    fading: int  # float32 [ROWS]: what earlier sums are multiplied by
    factors: int  # float32 [dim / 32, 16]: what integer sums are multiplied by
    highest: int  # float32 [ROWS]: largest score in this block
    origins: int  # float32 [ROWS]: the score whose weight is 1
    totals: int  # float32 [ROWS]: what this block's sum of weights is multiplied by
    stage: int  # float32 [2, dim] and 32 bytes
    end: int


@jit
def scratch_at(base: int, n: int, dim: int) -> Scratch:
    groups = dim // GROUP
    slots = (n + ROWS - 1) // ROWS * 64
    q = base
    sums = q + n * 4 * dim
    peaks = sums + n * 4 * dim
    norms = peaks + slots
    units = norms + slots
    seen = units + slots
    scores = seen + n * 16
    weights = scores + ROWS * BLOCK * 4
    relative = weights + ROWS * groups * BLOCK * 2
    largest = relative + groups * BLOCK * 4
    fading = largest + (groups + 15) // 16 * 64
    factors = fading + 64
    highest = factors + groups * 64
    origins = highest + 64
    totals = origins + 64
    stage = totals + 64
    end = stage + 8 * dim + 64
    return Scratch(
        q,
        sums,
        peaks,
        norms,
        units,
        seen,
        scores,
        weights,
        relative,
        largest,
        fading,
        factors,
        highest,
        origins,
        totals,
        stage,
        end,
    )


@jit
def slot_of(i: int) -> int:
    """Bytes from query 0's peak or norm to that of query i."""
    return i // ROWS * 64 + i % ROWS * 4


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
def _coarse_exp2(x: Any) -> Any:
    """`exp2` to 3e-6 relative, a fifth of the rounding of a 15-bit weight, by a polynomial of degree 4."""
    x = maximum(constant(-126.0), x)
    n = round_even(x)
    r = x - n
    p = fma(constant(0.009582853092036978), r, constant(0.05590642460154033))
    p = fma(p, r, constant(0.24024098610004083))
    p = fma(p, r, constant(0.6931241934169263))
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
    store_f32(m.peaks + slot_of(i), LOWEST)
    store_f32(m.norms + slot_of(i), np.float32(0.0))
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


def _score_tile(kind: Codes, a: Any, page_size: int, rows: Any, keys: int, slot: int, ahead: int) -> Any:
    """The tile q · k of the queries at `rows` and the TILE keys from `slot` of a page's piece on.

    Fetches as many bytes from `ahead` on into the cache as it reads.
    """
    raise TypeError("for compiled code")


@overload(_score_tile, jit_options={"forceinline": True})
def _choose_score_tile(kind: Any, a: Any, page_size: Any, rows: Any, keys: Any, slot: Any, ahead: Any) -> Any:
    size = SIZES.get(kind.codes.name, 0)

    def floats(kind: Any, a: Any, page_size: Any, rows: Any, keys: Any, slot: Any, ahead: Any) -> Any:
        total = float_tile(rows)
        at = keys + slot * size
        for d in range(0, 4 * a.head_dim, 4):
            vectors = load_floats(kind, at), load_floats(kind, at + LANES * size)
            total = multiply_tile(total, vectors, rows, d)
            at += page_size * size
            ahead = fetched(ahead, TILE * size)
        return total

    def bytes_(kind: Any, a: Any, page_size: Any, rows: Any, keys: Any, slot: Any, ahead: Any) -> Any:
        total = float_tile(rows)
        at, stride = keys + 2 * slot, 2 * page_size
        scale = keys + padded_dim(a) * page_size + 2 * slot
        for g in range(0, 2 * padded_dim(a), 2 * GROUP):
            sums = int_tile(rows)
            for d in range(g, g + 2 * GROUP, 8):
                sums = multiply_tile(sums, load_byte_pairs(at) + load_byte_pairs(at + stride), rows, d)
                at += 2 * stride
                ahead = fetched(ahead, 4 * TILE)
            total = scale_tile(total, sums, loadv_f16(scale), loadv_f16(scale + 2 * LANES))
            scale += stride
        return total

    def nibbles(kind: Any, a: Any, page_size: Any, rows: Any, keys: Any, slot: Any, ahead: Any) -> Any:
        total = float_tile(rows)
        at, stride = keys + 2 * slot, 2 * page_size
        scale = keys + padded_dim(a) // 2 * page_size + 2 * slot
        for g in range(0, 2 * padded_dim(a), 2 * GROUP):
            sums = int_tile(rows)
            for d in range(g, g + 2 * GROUP, 8):
                sums = multiply_tile(sums, load_two_nibble_pairs(at), rows, d)
                at += stride
                ahead = fetched(ahead, 2 * TILE)
            total = scale_tile(total, sums, loadv_f16(scale), loadv_f16(scale + 2 * LANES))
            scale += stride
        return total

    return floats if size else {"Q8_0": bytes_, "Q4_0": nibbles}[kind.codes.name]


@jit
def fetched(address: int, n: int) -> int:
    """Ask for n bytes of memory; returns the address behind them."""
    for line in range(0, n, 64):
        prefetch(address + line)
    return address + n


@jit
def _score(
    kind: Codes,
    a: Any,
    m: Scratch,
    i: int,
    page_size: int,
    rows: Any,
    outs: Any,
    keys: int,
    slot: int,
    n: int,
    ahead: int,
) -> None:
    """Scores of n keys, a multiple of TILE, to the addresses `outs`, for queries i …; and the largest."""
    part = key_bytes(kind, a) * TILE
    highest = same_for_each(splat_f32(LOWEST), rows)
    for j in range(0, n, TILE):
        tile = _score_tile(kind, a, page_size, rows, keys, slot + j, ahead)
        highest = store_scores(tile, outs, 4 * LANES, m.units + 4 * i, highest)
        outs = advanced(outs, 4 * TILE)
        ahead += part
    store_highest(highest, m.highest)


def key_bytes(kind: Codes, a: Any) -> int:
    """Bytes of a key without its scales."""
    raise TypeError("for compiled code")


@overload(key_bytes, jit_options={"forceinline": True})
def _choose_key_bytes(kind: Any, a: Any) -> Any:
    size = SIZES.get(kind.codes.name, 0)
    shift = 0 if kind.codes.name == "Q8_0" else 1

    def floats(kind: Any, a: Any) -> Any:
        return a.head_dim * size

    def ints(kind: Any, a: Any) -> Any:
        return padded_dim(a) >> shift

    return floats if size else ints


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
def _shape_scores(a: Any, m: Scratch, i: int, row: int, first: int, n: int) -> None:
    """Cap and hide the scores of query i, in place, and find the largest again, if there is need."""
    low = max(load_i64(m.seen + 16 * i) - first, 0)
    high = min(load_i64(m.seen + 16 * i + 8) - first, n)
    if low > 0 or high < n or a.softcap > 0:
        scores = m.scores + 4 * BLOCK * row
        highest = splat_f32(LOWEST)
        for j in range(0, n, LANES):
            x = loadv_f32(scores + 4 * j)
            if a.softcap > 0:
                cap = splat_f32(np.float32(a.softcap * LOG2_E))
                x = cap * tanh(x * splat_f32(np.float32(1.0 / a.softcap)))
            x = keep_lanes(x, low - j, high - j, np.float32(-np.inf))
            storev_f32(scores + 4 * j, x)
            highest = maximum(x, highest)
        store_f32(m.highest + 4 * row, lane_max(highest))


@jit
def _fade(kind: Codes, a: Any, m: Scratch, i: int) -> None:
    """Move the maxima of queries i … i + ROWS-1, all at once, and find what that makes of what they have."""
    before, highest = loadv_f32(m.peaks + slot_of(i)), loadv_f32(m.highest)
    peak = maximum(highest, before)
    fading, factor = exp2(before - peak), constant(1.0)
    if limit_of(kind) == 0:
        storev_f32(m.origins, peak)
    else:
        # Weights relative to this block's own maximum keep their bits where an earlier score is far above.
        storev_f32(m.origins, highest)
        factor = exp2(highest - peak)
        for g in range(padded_dim(a) // GROUP):
            storev_f32(m.factors + 64 * g, factor * splat_f32(load_f32(m.largest + 4 * g)))
    storev_f32(m.peaks + slot_of(i), peak)
    storev_f32(m.fading, fading)
    storev_f32(m.totals, factor)


def _weigh(kind: Codes, a: Any, m: Scratch, i: int, row: int, n: int) -> None:
    """Turn the scores of query i into weights and add them to its norm."""
    raise TypeError("for compiled code")


@overload(_weigh, jit_options={"forceinline": True})
def _choose_weigh(kind: Any, a: Any, m: Any, i: Any, row: Any, n: Any) -> Any:
    def floats(kind: Any, a: Any, m: Any, i: Any, row: Any, n: Any) -> Any:
        scores = m.scores + 4 * BLOCK * row
        origin, total = splat_f32(load_f32(m.origins + 4 * row)), constant(0.0)
        for j in range(0, 4 * n, 4 * LANES):
            p = exp2(loadv_f32(scores + j) - origin)
            storev_f32(scores + j, p)
            total = total + p
        _add_to_norm(m, i, row, lane_sum(total))

    def ints(kind: Any, a: Any, m: Any, i: Any, row: Any, n: Any) -> Any:
        scores = m.scores + 4 * BLOCK * row
        groups = padded_dim(a) // GROUP
        origin, total = splat_f32(load_f32(m.origins + 4 * row)), constant(0.0)
        weights = m.weights + row * groups * BLOCK * 2
        half = constant(0.5)
        for c in range(0, n, 32):
            for j in range(c, c + 16, LANES):
                even = _coarse_exp2(loadv_f32(scores + 4 * j) - origin)
                odd = _coarse_exp2(loadv_f32(scores + 4 * j + 64) - origin)
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
        _add_to_norm(m, i, row, lane_sum(total))

    return floats if kind.codes.name in SIZES else ints


@jit
def _add_to_norm(m: Scratch, i: int, row: int, total: float) -> None:
    norm = m.norms + slot_of(i)
    faded = load_f32(norm) * load_f32(m.fading + 4 * row)
    store_f32(norm, faded + total * load_f32(m.totals + 4 * row))


def _scales_of_values(
    kind: Codes, a: Any, m: Scratch, page_size: int, values: int, slot: int, n: int, low: int, high: int
) -> None:
    """Prepare what all queries need of the scales of a block's values; those of tokens low … high-1 count."""
    raise TypeError("for compiled code")


@overload(_scales_of_values, jit_options={"forceinline": True})
def _choose_scales_of_values(
    kind: Any, a: Any, m: Any, page_size: Any, values: Any, slot: Any, n: Any, low: Any, high: Any
) -> Any:
    def floats(
        kind: Any, a: Any, m: Any, page_size: Any, values: Any, slot: Any, n: Any, low: Any, high: Any
    ) -> Any:
        pass

    def ints(
        kind: Any, a: Any, m: Any, page_size: Any, values: Any, slot: Any, n: Any, low: Any, high: Any
    ) -> Any:
        at = values + key_bytes(kind, a) * page_size + 2 * slot
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
    kind: Codes, a: Any, m: Scratch, rows: Any, sums: Any, values: int, slot: int, n: int, ahead: int
) -> None:
    """sums = sums · fading + weights · values for the queries whose float32 [dim] sums lie at `sums`.

    Fetches as many bytes from `ahead` on into the cache as it reads.
    """
    raise TypeError("for compiled code")


@overload(_add_values, jit_options={"forceinline": True})
def _choose_add_values(
    kind: Any, a: Any, m: Any, rows: Any, sums: Any, values: Any, slot: Any, n: Any, ahead: Any
) -> Any:
    size = SIZES.get(kind.codes.name, 0)

    def floats(
        kind: Any, a: Any, m: Any, rows: Any, sums: Any, values: Any, slot: Any, n: Any, ahead: Any
    ) -> Any:
        dim = padded_dim(a)
        for d in range(0, dim, TILE):
            total = load_tile(sums, 4 * LANES, m.fading)
            at = values + (slot * dim + d) * size
            for j in range(0, 4 * n, 4):
                vectors = load_floats(kind, at), load_floats(kind, at + LANES * size)
                total = multiply_tile(total, vectors, rows, j)
                at += dim * size
                ahead = fetched(ahead, TILE * size)
            store_tile(total, sums, 4 * LANES)
            sums = advanced(sums, 4 * TILE)

    def bytes_(
        kind: Any, a: Any, m: Any, rows: Any, sums: Any, values: Any, slot: Any, n: Any, ahead: Any
    ) -> Any:
        dim = padded_dim(a)
        stride = 2 * dim
        for g in range(dim // GROUP):
            for d in range(0, GROUP, TILE):
                products = int_tile(rows)
                at = values + slot * dim + 2 * (g * GROUP + d)
                for j in range(0, 2 * n, 8):
                    vectors = load_byte_pairs(at) + load_byte_pairs(at + stride)
                    products = multiply_tile(products, vectors, rows, j)
                    at += 2 * stride
                    ahead = fetched(ahead, 4 * TILE)
                total = load_tile(sums, 4 * LANES, m.fading)
                total = add_scaled(total, products, m.factors + 64 * g, 4)
                store_tile(total, sums, 4 * LANES)
                sums = advanced(sums, 4 * TILE)
            rows = advanced(rows, 2 * BLOCK)

    def nibbles(
        kind: Any, a: Any, m: Any, rows: Any, sums: Any, values: Any, slot: Any, n: Any, ahead: Any
    ) -> Any:
        dim = padded_dim(a)
        for g in range(dim // GROUP):
            for d in range(0, GROUP // 2, LANES):
                products = int_tile(rows)
                at = values + (slot // 2) * dim + g * GROUP + 2 * d
                for j in range(0, 2 * n, 8):
                    vectors = load_nibble_pairs(at) + load_nibble_pairs(at + dim)
                    products = multiply_tile(products, vectors, rows, j)
                    at += 2 * dim
                    ahead = fetched(ahead, 2 * TILE)
                out = advanced(sums, 4 * d)
                total = load_tile(out, 64, m.fading)
                total = add_scaled(total, products, m.factors + 64 * g, 4)
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
    next_keys: int,
    next_values: int,
) -> None:
    """All of the tile's queries over the n keys at positions first …; begin and end bound what is in use."""
    slot, dim = first % page_size, padded_dim(a)
    _scales_of_values(kind, a, m, page_size, values, slot, n, begin - first, end - first)
    width, sums_width = query_bytes(kind) * dim, 4 * dim
    w0, weights_width = _weights_of(kind, a, m)
    w1, w2, w3 = w0 + weights_width, w0 + 2 * weights_width, w0 + 3 * weights_width
    o0 = m.scores
    o1, o2, o3 = o0 + 4 * BLOCK, o0 + 8 * BLOCK, o0 + 12 * BLOCK
    for i in range(0, n_queries, ROWS):
        count = min(ROWS, n_queries - i)
        q0, s0 = m.q + i * width, m.sums + i * sums_width
        q1, q2, q3 = q0 + width, q0 + 2 * width, q0 + 3 * width
        s1, s2, s3 = s0 + sums_width, s0 + 2 * sums_width, s0 + 3 * sums_width
        if count == 4:
            _score(kind, a, m, i, page_size, (q0, q1, q2, q3), (o0, o1, o2, o3), keys, slot, n, next_keys)
        elif count == 3:
            _score(kind, a, m, i, page_size, (q0, q1, q2), (o0, o1, o2), keys, slot, n, next_keys)
        elif count == 2:
            _score(kind, a, m, i, page_size, (q0, q1), (o0, o1), keys, slot, n, next_keys)
        else:
            _score(kind, a, m, i, page_size, (q0,), (o0,), keys, slot, n, next_keys)
        for row in range(count):
            _shape_scores(a, m, i + row, row, first, n)
        _fade(kind, a, m, i)
        for row in range(count):
            _weigh(kind, a, m, i + row, row, n)
        if count == 4:
            _add_values(kind, a, m, (w0, w1, w2, w3), (s0, s1, s2, s3), values, slot, n, next_values)
        elif count == 3:
            _add_values(kind, a, m, (w0, w1, w2), (s0, s1, s2), values, slot, n, next_values)
        elif count == 2:
            _add_values(kind, a, m, (w0, w1), (s0, s1), values, slot, n, next_values)
        else:
            _add_values(kind, a, m, (w0,), (s0,), values, slot, n, next_values)


@jit
def attend_tile(
    kind: Codes,
    a: Any,
    s: Any,
    m: Scratch,
    n_queries: int,
    sequence: int,
    kv_head: int,
    begin: int,
    end: int,
    length: int,
) -> None:
    """The tile's queries over positions begin … end-1 of a sequence that has `length`.

    `prepare_query` and `begin_sums` made the queries.
    """
    at = begin // 32 * 32
    keys, values = pieces(kind, a, s, sequence, at, kv_head)
    while at < end:
        n = min(BLOCK, s.page_size - at % s.page_size, (end - at + 31) // 32 * 32)
        # The next block is fetched while this one is used: pages lie anywhere, so that no CPU foresees it.
        next_keys, next_values = keys, values
        if at + n < length:
            next_keys, next_values = pieces(kind, a, s, sequence, at + n, kv_head)
            _fetch_scales(kind, a, s.page_size, next_keys, next_values)
        _block(kind, a, m, s.page_size, n_queries, keys, values, at, n, begin, end, next_keys, next_values)
        keys, values = next_keys, next_values
        at += n


@jit
def _fetch_scales(kind: Codes, a: Any, page_size: int, keys: int, values: int) -> None:
    if limit_of(kind) != 0:
        codes = key_bytes(kind, a) * page_size
        scales = padded_dim(a) // GROUP * 2 * page_size
        fetched(keys + codes, scales)
        fetched(values + codes, scales)
