"""Prefill attention over the paged KV cache: any number of rows of any sequences, causal.

`KV_STORES` writes the keys and values of the step to the cache first.
"""

from __future__ import annotations

import numpy as np

from .....quant.jit.decorators import EntryPoint, kernel
from .....quant.jit.simd.memory import load_f32, load_i32, store_f32
from ...abi.sizes import CACHE_TYPES, MAX_QUERIES, scratch_at
from ...simd.dot8 import Codes
from ..common.access import step_at
from .flash_tile import FULL, attend_tile, prepare_query, reset_sums
from .kv_cache import KINDS, arguments_at, padded_dim
from .kv_store import copy_padded
from .softmax import slot_offset


def _prefill_kernel(kind: Codes) -> EntryPoint:
    """The kernel for one cache type."""

    @kernel
    def prefill_attention(arguments: int, step: int, thread: int) -> None:
        """out [rows, heads · value_dim] = softmax(scale · q · keysᵀ) · values over the visible positions.

        A tile is up to MAX_QUERIES queries: consecutive rows of a sequence, times heads of one kv head's
        group. Threads take the tiles in turn.
        """
        a, s = arguments_at(arguments), step_at(step)
        group = a.heads // a.kv_heads
        tile_heads = min(group, MAX_QUERIES)
        parts = (group + tile_heads - 1) // tile_heads
        m = scratch_at(a.scratch + thread * a.scratch_stride, MAX_QUERIES, padded_dim(a))
        task, row, dim = 0, 0, padded_dim(a)
        while row < s.n_rows:
            sequence = load_i32(s.sequences + 4 * row)
            n, max_rows = 1, min(MAX_QUERIES // tile_heads, s.n_rows - row)
            while n < max_rows and load_i32(s.sequences + 4 * (row + n)) == sequence:
                n += 1
            for part in range(a.kv_heads * parts):
                task += 1
                if task % s.n_threads != thread:
                    continue
                kv_head = part // parts
                head = kv_head * group + part % parts * tile_heads
                heads = min(tile_heads, kv_head * group + group - head)
                lowest = highest = np.int64(load_i32(s.positions + 4 * row))
                for i in range(n * heads):
                    t, h = row + i // heads, head + i % heads
                    position = np.int64(load_i32(s.positions + 4 * t))
                    lowest, highest = min(lowest, position), max(highest, position)
                    copy_padded(a.q + t * a.q_stride + 4 * h * a.head_dim, m.staging, a.head_dim, dim)
                    prepare_query(kind, a, m, i, m.staging, position)
                    reset_sums(a, m, i, head + i % heads)
                begin = max(0, lowest - a.window + 1) if a.window > 0 else 0
                attend_tile(
                    kind, FULL, a, s, m, n * heads, sequence, kv_head, begin, highest + 1, highest + 1
                )
                for i in range(n * heads):
                    t, h = row + i // heads, head + i % heads
                    out = a.out + t * a.out_stride + 4 * h * a.value_dim
                    factor = np.float32(1.0) / load_f32(m.denominators + slot_offset(i))
                    for d in range(0, 4 * a.value_dim, 4):
                        store_f32(out + d, load_f32(m.sums + 4 * i * dim + d) * factor)
            row += n

    return prefill_attention


PREFILL_ATTENTIONS = {name: _prefill_kernel(KINDS[name]) for name in CACHE_TYPES}
