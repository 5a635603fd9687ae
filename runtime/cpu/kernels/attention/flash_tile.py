"""FlashAttention of a tile of queries over the blocks of one sequence's KV cache (Dao et al. 2022).

The queries of a tile read the same kv head: some rows of the batch, times the heads of the kv head's group.
For each block of up to KEY_BLOCK keys, ROWS queries at a time: scores (`tile_scores`), one step of the online
softmax (`softmax`), weighted sum of the values (`tile_values`). Memory does not grow with the context.

A quantised cache is computed with in int16: for its keys queries become int16 with one scale each, for its
values numerators int16 with one scale for each query, block and 32 dimensions. The error that this adds is
far below that of the codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import (
    absolute,
    lane_max,
    lane_sum,
    maximum,
    round_even,
    splat_f32,
    to_i32,
)
from .....quant.jit.simd.memory import loadv_f32, prefetch_far, store_f32, store_i64, storev_f32
from ...abi.sizes import FLOAT_BYTES, KEY_BLOCK, ROWS, Scratch
from ...simd.dot8 import Codes
from ...simd.dot16 import store_numbers
from ..common.vector_math import constant
from .block_unpack import unpack_keys, unpack_values
from .kv_cache import codes_bytes, limit_of, padded_dim, pieces, query_bytes
from .rotation import turn_query
from .softmax import LIMIT, LOG2_E, initial_softmax, normalise_value_scales, slot_offset, update_softmax
from .tile_scores import Block, score_tile
from .tile_values import add_values

# Heights of the compiled register tiles, in queries. Fewer heights compile faster, at the price of computing
# unused rows for a remainder of queries; with one or two queries that is still faster than memory.
FULL = (ROWS,)
ANY = (3, ROWS)


def _prepare_query(kind: Codes, a: Any, h: int, x: int, q: int) -> float:
    """Convert a query of kv head `h`, float32 [dim] at `x`, for products with keys: float32 or int16 [dim] to
    address `q`.

    Returns the scale of the int16 query, 1 for float32. Where keys are rotated, x is, in place.
    """
    raise TypeError("for compiled code")


@overload(_prepare_query, jit_options={"forceinline": True})
def _choose_prepare_query(kind: Any, a: Any, h: Any, x: Any, q: Any) -> Any:
    def floats(kind: Any, a: Any, h: Any, x: Any, q: Any) -> Any:
        for d in range(0, 4 * padded_dim(a), 4 * LANES):
            storev_f32(q + d, loadv_f32(x + d))
        return np.float32(1.0)

    def ints(kind: Any, a: Any, h: Any, x: Any, q: Any) -> Any:
        turn_query(a, x, h)
        peak, total = constant(0.0), constant(0.0)
        for d in range(0, 4 * padded_dim(a), 4 * LANES):
            value = loadv_f32(x + d)
            peak = maximum(absolute(value), peak)
            total = total + value * constant(0.0)
        largest = lane_max(peak)
        scale = largest / np.float32(LIMIT) + lane_sum(total)  # NaN if the query has NaN or infinity
        inverse = splat_f32(np.float32(LIMIT) / largest if largest > 0 else np.float32(0.0))
        for d in range(0, padded_dim(a), LANES):
            store_numbers(q + 2 * d, to_i32(round_even(loadv_f32(x + 4 * d) * inverse)))
        return scale

    return floats if kind.value.name in FLOAT_BYTES else ints


@jit
def prepare_query(kind: Codes, a: Any, m: Scratch, i: int, h: int, x: int, position: int, end: int) -> None:
    """Set query i of the tile: float32 [dim] at `x`, of kv head `h`, at a position of its sequence, of which
    it sees what is in front of `end`."""
    query_scale = _prepare_query(kind, a, h, x, m.q + i * query_bytes(kind) * padded_dim(a))
    scale = a.scale if a.softcap > 0 else a.scale * LOG2_E
    store_f32(m.score_scales + 4 * i, np.float32(query_scale * scale))
    store_i64(m.visible + 16 * i, max(0, position - a.window + 1) if a.window > 0 else 0)
    store_i64(m.visible + 16 * i + 8, end)


@jit
def reset_sums(a: Any, m: Scratch, i: int, head: int) -> None:
    """Reset the sums, maximum and denominator of query i; `head` as in `initial_softmax`."""
    maximum_score, denominator = initial_softmax(a, head)
    store_f32(m.maxima + slot_offset(i), maximum_score)
    store_f32(m.denominators + slot_offset(i), denominator)
    for d in range(0, 4 * padded_dim(a), 4 * LANES):
        storev_f32(m.sums + 4 * i * padded_dim(a) + d, constant(0.0))


@jit
def _prefetch_scales(kind: Codes, a: Any, piece: int, page_size: int) -> None:
    """Prefetch the scales of a piece, if its type has any."""
    if limit_of(kind) != 0:
        scales = piece + codes_bytes(kind, a, page_size)
        for line in range(scales, scales + padded_dim(a) // 16 * page_size, 64):
            prefetch_far(line)


@jit
def attend_tile(
    key_kind: Codes,
    value_kind: Codes,
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
    """Attend with the tile's queries to positions begin … end-1 of a sequence of `length` tokens.

    The queries were set by `prepare_query` and `reset_sums`; the results are `m.sums`, `m.maxima` and
    `m.denominators`. `heights` is FULL or ANY.
    """
    at = begin // 32 * 32
    keys, values = pieces(key_kind, value_kind, a, s, sequence, at, kv_head)
    while at < end:
        slot = at % s.page_size
        n = min(KEY_BLOCK, s.page_size - slot, (end - at + 31) // 32 * 32)
        # Prefetch the next block while this one is used: pages lie anywhere, so no hardware prefetcher can.
        next_keys, next_values = keys, values
        if at + n < length:
            next_keys, next_values = pieces(key_kind, value_kind, a, s, sequence, at + n, kv_head)
        _prefetch_scales(key_kind, a, next_keys, s.page_size)
        _prefetch_scales(value_kind, a, next_values, s.page_size)
        if limit_of(value_kind) != 0:
            scales = values + codes_bytes(value_kind, a, s.page_size) + 2 * slot
            normalise_value_scales(a, m, scales, s.page_size, n, begin - at, end - at)
        b = Block(at, n, slot, s.page_size, keys, values, next_keys, next_values)
        unpack_keys(key_kind, heights, a, m, b)
        unpack_values(value_kind, heights, a, m, b)
        for i in range(0, n_queries, ROWS):
            count = min(ROWS, n_queries - i)
            score_tile(key_kind, heights, a, m, b, i, count)
            update_softmax(value_kind, a, m, i, count, at, n)
            add_values(value_kind, heights, a, m, b, i, count)
        keys, values = next_keys, next_values
        at += n
