"""Scores of queries against a block of keys, in register tiles of up to ROWS queries and TILE keys."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba.extending import overload

from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import splat_f32
from .....quant.jit.simd.memory import loadv_f16
from ...abi.sizes import FLOAT_BYTES, KEY_BLOCK, Scratch
from ...simd.attention_tile import (
    add_key_products,
    add_pair_products,
    advanced,
    float_tile,
    int_tile,
    same_for_each,
    scale_tile,
    store_highest,
    store_scores,
)
from ...simd.cache_vectors import STEPS, WIDTH
from ...simd.dot8 import Codes
from ...simd.tile_sizes import GROUP
from .kv_cache import codes_bytes, padded_dim, query_bytes, unpacks
from .softmax import LOWEST, score_rows

TILE = WIDTH * LANES  # keys, or dimensions of values, of a register tile


class Block(NamedTuple):
    """A run of keys within one page, and the page of the run that follows."""

    first: int  # position of the first key
    n: int  # keys
    slot: int  # slot of the first key in its page
    page_size: int  # tokens
    keys: int  # address of the page's piece of keys
    values: int  # address of its piece of values
    next_keys: int  # the same addresses for the next run
    next_values: int


def score_tile(kind: Codes, heights: tuple, a: Any, m: Scratch, b: Block, i: int, count: int) -> None:
    """Scores of `count` queries from number i on against a block of keys.

    Writes `m.scores`, and the largest score of each query to `m.block_maxima`. `heights` are the heights of
    register tiles to compile.
    """
    raise TypeError("for compiled code")


@overload(score_tile, jit_options={"forceinline": True})
def _choose_score_tile(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
    def full(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
        width = query_bytes(kind) * padded_dim(a)
        q = m.q + i * width
        _score_rows(kind, a, m, b, i, (q, q + width, q + 2 * width, q + 3 * width))

    def full_unpacked(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
        width = query_bytes(kind) * padded_dim(a)
        q = m.q + i * width
        _score_unpacked(kind, a, m, b, i, (q, q + width, q + 2 * width, q + 3 * width))

    def fitting(kind: Any, heights: Any, a: Any, m: Any, b: Any, i: Any, count: Any) -> Any:
        width = query_bytes(kind) * padded_dim(a)
        q = m.q + i * width
        if count == 4:
            _score_rows(kind, a, m, b, i, (q, q + width, q + 2 * width, q + 3 * width))
        else:
            _score_rows(kind, a, m, b, i, (q, q + width, q + 2 * width))

    if unpacks(kind, heights):
        return full_unpacked
    return full if heights.count == 1 else fitting


@jit
def _score_unpacked(kind: Codes, a: Any, m: Scratch, b: Block, i: int, rows: tuple) -> None:
    """The same for as many queries as `rows` has members, the addresses of the prepared queries, and for keys
    that `unpack_keys` unpacked."""
    highest, outs = same_for_each(splat_f32(LOWEST), rows), score_rows(m, rows)
    scales = b.keys + codes_bytes(kind, a, b.page_size) + 2 * b.slot
    for j in range(0, b.n, TILE):
        at, scale, scalars, tile = m.unpacked_keys + 4 * j, scales + 2 * j, rows, float_tile(rows)
        for _ in range(padded_dim(a) // GROUP):
            sums = add_pair_products(int_tile(rows), scalars, at, 4 * KEY_BLOCK)
            tile = scale_tile(tile, sums, loadv_f16(scale), loadv_f16(scale + 2 * LANES))
            at, scale = at + GROUP * 2 * KEY_BLOCK, scale + 2 * b.page_size
            scalars = advanced(scalars, 2 * GROUP)
        highest = store_scores(tile, outs, 4 * LANES, m.score_scales + 4 * i, highest)
        outs = advanced(outs, 4 * TILE)
    store_highest(highest, m.block_maxima)


def _score_rows(kind: Codes, a: Any, m: Scratch, b: Block, i: int, rows: tuple) -> None:
    """The same for as many queries as `rows` has members, the addresses of the prepared queries."""
    raise TypeError("for compiled code")


@overload(_score_rows, jit_options={"forceinline": True})
def _choose_score_rows(kind: Any, a: Any, m: Any, b: Any, i: Any, rows: Any) -> Any:
    size = FLOAT_BYTES.get(kind.value.name, 0)
    iterations = GROUP // 2 // STEPS
    shift = 0 if kind.value.name == "Q8_0" else 1

    def floats(kind: Any, a: Any, m: Any, b: Any, i: Any, rows: Any) -> Any:
        highest = same_for_each(splat_f32(LOWEST), rows)
        at, ahead, outs = b.keys + b.slot * size, b.next_keys, score_rows(m, rows)
        for _ in range(0, b.n, TILE):
            tile = float_tile(rows)
            tile = add_key_products(tile, kind, rows, at, b.page_size * size, a.head_dim // STEPS, ahead)
            highest = store_scores(tile, outs, 4 * LANES, m.score_scales + 4 * i, highest)
            at, ahead, outs = at + TILE * size, ahead + TILE * size * a.head_dim, advanced(outs, 4 * TILE)
        store_highest(highest, m.block_maxima)

    def ints(kind: Any, a: Any, m: Any, b: Any, i: Any, rows: Any) -> Any:
        highest = same_for_each(splat_f32(LOWEST), rows)
        stride = 2 * b.page_size
        piece, fetch = (GROUP * b.page_size) >> shift, (GROUP * TILE) >> shift
        start, ahead, outs = b.keys + 2 * b.slot, b.next_keys, score_rows(m, rows)
        for j in range(0, 2 * b.n, 2 * TILE):
            at, scalars, tile = start + j, rows, float_tile(rows)
            scale = at + codes_bytes(kind, a, b.page_size)
            for _ in range(padded_dim(a) // GROUP):
                sums = add_key_products(int_tile(rows), kind, scalars, at, stride, iterations, ahead)
                tile = scale_tile(tile, sums, loadv_f16(scale), loadv_f16(scale + 2 * LANES))
                at, ahead, scale = at + piece, ahead + fetch, scale + stride
                scalars = advanced(scalars, 2 * GROUP)
            highest = store_scores(tile, outs, 4 * LANES, m.score_scales + 4 * i, highest)
            outs = advanced(outs, 4 * TILE)
        store_highest(highest, m.block_maxima)

    return floats if size else ints
