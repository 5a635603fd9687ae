"""Decode attention: a single row over the paged KV cache, split along the context (split-KV).

`DECODE_ATTENTIONS` computes each split as an attention of its own, `merge_splits` merges the partial results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.simd.memory import load_i32
from ...abi.sizes import CACHE_TYPES, MAX_QUERIES, MAX_SPLITS, MIN_SPLIT, scratch_at
from ...simd.dot8 import Codes
from ..common.access import step_at
from ..common.head_norm import norm_head
from ..common.rope import rotate_pairs
from .flash_tile import ANY, attend_tile, prepare_query, reset_sums
from .kv_cache import arguments_at, kinds, padded_dim
from .kv_store import copy_padded, store_token
from .partials import merge_heads, partial, store_partial


@jit
def _splits(a: Any, position: int) -> Any:
    """Split-KV of a row at a position: (first visible position, tokens of a split, first split, last split).

    Split i covers positions i · length … (i + 1) · length - 1. The splits depend on the position alone, so
    that results do not depend on the number of threads.
    """
    begin = max(0, position - a.window + 1) if a.window > 0 else 0
    length = MIN_SPLIT
    while length * MAX_SPLITS < position + 1 - begin:
        length *= 2
    return begin, length, begin // length, position // length


def _decode_kernel(key_kind: Codes, value_kind: Codes) -> EntryPoint:
    """The kernel for one cache type."""

    @kernel
    def decode_attention(arguments: int, step: int, thread: int) -> None:
        """Partial attention of the step's only row for each split of its context, into `partials`.

        With `append`, the row's key and value are written to the cache first. Query and key are normed by RMS
        and rotated by RoPE on the way, if the record has weights and angles. Threads partition the (kv head,
        split) pairs.
        """
        a, s = arguments_at(arguments), step_at(step)
        group, dim = a.heads // a.kv_heads, padded_dim(a)
        tile_heads = min(group, MAX_QUERIES)
        m = scratch_at(a.scratch + thread * a.scratch_stride, MAX_QUERIES, dim)
        q = a.q + thread * a.q_thread_stride
        sequence, position = load_i32(s.sequences), np.int64(load_i32(s.positions))
        begin, length, first, last = _splits(a, position)
        # A split goes to the thread whose equal part of all (kv head, token) pairs contains its middle.
        context = position + 1 - begin
        total = 2 * context * a.kv_heads
        for kv_head in range(a.kv_heads):
            prepared = -1
            for split in range(first, last + 1):
                low, high = max(begin, split * length), min(position + 1, (split + 1) * length)
                middle = 2 * context * kv_head + (low - begin) + (high - begin)
                if middle * s.n_threads // total != thread:
                    continue
                if split == last and a.append:
                    _append_token(key_kind, value_kind, a, s, m, sequence, position, kv_head, thread)
                for head in range(kv_head * group, kv_head * group + group, tile_heads):
                    heads = min(tile_heads, kv_head * group + group - head)
                    for i in range(heads):
                        if prepared != head:
                            copy_padded(q + 4 * (head + i) * a.head_dim, m.staging, a.head_dim, dim)
                            _norm_and_rope(a, m.staging, a.q_norm)
                            prepare_query(key_kind, a, m, i, kv_head, m.staging, position, position + 1)
                        reset_sums(a, m, i, -1)
                    prepared = head
                    attend_tile(
                        key_kind, value_kind, ANY, a, s, m, heads, sequence, kv_head, low, high, position + 1
                    )
                    for i in range(heads):
                        store_partial(a, m, i, partial(a, a.partials, split - first, head + i))

    return decode_attention


@jit
def _append_token(
    key_kind: Codes,
    value_kind: Codes,
    a: Any,
    s: Any,
    m: Any,
    sequence: int,
    position: int,
    h: int,
    thread: int,
) -> None:
    """Write the row's key (after norm and RoPE) and value of kv head `h` to the cache."""
    dim = padded_dim(a)
    k, v = m.staging, m.staging + 4 * dim
    copy_padded(a.k + thread * a.k_thread_stride + 4 * h * a.head_dim, k, a.head_dim, dim)
    copy_padded(a.v + thread * a.v_thread_stride + 4 * h * a.value_step, v, a.value_dim, dim)
    _norm_and_rope(a, k, a.k_norm)
    store_token(key_kind, value_kind, a, s, sequence, position, h, k, v, v + 4 * dim)


@jit
def _norm_and_rope(a: Any, x: int, weight: int) -> None:
    """RMS norm (if `weight` is not 0), then RoPE (if there are angles), on float32 [padded head_dim]."""
    if weight != 0:
        norm_head(x, x, weight, padded_dim(a), a.head_dim, a.norm_eps)
    if a.cos != 0:
        rotate_pairs(x, x, a.cos, a.sin, a.n_angles, a.interleaved)


@kernel
def merge_splits(arguments: int, step: int, thread: int) -> None:
    """out [heads · value_dim] from the partial results of DECODE_ATTENTIONS, in a copy for each thread."""
    a, s = arguments_at(arguments), step_at(step)
    _, _, first, last = _splits(a, np.int64(load_i32(s.positions)))
    merge_heads(a, a.partials, last - first + 1, a.out + thread * a.out_stride)


DECODE_ATTENTIONS = {name: _decode_kernel(*kinds(name)) for name in CACHE_TYPES}
