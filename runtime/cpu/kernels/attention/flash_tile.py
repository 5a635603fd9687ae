"""Attention of a tile of queries over the blocks of one sequence's cache.

The tile's queries all read the same kv head: some rows, times the heads of its group. Block by block of up to
64 keys, four queries at a time meet the keys in register tiles (simd/attention_tile.py), their scores become
weights (attention_weights.py), and the weights meet the values (Dao et al. 2022, "FlashAttention"). Memory
does not grow with the context.

A quantised cache is computed with in int16: queries become int16 with one scale a head, weights with one
scale for each query, block and 32 dimensions (the values' scales are multiplied into the weights), which
adds next to nothing to the error of the codes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from .....quant.jit.jit import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd import (
    absolute,
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
    store_i64,
    storev_f32,
    to_i32,
)
from ...abi.sizes import FLOAT_BYTES, KEY_BLOCK, ROWS, Scratch
from ...simd.attention_tile import (
    STEPS,
    WIDTH,
    add_key_products,
    add_scaled,
    add_value_products,
    advanced,
    float_tile,
    int_tile,
    load_tile,
    same_for_each,
    scale_tile,
    store_highest,
    store_scores,
    store_tile,
)
from ...simd.dot8 import Codes
from ...simd.dot16 import storev_i16
from ...simd.tile_sizes import GROUP
from ..common.vector_math import constant
from .kv_cache import limit_of, padded_dim, pieces
from .softmax import LIMIT, LOG2_E, LOWEST, score_rows, slot_of, soften, weigh_scales, weight_rows

TILE = WIDTH * LANES  # keys, or dimensions of values

# How many queries a register tile may have. Fewer heights compile faster; what lacks is computed in vain,
# which for one or two queries that share a key still keeps up with memory.
FULL = (ROWS,)
ANY = (3, ROWS)


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

    return floats if kind.value.name in FLOAT_BYTES else ints


@jit
def prepare_query(kind: Codes, a: Any, m: Scratch, i: int, x: int, position: int) -> None:
    """Make query i of the tile, which looks from a position, of float32 [dim] at `x`."""
    unit = _prepare_query(kind, a, x, m.q + i * query_bytes(kind) * padded_dim(a))
    scale = a.scale if a.softcap > 0 else a.scale * LOG2_E
    store_f32(m.units + 4 * i, np.float32(unit * scale))
    store_i64(m.seen + 16 * i, max(0, position - a.window + 1) if a.window > 0 else 0)
    store_i64(m.seen + 16 * i + 8, position + 1)


@jit
def begin_sums(a: Any, m: Scratch, i: int, head: int) -> None:
    """Query i has seen nothing yet, but the sink of its head; -1: not that either."""
    peak, norm = LOWEST, np.float32(0.0)
    if a.sinks != 0 and head >= 0:
        peak, norm = load_f32(a.sinks + 4 * head), np.float32(1.0)
    store_f32(m.peaks + slot_of(i), peak)
    store_f32(m.norms + slot_of(i), norm)
    for d in range(0, 4 * padded_dim(a), 4 * LANES):
        storev_f32(m.sums + 4 * i * padded_dim(a) + d, constant(0.0))


def query_bytes(kind: Codes) -> int:
    """Bytes of a query's element; a constant in compiled code."""
    raise TypeError("for compiled code")


@overload(query_bytes, jit_options={"forceinline": True})
def _choose_query_bytes(kind: Any) -> Any:
    size = 4 if kind.value.name in FLOAT_BYTES else 2

    def constant_size(kind: Any) -> Any:
        return size

    return constant_size


class Block(NamedTuple):
    """Some keys of a page in a row, and what comes after them."""

    first: int  # position of the first
    n: int
    slot: int  # of the first in its page
    page_size: int
    keys: int  # addresses of the page's pieces
    values: int
    next_keys: int  # those of the next block's page
    next_values: int


@jit
def attend_tile(
    kind: Codes,
    heights: tuple,
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

    `prepare_query` and `begin_sums` made the queries; `heights` is FULL or ANY.
    """
    at = begin // 32 * 32
    keys, values = pieces(kind, a, s, sequence, at, kv_head)
    while at < end:
        slot = at % s.page_size
        n = min(KEY_BLOCK, s.page_size - slot, (end - at + 31) // 32 * 32)
        # The next block is fetched while this one is used: pages lie anywhere, so that no CPU foresees it.
        next_keys, next_values = keys, values
        if at + n < length:
            next_keys, next_values = pieces(kind, a, s, sequence, at + n, kv_head)
        if limit_of(kind) != 0:
            scales = _codes_bytes(kind, a, s.page_size)
            for line in range(scales, scales + padded_dim(a) // 16 * s.page_size, 64):
                prefetch(next_keys + line)
                prefetch(next_values + line)
            weigh_scales(a, m, values + scales + 2 * slot, s.page_size, n, begin - at, end - at)
        b = Block(at, n, slot, s.page_size, keys, values, next_keys, next_values)
        for i in range(0, n_queries, ROWS):
            count = min(ROWS, n_queries - i)
            _score(kind, heights, a, m, b, i, count)
            soften(kind, a, m, i, count, at, n)
            _add(kind, heights, a, m, b, i, count)
        keys, values = next_keys, next_values
        at += n


def _codes_bytes(kind: Codes, a: Any, page_size: int) -> int:
    """Bytes of the codes of a page's keys or values, behind which its scales lie."""
    raise TypeError("for compiled code")


@overload(_codes_bytes, jit_options={"forceinline": True})
def _choose_codes_bytes(kind: Any, a: Any, page_size: Any) -> Any:
    shift = 0 if kind.value.name == "Q8_0" else 1

    def all_codes(kind: Any, a: Any, page_size: Any) -> Any:
        return (padded_dim(a) * page_size) >> shift

    return all_codes


# --- scores ----------------------------------------------------------------------------------------------


def _score(kind: Codes, heights: tuple, a: Any, m: Scratch, b: Block, i: int, count: int) -> None:
    """Scores of `count` queries from i on, and the largest of each."""
    raise TypeError("for compiled code")


@overload(_score, jit_options={"forceinline": True})
def _choose_score(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
    def full(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
        width = query_bytes(kind) * padded_dim(a)
        q = m.q + i * width
        _score_rows(kind, a, m, b, i, (q, q + width, q + 2 * width, q + 3 * width))

    def fitting(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
        width = query_bytes(kind) * padded_dim(a)
        q = m.q + i * width
        if count == 4:
            _score_rows(kind, a, m, b, i, (q, q + width, q + 2 * width, q + 3 * width))
        else:
            _score_rows(kind, a, m, b, i, (q, q + width, q + 2 * width))

    return full if heights.count == 1 else fitting


def _score_rows(kind: Codes, a: Any, m: Scratch, b: Block, i: int, rows: tuple) -> None:
    """Scores of the queries at the addresses `rows`, i the first of them."""
    raise TypeError("for compiled code")


@overload(_score_rows, jit_options={"forceinline": True})
def _choose_score_rows(kind: Any, a: Any, m: Any, b: Any, i: Any, rows: Any) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)
    turns = GROUP // 2 // STEPS
    shift = 0 if kind.value.name == "Q8_0" else 1

    def floats(kind: Any, a: Any, m: Any, b: Any, i: Any, rows: Any) -> Any:
        highest = same_for_each(splat_f32(LOWEST), rows)
        at, ahead, outs = b.keys + b.slot * size, b.next_keys, score_rows(m, rows)
        for _ in range(0, b.n, TILE):
            tile = float_tile(rows)
            tile = add_key_products(tile, kind, rows, at, b.page_size * size, a.head_dim // STEPS, ahead)
            highest = store_scores(tile, outs, 4 * LANES, m.units + 4 * i, highest)
            at, ahead, outs = at + TILE * size, ahead + TILE * size * a.head_dim, advanced(outs, 4 * TILE)
        store_highest(highest, m.highest)

    def ints(kind: Any, a: Any, m: Any, b: Any, i: Any, rows: Any) -> Any:
        highest = same_for_each(splat_f32(LOWEST), rows)
        stride = 2 * b.page_size
        piece, fetch = (GROUP * b.page_size) >> shift, (GROUP * TILE) >> shift
        start, ahead, outs = b.keys + 2 * b.slot, b.next_keys, score_rows(m, rows)
        for j in range(0, 2 * b.n, 2 * TILE):
            at, numbers, tile = start + j, rows, float_tile(rows)
            scale = at + _codes_bytes(kind, a, b.page_size)
            for _ in range(padded_dim(a) // GROUP):
                sums = add_key_products(int_tile(rows), kind, numbers, at, stride, turns, ahead)
                tile = scale_tile(tile, sums, loadv_f16(scale), loadv_f16(scale + 2 * LANES))
                at, ahead, scale = at + piece, ahead + fetch, scale + stride
                numbers = advanced(numbers, 2 * GROUP)
            highest = store_scores(tile, outs, 4 * LANES, m.units + 4 * i, highest)
            outs = advanced(outs, 4 * TILE)
        store_highest(highest, m.highest)

    return floats if size else ints


# --- values ----------------------------------------------------------------------------------------------


def _add(kind: Codes, heights: tuple, a: Any, m: Scratch, b: Block, i: int, count: int) -> None:
    """sums = sums · fading + weights · values for `count` queries from i on."""
    raise TypeError("for compiled code")


@overload(_add, jit_options={"forceinline": True})
def _choose_add(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
    def full(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
        width = 4 * padded_dim(a)
        out = m.sums + i * width
        _add_rows(kind, a, m, b, (out, out + width, out + 2 * width, out + 3 * width))

    def fitting(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
        width = 4 * padded_dim(a)
        out = m.sums + i * width
        if count == 4:
            _add_rows(kind, a, m, b, (out, out + width, out + 2 * width, out + 3 * width))
        else:
            _add_rows(kind, a, m, b, (out, out + width, out + 2 * width))

    return full if heights.count == 1 else fitting


def _add_rows(kind: Codes, a: Any, m: Scratch, b: Block, outs: tuple) -> None:
    """The same for the queries whose float32 [dim] sums lie at `outs`."""
    raise TypeError("for compiled code")


@overload(_add_rows, jit_options={"forceinline": True})
def _choose_add_rows(kind: Any, a: Any, m: Any, b: Any, outs: Any) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)
    # A tile's columns are neighbours, or the two halves of the same bytes.
    nibbles = kind.value.name == "Q4_0"
    shift, gap, skip = (1, 64, 4 * LANES) if nibbles else (0, 4 * LANES, 4 * TILE)

    def floats(kind: Any, a: Any, m: Any, b: Any, outs: Any) -> Any:
        dim = padded_dim(a)
        rows, ahead = score_rows(m, outs), b.next_values
        for at in range(0, dim * size, TILE * size):
            tile = load_tile(outs, gap, m.fading)
            where = b.values + b.slot * dim * size + at
            tile = add_value_products(tile, kind, rows, where, dim * size, b.n // STEPS, ahead)
            store_tile(tile, outs, gap)
            outs, ahead = advanced(outs, skip), ahead + b.n * TILE * size

    def ints(kind: Any, a: Any, m: Any, b: Any, outs: Any) -> Any:
        dim = padded_dim(a)
        stride = (2 * dim) >> shift
        rows, ahead, at = weight_rows(a, m, outs), b.next_values, b.values + ((b.slot * dim) >> shift)
        for g in range(dim // GROUP):
            some = outs
            for _ in range(0, GROUP, TILE):
                sums = add_value_products(int_tile(rows), kind, rows, at, stride, b.n // 2 // STEPS, ahead)
                tile = load_tile(some, gap, m.fading)
                store_tile(add_scaled(tile, sums, m.factors + 64 * g), some, gap)
                some, at = advanced(some, skip), at + ((2 * TILE) >> shift)
                ahead += (b.n * TILE) >> shift
            outs, rows = advanced(outs, 4 * GROUP), advanced(rows, 2 * KEY_BLOCK)

    return floats if size else ints
