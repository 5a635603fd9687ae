"""Attention of prompts in matrix tiles, as `prefill` computes it in vectors: FlashAttention with queries,
keys, softmax numerators and values in bfloat16, products and sums in float32.

A tile is 16 queries: consecutive rows of a sequence, times heads of one kv head's group. Keys and values of
RUNS runs of 32 tokens are unpacked (`tile_unpack`) for up to TILE_QUERIES queries, which meet them two tiles
at a time: scores, a step of the online softmax (`tile_softmax`), weighted sums of values. The blocks of keys
begin at multiples of RUNS · RUN, so that results depend neither on what queries share a tile nor on the
number of threads. What bfloat16 is too coarse for is split in two, whose three larger products are added.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.simd.arithmetic import lane_sum, splat_f32
from .....quant.jit.simd.memory import load_f32, load_i32, loadv_f32, store_f32, store_i64, storev_f32
from ...abi.sizes import CACHE_TYPES
from ...abi.tile_scratch import (
    KEY_PARTS,
    RUN,
    RUNS,
    TILE_QUERIES,
    VALUE_PARTS,
    TileScratch,
    tile_scratch_at,
)
from ...simd.amx import AMX, TileUnit, tile_functions
from ...simd.amx_operands import high_part, store_row
from ...simd.amx_sizes import BLOCK_ROWS, ROWS, TILE
from ...simd.dot8 import Codes
from ...simd.tile_sizes import GROUP, VECTOR
from ..common.access import step_at
from .kv_cache import arguments_at, kinds, padded_dim, pieces
from .kv_store import copy_padded
from .prefill import rows_for_others, run_of_rows, visible_end
from .rotation import rotate_back, turn_query
from .softmax import LOG2_E, initial_softmax
from .tile_softmax import PAIR, reset_query, update_tile
from .tile_unpack import unpack_keys, unpack_values

TASKS = 3  # tiles of queries for each thread at least, if that is possible with fewer queries in a tile
UNSEEN = 1 << 40  # a position behind all others


@jit
def _tile_queries(a: Any, s: Any) -> int:
    """How many queries share unpacked keys and values: TILE_QUERIES, or fewer, to give every thread work."""
    queries = TILE_QUERIES
    while queries > BLOCK_ROWS and s.n_rows * a.heads < TASKS * s.n_threads * queries:
        queries //= 2
    return queries


@jit
def _is_own(task: int, thread: int, n_threads: int) -> bool:
    """Whether a task is the thread's: tasks are dealt to and fro, since later ones take longer."""
    turn, place = task // n_threads, task % n_threads
    return thread == (place if turn % 2 == 0 else n_threads - 1 - place)


@jit
def _set_query(a: Any, m: TileScratch, i: int, h: int, x: int, parts: int) -> None:
    """Write query number i, of kv head `h`, float32 [head_dim] at `x`, with the factor of scores, as a row of
    its tiles."""
    dim = padded_dim(a)
    copy_padded(x, m.staging, a.head_dim, dim)
    turn_query(a, m.staging, h)
    scale = splat_f32(np.float32(a.scale if a.softcap > 0 else a.scale * LOG2_E))
    at, rest = m.q + i // ROWS * parts * dim // GROUP * TILE + i % ROWS * 64, dim // GROUP * TILE
    for d in range(m.staging, m.staging + 4 * dim, 4 * GROUP):
        low, high = loadv_f32(d) * scale, loadv_f32(d + VECTOR) * scale
        if parts == 2:
            store_row(at + rest, low - high_part(low), high - high_part(high))
            low, high = high_part(low), high_part(high)
        store_row(at, low, high)
        at += TILE


@jit
def _clear_query(a: Any, m: TileScratch, i: int, parts: int) -> None:
    """Fill the place of query number i, which is none, with zeros."""
    for d in range(padded_dim(a)):
        store_f32(m.staging + 4 * d, np.float32(0.0))
    _set_query(a, m, i, 0, m.staging, parts)
    store_i64(m.visible + 16 * i, 0)
    store_i64(m.visible + 16 * i + 8, UNSEEN)
    reset_query(a, m, i, np.float32(0.0), np.float32(1.0))


@jit
def _write_output(a: Any, m: TileScratch, i: int, out: int) -> None:
    """Write float32 [value_dim], the weighted mean of the values that query number i saw."""
    groups = (a.value_dim + GROUP - 1) // GROUP
    tile, row = i // ROWS, i % ROWS
    sums = m.sums + (tile // 2 * groups * 2 + tile % 2) * 2 * TILE + 64 * row
    factor = splat_f32(np.float32(1.0) / lane_sum(loadv_f32(m.denominators + 64 * i)))
    for d in range(0, a.value_dim, ROWS):
        value = loadv_f32(sums + d // GROUP * PAIR + d % GROUP // ROWS * TILE) * factor
        if d + ROWS <= a.value_dim:
            storev_f32(out + 4 * d, value)
        else:
            storev_f32(m.staging, value)
            for j in range(a.value_dim - d):
                store_f32(out + 4 * (d + j), load_f32(m.staging + 4 * j))


def tile_attention(key_kind: Codes, value_kind: Codes, unit: TileUnit) -> EntryPoint:
    """The kernel for one cache type, with the instructions of a unit."""
    begin, end, zero_sums, load_sums, store_sums, multiply, _ = tile_functions(unit)
    key_parts, value_parts = KEY_PARTS[key_kind.name], VALUE_PARTS[value_kind.name]

    @jit
    def add_products(state: int, x: int, second: int, w: int, n: int) -> None:
        """Add n products to the sums: of tiles at x and x + second, each followed by its next one, and pairs
        of tiles at w."""
        for _ in range(n):
            multiply(state, x, x + second, w)
            x += TILE
            w += 2 * TILE

    @jit
    def score(a: Any, m: TileScratch, tile: int, runs: int) -> None:
        """`m.scores` of tile number `tile` of queries and the next one."""
        groups = padded_dim(a) // GROUP
        part = groups * TILE
        x, w = m.q + tile * key_parts * part, m.keys
        for scores in range(m.scores, m.scores + runs * PAIR, PAIR):
            zero_sums(m.unit)
            add_products(m.unit, x, key_parts * part, w, groups)
            if key_parts == 2:
                add_products(m.unit, x + part, key_parts * part, w, groups)
                add_products(m.unit, x, key_parts * part, w + 2 * part, groups)
            store_sums(m.unit, scores)
            w += key_parts * 2 * part

    @jit
    def add_values(a: Any, m: TileScratch, tile: int, runs: int) -> None:
        """Add numerators · values to the sums of tile number `tile` of queries and the next one."""
        groups = (a.value_dim + GROUP - 1) // GROUP
        x, w, part = m.weights, m.values, RUNS * TILE
        sums = m.sums + tile // 2 * groups * PAIR
        for at in range(sums, sums + groups * PAIR, PAIR):
            load_sums(m.unit, at)
            add_products(m.unit, x, value_parts * part, w, runs)
            if value_parts == 2:
                add_products(m.unit, x + part, value_parts * part, w, runs)
                add_products(m.unit, x, value_parts * part, w + groups * 2 * part, runs)
            store_sums(m.unit, at)
            w += 2 * part

    @jit
    def attend(
        a: Any, s: Any, m: TileScratch, tiles: int, sequence: int, kv_head: int, begin: int, end_: int
    ) -> None:
        """Attend with an even number of tiles of queries to positions begin … end_ - 1 of a sequence."""
        key_groups, value_groups = padded_dim(a) // GROUP, (a.value_dim + GROUP - 1) // GROUP
        key_rest = key_groups * 2 * TILE if key_parts == 2 else 0
        value_rest = value_groups * RUNS * 2 * TILE if value_parts == 2 else 0
        for first in range(begin // (RUNS * RUN) * (RUNS * RUN), end_, RUNS * RUN):
            runs = min(RUNS, (end_ - first + RUN - 1) // RUN)
            for j in range(runs):
                at = first + j * RUN
                keys, values = pieces(key_kind, value_kind, a, s, sequence, at, kv_head)
                slot, out = at % s.page_size, m.keys + j * key_parts * key_groups * 2 * TILE
                unpack_keys(key_kind, a, s.page_size, keys, slot, key_rest, out)
                out = m.values + j * 2 * TILE
                unpack_values(value_kind, a, s.page_size, values, slot, value_rest, out)
            for tile in range(0, tiles, 2):
                score(a, m, tile, runs)
                update_tile(a, m, tile, first, runs, value_parts)
                update_tile(a, m, tile + 1, first, runs, value_parts)
                add_values(a, m, tile, runs)

    @jit
    def set_queries(
        a: Any, s: Any, m: TileScratch, row: int, n: int, kv_head: int, head: int, heads: int
    ) -> int:
        """Set the queries of n rows from number `row` on and of `heads` heads of a kv head; returns how many
        tiles."""
        for i in range(n * heads):
            t, h = row + i // heads, head + i % heads
            position = np.int64(load_i32(s.positions + 4 * t))
            _set_query(a, m, i, kv_head, a.q + t * a.q_stride + 4 * h * a.head_dim, key_parts)
            store_i64(m.visible + 16 * i, max(0, position - a.window + 1) if a.window > 0 else 0)
            store_i64(m.visible + 16 * i + 8, visible_end(a, t, position))
            maximum_score, denominator = initial_softmax(a, h)
            reset_query(a, m, i, maximum_score, denominator)
        blocks = (n * heads + BLOCK_ROWS - 1) // BLOCK_ROWS
        for i in range(n * heads, blocks * BLOCK_ROWS):
            _clear_query(a, m, i, key_parts)
        return 2 * blocks

    @kernel
    def attention(arguments: int, step: int, thread: int) -> None:
        """out [rows, heads · value_dim] = softmax(scale · q · keysᵀ) · values over the visible positions.

        Threads take turns with groups of queries.
        """
        a, s = arguments_at(arguments), step_at(step)
        group, queries = a.heads // a.kv_heads, _tile_queries(a, s)
        tile_heads = min(group, queries)
        parts = (group + tile_heads - 1) // tile_heads
        base = a.scratch + thread * a.scratch_stride
        m = tile_scratch_at(base, padded_dim(a), key_parts, value_parts)
        begin(m.unit)
        task, row, before = 0, 0, -1
        while row < s.n_rows:
            if load_i32(s.sequences + 4 * row) != before:
                before = load_i32(s.sequences + 4 * row)
                others = rows_for_others(a, s, row, True)
                if others > 0:
                    row += others
                    continue
            n, sequence, lowest, highest = run_of_rows(a, s, row, queries)
            first = max(0, lowest - a.window + 1) if a.window > 0 else 0
            for part in range(a.kv_heads * parts):
                if _is_own(task, thread, s.n_threads):
                    kv_head, head = part // parts, part // parts * group + part % parts * tile_heads
                    heads = min(tile_heads, (kv_head + 1) * group - head)
                    tiles = set_queries(a, s, m, row, n, kv_head, head, heads)
                    attend(a, s, m, tiles, sequence, kv_head, first, highest + 1)
                    for i in range(n * heads):
                        out = a.out + (row + i // heads) * a.out_stride
                        out += 4 * (head + i % heads) * a.value_dim
                        _write_output(a, m, i, out)
                        rotate_back(a, out)
                task += 1
            row += n
        end(m.unit)

    return attention


TILE_ATTENTIONS = {name: tile_attention(*kinds(name), AMX) for name in CACHE_TYPES}
