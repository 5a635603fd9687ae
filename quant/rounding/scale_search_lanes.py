"""Vector operations of the scale search kernels, whose lanes are blocks: rounding, selection, loads,
stores."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from ..jit.decorators import jit
from ..jit.levels import LANES
from ..jit.llvm_ir import F32V, HALF, I32V, all_lanes
from ..jit.simd.arithmetic import absolute, maximum, minimum, round_even, splat_f32
from ..jit.simd.memory import load_f32, store_f32, storev_f32
from ..jit.simd.vectors import F32, instruction
from .scale_search import LARGEST, LARGEST_HALF, SMALLEST

VECTOR = 4 * LANES  # bytes of a vector


@instruction(F32, F32, F32, F32, F32)
def where_more(builder: Any, a: Any, b: Any, then: Any, other: Any) -> Any:
    """`then` in the lanes where a > b, else `other`; vcmpps + vblendmps."""
    return builder.select(builder.fcmp_ordered(">", a, b), then, other)


@instruction(F32, F32, F32, F32, F32)
def where_not_less(builder: Any, a: Any, b: Any, then: Any, other: Any) -> Any:
    """`then` in the lanes where a >= b, else `other`; vcmpps + vblendmps."""
    return builder.select(builder.fcmp_ordered(">=", a, b), then, other)


@instruction(F32, F32)
def through_half(builder: Any, a: Any) -> Any:
    """float32 rounded to fp16 and back; vcvtps2ph + vcvtph2ps."""
    return builder.fpext(builder.fptrunc(a, ir.VectorType(HALF, LANES)), F32V)


@instruction(F32, F32)
def power_below(builder: Any, a: Any) -> Any:
    """The largest power of two up to a normal positive number; vandps."""
    bits = builder.and_(builder.bitcast(a, I32V), all_lanes(I32V, 0x7F800000))
    return builder.bitcast(bits, F32V)


@jit
def constant(value: float) -> Any:
    """The value in all lanes."""
    return splat_f32(np.float32(value))


@jit
def inverse(v: Any) -> Any:
    """1 / v; 0 for magnitudes up to SMALLEST."""
    return where_more(absolute(v), constant(SMALLEST), constant(1) / v, constant(0))


@jit
def half(v: Any) -> Any:
    """v rounded to fp16 and clipped to its range."""
    return through_half(minimum(maximum(v, constant(-LARGEST_HALF)), constant(LARGEST_HALF)))


@jit
def nearest_integer(y: Any, a: Any, low: Any, high: Any) -> Any:
    """y rounded to the nearest integer, clipped to low … high; `a` is not used."""
    return minimum(maximum(round_even(y), low), high)


@jit
def nearest_level(y: Any, a: Any, low: Any, high: Any) -> Any:
    """The level nearest to y, of the table of levels and midpoints in the record `a`; `high` is not used."""
    level = low
    borders = a.levels + 4 * a.n_levels
    for i in range(a.n_levels - 1):
        border = splat_f32(load_f32(borders + 4 * i))
        level = where_not_less(y, border, splat_f32(load_f32(a.levels + 4 * i + 4)), level)
    return level


@jit
def neighbour(k: int) -> Any:
    """`scale_search.NEIGHBOURS[k]` in all lanes."""
    return constant(0.0 if k == 0 else -1.0 if k == 1 else 1.0)


@jit
def load_lanes(a: Any, first: int, x: int, w: int) -> None:
    """Store `LANES` blocks from number `first` at x and their importance at w, one vector a weight.

    Lanes beyond the last block get zeros.
    """
    n = min(LANES, a.n_blocks - first)
    for lane in range(LANES):
        to = 4 * lane
        if lane < n:
            block = first + lane
            values = a.weights + 4 * a.block_size * block
            counts = a.importance + 4 * a.block_size * (block % a.period)
            for i in range(a.block_size):
                v = load_f32(values + 4 * i)
                store_f32(x + to, min(max(v, -LARGEST), LARGEST))
                store_f32(w + to, load_f32(counts + 4 * i))
                to += VECTOR
        else:
            for _ in range(a.block_size):
                store_f32(x + to, np.float32(0))
                store_f32(w + to, np.float32(1))
                to += VECTOR


@jit
def store_lanes(a: Any, first: int, d: Any, dmin: Any, scratch: int, numbers: int) -> None:
    """Store d and dmin, and the integers s and m at `numbers`, in the output arrays of the record."""
    sub_blocks = a.block_size // a.sub_block
    storev_f32(scratch, d)
    storev_f32(scratch + VECTOR, dmin)
    for lane in range(min(LANES, a.n_blocks - first)):
        block = first + lane
        store_f32(a.d + 4 * block, load_f32(scratch + 4 * lane))
        store_f32(a.dmin + 4 * block, load_f32(scratch + VECTOR + 4 * lane))
        if a.n_scale_starts:
            for r in range(sub_blocks):
                s = numbers + r * VECTOR + 4 * lane
                store_f32(a.s + 4 * (block * sub_blocks + r), load_f32(s))
                store_f32(a.m + 4 * (block * sub_blocks + r), load_f32(s + sub_blocks * VECTOR))
