"""Prefill attention over the paged KV cache: rows of any sequences, causal or in both directions.

`KV_STORES` writes the keys and values of the step to the cache first. In a step of few rows the context is
split (split-KV), so that there is work for every thread: `PREFILL_ATTENTIONS` computes each split as an
attention of its own, `merge_rows` merges the partial results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.simd.memory import load_f32, load_i32, store_f32
from ...abi.sizes import CACHE_TYPES, MAX_QUERIES, MAX_SPLITS, MIN_SPLIT, scratch_at
from ...simd.dot8 import Codes
from ..common.access import step_at
from ..common.partition import partition_rows
from .flash_tile import FULL, attend_tile, prepare_query, reset_sums
from .kv_cache import arguments_at, kinds, padded_dim
from .kv_store import copy_padded
from .partials import merge_heads, partial, store_partial
from .rotation import rotate_back
from .softmax import slot_offset

SPLIT = 256  # tokens of a split at least
ALONE = 16  # rows of a step up to which each has tiles of its own, as in a decode step


@jit
def _alone(a: Any, s: Any) -> bool:
    """Whether each row of the step has tiles of its own."""
    return a.partials != 0 and s.n_rows <= ALONE


@jit
def visible_end(a: Any, row: int, position: int) -> Any:
    """The position behind the last one that a row sees."""
    if a.ends == 0:
        return position + 1
    end = np.int64(load_i32(a.ends + 4 * row))
    return min(end, position + a.window) if a.window > 0 else end


@jit
def run_of_rows(a: Any, s: Any, row: int, queries: int) -> Any:
    """The rows from number `row` on that share a tile: (how many, sequence, lowest position of a row, highest
    position that a row sees).

    They are consecutive rows of one sequence, as many as have room in a tile of `queries` queries with the
    heads of a group. In steps of a few rows with `partials` each row is alone: what follows it would change
    the roundings of its tile, and checked drafts would not be what decode steps give.
    """
    sequence = load_i32(s.sequences + 4 * row)
    lowest = np.int64(load_i32(s.positions + 4 * row))
    highest = visible_end(a, row, lowest) - 1
    n, most = 1, min(queries // min(a.heads // a.kv_heads, queries), s.n_rows - row)
    if _alone(a, s):
        most = 1
    while n < most and load_i32(s.sequences + 4 * (row + n)) == sequence:
        position = np.int64(load_i32(s.positions + 4 * (row + n)))
        lowest, highest = min(lowest, position), max(highest, visible_end(a, row + n, position) - 1)
        n += 1
    return n, sequence, lowest, highest


@jit
def _splits(a: Any, s: Any, lowest: int, highest: int) -> Any:
    """Split-KV of a run: (first visible position, tokens of a split, first split, last split).

    Split i covers positions i · length … (i + 1) · length - 1; without `partials` there is only one. They
    depend on the positions alone, so that results do not depend on the number of threads.
    """
    begin = max(0, lowest - a.window + 1) if a.window > 0 else 0
    if a.partials == 0:
        return begin, highest + 1, 0, 0
    length = MIN_SPLIT if _alone(a, s) else SPLIT
    while length * MAX_SPLITS < highest + 1 - begin:
        length *= 2
    return begin, length, begin // length, highest // length


@jit
def rows_for_others(a: Any, s: Any, row: int, tiles: bool) -> int:
    """How many rows of a sequence, of which number `row` is the first in the step, another kernel takes.

    Where there are matrix tiles, they take sequences of `tile_rows` rows and more; `tiles`: for their kernel.
    """
    if a.tile_rows == 0:
        return 0
    sequence, n = load_i32(s.sequences + 4 * row), 1
    while row + n < s.n_rows and load_i32(s.sequences + 4 * (row + n)) == sequence:
        n += 1
    return n if (n < a.tile_rows) == tiles else 0


def _prefill_kernel(key_kind: Codes, value_kind: Codes) -> EntryPoint:
    """The kernel for one cache type."""

    @kernel
    def prefill_attention(arguments: int, step: int, thread: int) -> None:
        """out [rows, heads · value_dim] = softmax(scale · q · keysᵀ) · values over the visible positions.

        A tile is up to MAX_QUERIES queries: consecutive rows of a sequence, times heads of one kv head's
        group. Threads take the tiles, or with `partials` the splits of their contexts, in turn.
        """
        a, s = arguments_at(arguments), step_at(step)
        group = a.heads // a.kv_heads
        tile_heads = min(group, MAX_QUERIES)
        parts = (group + tile_heads - 1) // tile_heads
        m = scratch_at(a.scratch + thread * a.scratch_stride, MAX_QUERIES, padded_dim(a))
        task, row, dim, before = 0, 0, padded_dim(a), -1
        while row < s.n_rows:
            if load_i32(s.sequences + 4 * row) != before:
                before = load_i32(s.sequences + 4 * row)
                others = rows_for_others(a, s, row, False)
                if others > 0:
                    row += others
                    continue
            n, sequence, lowest, highest = run_of_rows(a, s, row, MAX_QUERIES)
            begin, length, first, last = _splits(a, s, lowest, highest)
            splits = last - first + 1
            for part in range(a.kv_heads * parts * splits):
                task += 1
                if task % s.n_threads != thread:
                    continue
                split, kv_head = first + part % splits, part // splits // parts
                head = kv_head * group + part // splits % parts * tile_heads
                heads = min(tile_heads, kv_head * group + group - head)
                for i in range(n * heads):
                    t, h = row + i // heads, head + i % heads
                    copy_padded(a.q + t * a.q_stride + 4 * h * a.head_dim, m.staging, a.head_dim, dim)
                    position = np.int64(load_i32(s.positions + 4 * t))
                    prepare_query(
                        key_kind, a, m, i, kv_head, m.staging, position, visible_end(a, t, position)
                    )
                    reset_sums(a, m, i, h if a.partials == 0 else -1)
                low, high = max(begin, split * length), min(highest + 1, (split + 1) * length)
                end, queries = highest + 1, n * heads
                attend_tile(key_kind, value_kind, FULL, a, s, m, queries, sequence, kv_head, low, high, end)
                for i in range(n * heads):
                    t, h = row + i // heads, head + i % heads
                    if a.partials != 0:
                        partials = a.partials + t * a.partials_stride
                        store_partial(a, m, i, partial(a, partials, split - first, h))
                        continue
                    out = a.out + t * a.out_stride + 4 * h * a.value_dim
                    factor = np.float32(1.0) / load_f32(m.denominators + slot_offset(i))
                    for d in range(0, 4 * a.value_dim, 4):
                        store_f32(out + d, load_f32(m.sums + 4 * i * dim + d) * factor)
                    rotate_back(a, out)
            row += n

    return prefill_attention


@kernel
def merge_rows(arguments: int, step: int, thread: int) -> None:
    """out [rows, heads · value_dim] from the partial results of PREFILL_ATTENTIONS.

    Threads partition the rows.
    """
    a, s = arguments_at(arguments), step_at(step)
    begin, end = partition_rows(s.n_rows, thread, s)
    row = 0
    while row < end:
        n, _, lowest, highest = run_of_rows(a, s, row, MAX_QUERIES)
        _, _, first, last = _splits(a, s, lowest, highest)
        for t in range(max(row, begin), min(row + n, end)):
            merge_heads(a, a.partials + t * a.partials_stride, last - first + 1, a.out + t * a.out_stride)
        row += n


PREFILL_ATTENTIONS = {name: _prefill_kernel(*kinds(name)) for name in CACHE_TYPES}
