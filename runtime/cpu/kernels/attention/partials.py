"""Partial results of attention over a split of the context, and how those of all splits are merged.

A partial result is float32 [padded head_dim + 16]: the unnormalised output, the largest score, the softmax
denominator, and padding. They are merged by their maxima and denominators (Dao et al. 2023, "Flash-Decoding
for long-context inference").
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma, splat_f32
from .....quant.jit.simd.memory import load_f32, loadv_f32, store_f32, storev_f32
from ...abi.sizes import Scratch
from ..common.vector_math import constant
from .kv_cache import padded_dim
from .rotation import rotate_back
from .softmax import exp2_scalar, initial_softmax, slot_offset


@jit
def partial(a: Any, partials: int, split: int, head: int) -> int:
    """Address of the partial result of a split and a head; `partials` is the address of the row's results."""
    return partials + (split * a.heads + head) * 4 * (padded_dim(a) + 16)


@jit
def store_partial(a: Any, m: Scratch, i: int, out: int) -> None:
    """Write the partial result of query i of the tile to address `out`."""
    dim = padded_dim(a)
    for d in range(0, 4 * dim, 4 * LANES):
        storev_f32(out + d, loadv_f32(m.sums + 4 * i * dim + d))
    store_f32(out + 4 * dim, load_f32(m.maxima + slot_offset(i)))
    store_f32(out + 4 * dim + 4, load_f32(m.denominators + slot_offset(i)))


@jit
def merge_heads(a: Any, partials: int, count: int, out: int) -> None:
    """Merge the partial results of `count` splits of a row into float32 [heads · value_dim] at `out`.

    Numerators and denominators of a split are rescaled from its own maximum to the maximum of all splits.
    """
    dim = padded_dim(a)
    stride = a.heads * 4 * (dim + 16)
    for head in range(a.heads):
        start = partial(a, partials, 0, head)
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
        rotate_back(a, at)
