"""Attention over the paged KV cache with an online softmax.

A layer's pool holds, for each page and kv head, the keys as [head_dim, page_size] — so that a vector takes
in the same dimension of consecutive tokens and scores need no sums across lanes — and the values as
[page_size, padded head_dim]. Softmax runs page by page with a running maximum (Milakov & Gimelshein
2018, "Online normalizer calculation for softmax"), so that memory does not grow with the context.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...quant.jit import Kernel, jit, kernel
from ...quant.simd import (
    LANES,
    Codes,
    fma,
    lane_max,
    lane_sum,
    load_f32,
    load_i32,
    loadv_f32,
    maximum,
    splat_f32,
    store_f32,
    storev_f32,
)
from .floats import FLOATS, SIZES, constant, exp, load_floats, store_float, tanh
from .records import reader, record, share, step_at

ATTENTION = record(
    "q",
    "q_stride",
    "k",
    "k_stride",
    "v",
    "v_stride",
    "out",
    "out_stride",
    "keys",  # the layer's pool of keys
    "values",
    "heads",
    "kv_heads",
    "head_dim",
    "padded_dim",  # of a value row in the pool
    "window",
    "scratch",  # float32 [page_size + padded_dim] a thread
    "scratch_stride",
    floats=("scale", "softcap"),
)
arguments_at = reader(ATTENTION)

KEYS = 4 * LANES  # scored at once; pages hold a multiple of them
MINUS_INFINITY = np.float32(-np.inf)


def padded(head_dim: int) -> int:
    """head_dim rounded up to whole vectors of the widest kind."""
    return -(-head_dim // 16) * 16


@jit
def _page_of(s: Any, row: int, position: int) -> int:
    """The pool's page that holds `position` of the row's sequence."""
    sequence = load_i32(s.sequences + 4 * row)
    return load_i32(s.blocks + sequence * s.blocks_stride + 4 * (position // s.page_size))


def _store_kernel(kind: Codes) -> Kernel:
    size = SIZES[kind.name]

    @kernel
    def store_kv(arguments: int, step: int, thread: int) -> None:
        """Write the rows' keys and values into their pages."""
        a, s = arguments_at(arguments), step_at(step)
        first, last = share(s.n_rows, thread, s.n_threads)
        for t in range(first, last):
            position = load_i32(s.positions + 4 * t)
            page, slot = _page_of(s, t, position), position % s.page_size
            for h in range(a.kv_heads):
                pool_head = page * a.kv_heads + h
                key = a.keys + (pool_head * a.head_dim * s.page_size + slot) * size
                value = a.values + (pool_head * s.page_size + slot) * a.padded_dim * size
                k = a.k + t * a.k_stride + 4 * h * a.head_dim
                v = a.v + t * a.v_stride + 4 * h * a.head_dim
                for d in range(a.head_dim):
                    store_float(kind, key + d * s.page_size * size, load_f32(k + 4 * d))
                    store_float(kind, value + d * size, load_f32(v + 4 * d))

    return store_kv


@jit
def _shape_scores(x: Any, a: Any) -> Any:
    x = x * splat_f32(np.float32(a.scale))
    if a.softcap > 0:
        x = splat_f32(np.float32(a.softcap)) * tanh(x * splat_f32(np.float32(1.0 / a.softcap)))
    return x


def _attend_kernel(kind: Codes) -> Kernel:
    size = SIZES[kind.name]

    @kernel
    def attend(arguments: int, step: int, thread: int) -> None:
        """Attention of each (head, row); threads share these pairs."""
        a, s = arguments_at(arguments), step_at(step)
        scores = a.scratch + thread * a.scratch_stride
        sums = scores + 4 * s.page_size
        first, last = share(a.heads * s.n_rows, thread, s.n_threads)
        for task in range(first, last):
            h, t = task // s.n_rows, task % s.n_rows
            kv_head = h // (a.heads // a.kv_heads)
            q = a.q + t * a.q_stride + 4 * h * a.head_dim
            position = load_i32(s.positions + 4 * t)
            begin = max(0, position - a.window + 1) if a.window > 0 else 0
            for d in range(0, 4 * a.padded_dim, 4 * LANES):
                storev_f32(sums + d, constant(0.0))
            peak, norm = MINUS_INFINITY, np.float32(0.0)
            for page_start in range(begin - begin % s.page_size, position + 1, s.page_size):
                pool_head = _page_of(s, t, page_start) * a.kv_heads + kv_head
                keys = a.keys + pool_head * a.head_dim * s.page_size * size
                low = max(0, begin - page_start)
                high = min(s.page_size, position + 1 - page_start)
                block_low = low - low % KEYS
                block_high = block_low
                while block_high < high:
                    s0, s1, s2, s3 = constant(0.0), constant(0.0), constant(0.0), constant(0.0)
                    at = keys + block_high * size
                    for d in range(a.head_dim):
                        x = splat_f32(load_f32(q + 4 * d))
                        s0 = fma(load_floats(kind, at), x, s0)
                        s1 = fma(load_floats(kind, at + LANES * size), x, s1)
                        s2 = fma(load_floats(kind, at + 2 * LANES * size), x, s2)
                        s3 = fma(load_floats(kind, at + 3 * LANES * size), x, s3)
                        at += s.page_size * size
                    out = scores + 4 * block_high
                    storev_f32(out, _shape_scores(s0, a))
                    storev_f32(out + 4 * LANES, _shape_scores(s1, a))
                    storev_f32(out + 8 * LANES, _shape_scores(s2, a))
                    storev_f32(out + 12 * LANES, _shape_scores(s3, a))
                    block_high += KEYS
                for i in range(block_low, low):
                    store_f32(scores + 4 * i, MINUS_INFINITY)
                for i in range(high, block_high):
                    store_f32(scores + 4 * i, MINUS_INFINITY)

                highest = constant(-np.inf)
                for i in range(block_low, block_high, LANES):
                    highest = maximum(loadv_f32(scores + 4 * i), highest)
                new_peak = max(peak, lane_max(highest))
                shift = splat_f32(new_peak)
                total = constant(0.0)
                for i in range(block_low, block_high, LANES):
                    p = exp(loadv_f32(scores + 4 * i) - shift)
                    storev_f32(scores + 4 * i, p)
                    total = total + p
                correction = exp(splat_f32(peak) - shift)
                norm = norm * lane_max(correction) + lane_sum(total)
                peak = new_peak

                values = a.values + pool_head * s.page_size * a.padded_dim * size
                for d in range(0, a.padded_dim, LANES):
                    acc = loadv_f32(sums + 4 * d) * correction
                    at = values + d * size + low * a.padded_dim * size
                    for i in range(low, high):
                        acc = fma(load_floats(kind, at), splat_f32(load_f32(scores + 4 * i)), acc)
                        at += a.padded_dim * size
                    storev_f32(sums + 4 * d, acc)
            out = a.out + t * a.out_stride + 4 * h * a.head_dim
            for d in range(a.head_dim):
                store_f32(out + 4 * d, load_f32(sums + 4 * d) / norm)

    return attend


CACHE_TYPES = ("F16", "F32")
STORES = {name: _store_kernel(FLOATS[name]) for name in CACHE_TYPES}
ATTENDS = {name: _attend_kernel(FLOATS[name]) for name in CACHE_TYPES}
