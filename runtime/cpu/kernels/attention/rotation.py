"""The rotation of keys and values in a quantised cache: a normalised Hadamard transform, block by block.

A few dimensions of a head that are far larger than the rest would make the scale of their 32 codes too coarse
for the others. Behind the rotation every dimension has a part of each. It is orthogonal and its own inverse:
scores are those of rotated queries with rotated keys, and the weighted sum of rotated values is rotated back
(Ashkboos et al. 2024, "QuaRot").
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import mix_lanes, splat_f32
from .....quant.jit.simd.memory import load_f32, loadv_f32, store_f32, storev_f32
from .kv_cache import padded_dim


@jit
def rotate_head(x: int, dim: int, block: int) -> None:
    """Rotate float32 [dim] at `x` in place, in blocks of `block` dimensions, a power of two that divides
    `dim`."""
    factor = np.float32(1.0 / math.sqrt(block))
    half = 1
    if block >= LANES:
        for d in range(x, x + 4 * dim, 4 * LANES):
            storev_f32(d, mix_lanes(loadv_f32(d)) * splat_f32(factor))
        half = LANES
        while half < block:
            for start in range(x, x + 4 * dim, 8 * half):
                for d in range(start, start + 4 * half, 4 * LANES):
                    first, second = loadv_f32(d), loadv_f32(d + 4 * half)
                    storev_f32(d, first + second)
                    storev_f32(d + 4 * half, first - second)
            half *= 2
        return
    while half < block:
        for start in range(x, x + 4 * dim, 8 * half):
            for d in range(start, start + 4 * half, 4):
                low, high = load_f32(d), load_f32(d + 4 * half)
                store_f32(d, low + high)
                store_f32(d + 4 * half, low - high)
        half *= 2
    for d in range(x, x + 4 * dim, 4):
        store_f32(d, load_f32(d) * factor)


@jit
def turn_key(a: Any, k: int, h: int) -> None:
    """Make what the cache keeps of float32 [padded head_dim] at `k`, a key of kv head `h`, in place: without
    its offset, times its factors, rotated."""
    if a.key_rotation > 0:
        dim = padded_dim(a)
        if a.key_offsets != 0:
            for d in range(0, 4 * dim, 4 * LANES):
                storev_f32(k + d, loadv_f32(k + d) - loadv_f32(a.key_offsets + 4 * h * dim + d))
        if a.key_factors != 0:
            _multiply(k, a.key_factors + 4 * h * dim, dim)
        rotate_head(k, a.head_dim, a.key_rotation)


@jit
def turn_query(a: Any, q: int, h: int) -> None:
    """Make of float32 [padded head_dim] at `q`, a query of kv head `h`, what such keys are multiplied by."""
    if a.key_rotation > 0:
        if a.query_factors != 0:
            _multiply(q, a.query_factors + 4 * h * padded_dim(a), padded_dim(a))
        rotate_head(q, a.head_dim, a.key_rotation)


@jit
def _multiply(x: int, factors: int, dim: int) -> None:
    """x · factors, float32 [dim], in place."""
    for d in range(0, 4 * dim, 4 * LANES):
        storev_f32(x + d, loadv_f32(x + d) * loadv_f32(factors + d))


@jit
def rotate_back(a: Any, out: int) -> None:
    """Rotate the output of a head, float32 [value_dim] at `out`, back, if the cache's values are rotated."""
    if a.value_rotation > 0:
        rotate_head(out, a.value_dim, a.value_rotation)
