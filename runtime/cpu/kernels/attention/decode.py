"""Attention over the paged KV cache: many rows at once, or a single one split along the context.

`ATTENDS` and `ATTEND_ONES` hold a kernel for each of `CACHE_TYPES`. A step of many rows runs
`kv.STORES`, then `ATTENDS`; a step of one row runs `ATTEND_ONES` alone, and `merge_spans` merges its parts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....quant.jit.jit import EntryPoint, jit, kernel
from .....quant.jit.levels import LANES
from .....quant.jit.simd import fma, lane_sum, load_f32, load_i32, loadv_f32, splat_f32, store_f32, storev_f32
from ...abi.sizes import CACHE_TYPES, QUERIES, SPAN, SPANS, scratch_at
from ...simd.dot8 import Codes
from ..common.access import step_at
from ..common.rope import rotate
from ..common.vector_math import constant
from .flash_tile import ANY, FULL, attend_tile, begin_sums, prepare_query
from .kv_cache import KINDS, arguments_at, copy_padded, padded_dim, store_token
from .softmax import LOWEST, exp2_of, slot_of

# --- many rows -------------------------------------------------------------------------------------------


def _attend_kernel(kind: Codes) -> EntryPoint:
    @kernel
    def attend(arguments: int, step: int, thread: int) -> None:
        """Attention of all rows. Tiles of consecutive rows and heads of a group are dealt out in turn."""
        a, s = arguments_at(arguments), step_at(step)
        group = a.heads // a.kv_heads
        together = min(group, QUERIES)
        parts = (group + together - 1) // together
        m = scratch_at(a.scratch + thread * a.scratch_stride, QUERIES, padded_dim(a))
        task, row, dim = 0, 0, padded_dim(a)
        while row < s.n_rows:
            sequence = load_i32(s.sequences + 4 * row)
            n, most = 1, min(QUERIES // together, s.n_rows - row)
            while n < most and load_i32(s.sequences + 4 * (row + n)) == sequence:
                n += 1
            for part in range(a.kv_heads * parts):
                task += 1
                if task % s.n_threads != thread:
                    continue
                kv_head = part // parts
                head = kv_head * group + part % parts * together
                heads = min(together, kv_head * group + group - head)
                lowest = highest = np.int64(load_i32(s.positions + 4 * row))
                for i in range(n * heads):
                    t, h = row + i // heads, head + i % heads
                    position = np.int64(load_i32(s.positions + 4 * t))
                    lowest, highest = min(lowest, position), max(highest, position)
                    copy_padded(a.q + t * a.q_stride + 4 * h * a.head_dim, m.stage, a.head_dim, dim)
                    prepare_query(kind, a, m, i, m.stage, position)
                    begin_sums(a, m, i, head + i % heads)
                begin = max(0, lowest - a.window + 1) if a.window > 0 else 0
                attend_tile(
                    kind, FULL, a, s, m, n * heads, sequence, kv_head, begin, highest + 1, highest + 1
                )
                for i in range(n * heads):
                    t, h = row + i // heads, head + i % heads
                    out = a.out + t * a.out_stride + 4 * h * a.value_dim
                    factor = np.float32(1.0) / load_f32(m.norms + slot_of(i))
                    for d in range(0, 4 * a.value_dim, 4):
                        store_f32(out + d, load_f32(m.sums + 4 * i * dim + d) * factor)
            row += n

    return attend


# --- one row ---------------------------------------------------------------------------------------------


@jit
def _spans(a: Any, position: int) -> Any:
    """How the visible context of a single row is cut: (begin, length of a span, first span, last span).

    The cut depends on the position alone, so results do not depend on the number of threads.
    """
    begin = max(0, position - a.window + 1) if a.window > 0 else 0
    length = SPAN
    while length * SPANS < position + 1 - begin:
        length *= 2
    return begin, length, begin // length, position // length


def _attend_one_kernel(kind: Codes) -> EntryPoint:
    @kernel
    def attend_one(arguments: int, step: int, thread: int) -> None:
        """Attention of the step's only row in spans of the context, with norms and rotation before it."""
        a, s = arguments_at(arguments), step_at(step)
        group, dim = a.heads // a.kv_heads, padded_dim(a)
        together = min(group, QUERIES)
        m = scratch_at(a.scratch + thread * a.scratch_stride, QUERIES, dim)
        q = a.q + thread * a.q_private
        sequence, position = load_i32(s.sequences), np.int64(load_i32(s.positions))
        begin, length, first, last = _spans(a, position)
        # Spans go to threads by where their middle lies in all that is to be read.
        context = position + 1 - begin
        whole = 2 * context * a.kv_heads
        for kv_head in range(a.kv_heads):
            prepared = -1
            for span in range(first, last + 1):
                low, high = max(begin, span * length), min(position + 1, (span + 1) * length)
                middle = 2 * context * kv_head + (low - begin) + (high - begin)
                if middle * s.n_threads // whole != thread:
                    continue
                if span == last and a.append:
                    _store_one(kind, a, s, m, sequence, position, kv_head, thread)
                for head in range(kv_head * group, kv_head * group + group, together):
                    heads = min(together, kv_head * group + group - head)
                    for i in range(heads):
                        if prepared != head:
                            copy_padded(q + 4 * (head + i) * a.head_dim, m.stage, a.head_dim, dim)
                            _norm_and_rotate(a, m.stage, a.q_norm)
                            prepare_query(kind, a, m, i, m.stage, position)
                        begin_sums(a, m, i, -1)
                    prepared = head
                    attend_tile(kind, ANY, a, s, m, heads, sequence, kv_head, low, high, position + 1)
                    for i in range(heads):
                        out = _partial(a, span - first, head + i)
                        for d in range(0, 4 * dim, 4 * LANES):
                            storev_f32(out + d, loadv_f32(m.sums + 4 * i * dim + d))
                        store_f32(out + 4 * dim, load_f32(m.peaks + slot_of(i)))
                        store_f32(out + 4 * dim + 4, load_f32(m.norms + slot_of(i)))

    return attend_one


@jit
def _store_one(
    kind: Codes, a: Any, s: Any, m: Any, sequence: int, position: int, h: int, thread: int
) -> None:
    dim = padded_dim(a)
    k, v = m.stage, m.stage + 4 * dim
    copy_padded(a.k + thread * a.k_private + 4 * h * a.head_dim, k, a.head_dim, dim)
    copy_padded(a.v + thread * a.v_private + 4 * h * a.value_step, v, a.value_dim, dim)
    _norm_and_rotate(a, k, a.k_norm)
    store_token(kind, a, s, sequence, position, h, k, v, v + 4 * dim)


@jit
def _partial(a: Any, span: int, head: int) -> int:
    """Address of a span's result for a head."""
    return a.partials + (span * a.heads + head) * 4 * (padded_dim(a) + 16)


@jit
def _norm_and_rotate(a: Any, x: int, weight: int) -> None:
    """RMS norm, if there is a weight, then RoPE, if there are angles, of float32 [padded head_dim]."""
    if weight != 0:
        total = constant(0.0)
        for d in range(0, 4 * padded_dim(a), 4 * LANES):
            values = loadv_f32(x + d)
            total = fma(values, values, total)
        factor = splat_f32(np.float32(1.0 / math.sqrt(lane_sum(total) / a.head_dim + a.norm_eps)))
        for d in range(0, 4 * a.head_dim, 4 * LANES):
            storev_f32(x + d, loadv_f32(x + d) * factor * loadv_f32(weight + d))
    if a.cos != 0:
        rotate(x, x, a.cos, a.sin, a.n_angles, a.interleaved)


@jit
def combine(a: Any, s: Any, out: int) -> None:
    """Merge the spans of the step's only row into float32 [heads · value_dim] at `out`."""
    _, _, first, last = _spans(a, np.int64(load_i32(s.positions)))
    dim = padded_dim(a)
    count, stride = last - first + 1, a.heads * 4 * (dim + 16)
    for head in range(a.heads):
        start = _partial(a, 0, head)
        peak, norm = LOWEST, np.float32(0.0)
        if a.sinks != 0:
            peak, norm = load_f32(a.sinks + 4 * head), np.float32(1.0)
        sink = peak
        for i in range(count):
            peak = max(peak, load_f32(start + i * stride + 4 * dim))
        norm *= exp2_of(sink - peak)
        for i in range(count):
            tail = start + i * stride + 4 * dim
            norm += load_f32(tail + 4) * exp2_of(load_f32(tail) - peak)
        at = out + 4 * head * a.value_dim
        for i in range(count):
            row = start + i * stride
            factor = exp2_of(load_f32(row + 4 * dim) - peak) / norm
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
def merge_spans(arguments: int, step: int, thread: int) -> None:
    """The attention's output from its parts, for each thread."""
    a = arguments_at(arguments)
    combine(a, step_at(step), a.out + thread * a.out_stride)


ATTENDS = {name: _attend_kernel(KINDS[name]) for name in CACHE_TYPES}
ATTEND_ONES = {name: _attend_one_kernel(KINDS[name]) for name in CACHE_TYPES}
