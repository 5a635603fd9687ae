"""Decode attention: a single row over the paged KV cache, split along the context (split-KV).

`DECODE_ATTENTIONS` computes each split as an attention of its own, `merge_splits` merges the partial results
by their maxima and softmax denominators (Dao et al. 2023, "Flash-Decoding for long-context inference").
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....quant.jit.decorators import EntryPoint, jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma, lane_sum, splat_f32
from .....quant.jit.simd.memory import load_f32, load_i32, loadv_f32, store_f32, storev_f32
from ...abi.sizes import CACHE_TYPES, MAX_QUERIES, MAX_SPLITS, MIN_SPLIT, scratch_at
from ...simd.dot8 import Codes
from ..common.access import step_at
from ..common.rope import rotate_pairs
from ..common.vector_math import constant
from .flash_tile import ANY, attend_tile, prepare_query, reset_sums
from .kv_cache import KINDS, arguments_at, padded_dim
from .kv_store import copy_padded, store_token
from .softmax import exp2_scalar, initial_softmax, slot_offset


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


def _decode_kernel(kind: Codes) -> EntryPoint:
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
                    _append_token(kind, a, s, m, sequence, position, kv_head, thread)
                for head in range(kv_head * group, kv_head * group + group, tile_heads):
                    heads = min(tile_heads, kv_head * group + group - head)
                    for i in range(heads):
                        if prepared != head:
                            copy_padded(q + 4 * (head + i) * a.head_dim, m.staging, a.head_dim, dim)
                            _norm_and_rope(a, m.staging, a.q_norm)
                            prepare_query(kind, a, m, i, m.staging, position)
                        reset_sums(a, m, i, -1)
                    prepared = head
                    attend_tile(kind, ANY, a, s, m, heads, sequence, kv_head, low, high, position + 1)
                    for i in range(heads):
                        out = _partial(a, split - first, head + i)
                        for d in range(0, 4 * dim, 4 * LANES):
                            storev_f32(out + d, loadv_f32(m.sums + 4 * i * dim + d))
                        store_f32(out + 4 * dim, load_f32(m.maxima + slot_offset(i)))
                        store_f32(out + 4 * dim + 4, load_f32(m.denominators + slot_offset(i)))

    return decode_attention


@jit
def _append_token(
    kind: Codes, a: Any, s: Any, m: Any, sequence: int, position: int, h: int, thread: int
) -> None:
    """Write the row's key (after norm and RoPE) and value of kv head `h` to the cache."""
    dim = padded_dim(a)
    k, v = m.staging, m.staging + 4 * dim
    copy_padded(a.k + thread * a.k_thread_stride + 4 * h * a.head_dim, k, a.head_dim, dim)
    copy_padded(a.v + thread * a.v_thread_stride + 4 * h * a.value_step, v, a.value_dim, dim)
    _norm_and_rope(a, k, a.k_norm)
    store_token(kind, a, s, sequence, position, h, k, v, v + 4 * dim)


@jit
def _partial(a: Any, split: int, head: int) -> int:
    """Address of the partial result of a split and a head, float32 [padded head_dim + 16]."""
    return a.partials + (split * a.heads + head) * 4 * (padded_dim(a) + 16)


@jit
def _norm_and_rope(a: Any, x: int, weight: int) -> None:
    """RMS norm (if `weight` is not 0), then RoPE (if there are angles), on float32 [padded head_dim]."""
    if weight != 0:
        total = constant(0.0)
        for d in range(0, 4 * padded_dim(a), 4 * LANES):
            values = loadv_f32(x + d)
            total = fma(values, values, total)
        factor = splat_f32(np.float32(1.0 / math.sqrt(lane_sum(total) / a.head_dim + a.norm_eps)))
        for d in range(0, 4 * a.head_dim, 4 * LANES):
            storev_f32(x + d, loadv_f32(x + d) * factor * loadv_f32(weight + d))
    if a.cos != 0:
        rotate_pairs(x, x, a.cos, a.sin, a.n_angles, a.interleaved)


@jit
def _merge_heads(a: Any, s: Any, out: int) -> None:
    """Merge the partial results of all splits into float32 [heads · value_dim] at `out`.

    Numerators and denominators of a split are rescaled from its own maximum to the maximum of all splits.
    """
    _, _, first, last = _splits(a, np.int64(load_i32(s.positions)))
    dim = padded_dim(a)
    count, stride = last - first + 1, a.heads * 4 * (dim + 16)
    for head in range(a.heads):
        start = _partial(a, 0, head)
        maximum_score, denominator = initial_softmax(a, head)
        sink = maximum_score
        for i in range(count):
            maximum_score = max(maximum_score, load_f32(start + i * stride + 4 * dim))
        denominator *= exp2_scalar(sink - maximum_score)
        for i in range(count):
            tail = start + i * stride + 4 * dim
            denominator += load_f32(tail + 4) * exp2_scalar(load_f32(tail) - maximum_score)
        at = out + 4 * head * a.value_dim
        for i in range(count):
            row = start + i * stride
            factor = exp2_scalar(load_f32(row + 4 * dim) - maximum_score) / denominator
            d = 0
            while d + LANES <= a.value_dim:
                total = loadv_f32(at + 4 * d) if i else constant(0.0)
                storev_f32(at + 4 * d, fma(loadv_f32(row + 4 * d), splat_f32(factor), total))
                d += LANES
            while d < a.value_dim:
                rest = load_f32(at + 4 * d) if i else np.float32(0.0)
                store_f32(at + 4 * d, load_f32(row + 4 * d) * factor + rest)
                d += 1


@kernel
def merge_splits(arguments: int, step: int, thread: int) -> None:
    """out [heads · value_dim] from the partial results of DECODE_ATTENTIONS, in a copy for each thread."""
    a = arguments_at(arguments)
    _merge_heads(a, step_at(step), a.out + thread * a.out_stride)


DECODE_ATTENTIONS = {name: _decode_kernel(KINDS[name]) for name in CACHE_TYPES}
