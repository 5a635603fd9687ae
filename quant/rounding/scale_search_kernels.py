"""The compiled scale search; its NumPy twin, `scale_search`, explains it.

A lane of a vector is a block: a vector holds the same weight of `LANES` blocks, and no sum crosses lanes.
So the results equal the twin's in every bit, at every SIMD level. Pointers are to vectors: `x`, `w` and
`wx` to a weight, its importance and their product for each weight of a sub-block, `scale` and its like to
one vector a sub-block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray

from ..jit.decorators import EntryPoint, jit, kernel
from ..jit.levels import LANES
from ..jit.simd.arithmetic import absolute, maximum, minimum, splat_f32, to_i32
from ..jit.simd.memory import as_pointer, load_f32, loadv_f32, storev_f32, storev_i8
from .codebook import FIT, NEAREST
from .e4m3_kernels import fit_e4m3
from .scale_refine_kernels import refine_table, refine_uniform
from .scale_search import REFITS, SINGULAR
from .scale_search_lanes import (
    VECTOR,
    constant,
    half,
    inverse,
    load_lanes,
    nearest_integer,
    nearest_level,
    power_below,
    store_lanes,
    where_more,
    where_not_less,
)


def _fit_symmetric(level: Any) -> Any:
    """`scale_search.fit_symmetric` with `level` as the rounding to a level."""

    @jit
    def fit_symmetric(
        a: Any, x: int, w: int, wx: int, n: int, starts: int, n_starts: int, low: Any, high: Any
    ) -> Any:
        peak = constant(0)
        for i in range(0, n * VECTOR, VECTOR):
            v = loadv_f32(x + i)
            peak = maximum(absolute(v), peak)
            storev_f32(wx + i, loadv_f32(w + i) * v)
        inverse_peak = inverse(peak)
        best, scale, curvature = constant(0), constant(0), constant(0)
        for k in range(n_starts + REFITS):
            inverse_scale = (
                splat_f32(load_f32(starts + 4 * k)) * inverse_peak if k < n_starts else inverse(scale)
            )
            sum_wxl, sum_wll = constant(0), constant(0)
            for i in range(0, n * VECTOR, VECTOR):
                chosen = level(loadv_f32(x + i) * inverse_scale, a, low, high)
                sum_wxl = sum_wxl + loadv_f32(wx + i) * chosen
                sum_wll = sum_wll + loadv_f32(w + i) * chosen * chosen
            solved = sum_wxl * inverse(sum_wll)
            gain = sum_wxl * solved
            scale = where_more(gain, best, solved, scale)
            curvature = where_more(gain, best, sum_wll, curvature)
            best = where_more(gain, best, gain, best)
        return scale, curvature

    return fit_symmetric


_fit_uniform, _fit_table = _fit_symmetric(nearest_integer), _fit_symmetric(nearest_level)


@jit
def _fit_affine(a: Any, x: int, w: int, y: int, n: int, low_level: Any, top: Any) -> Any:
    """`scale_search.fit_affine`."""
    low = high = loadv_f32(x)
    for i in range(VECTOR, n * VECTOR, VECTOR):
        v = loadv_f32(x + i)
        low, high = minimum(v, low), maximum(v, high)
    if a.positive_minimum:
        low = minimum(low, constant(0))
    span = high - low
    inverse_span = inverse(span)
    sum_w, sum_wy = constant(0), constant(0)
    for i in range(0, n * VECTOR, VECTOR):
        v, weight = loadv_f32(x + i) - low, loadv_f32(w + i)
        storev_f32(y + i, v)
        sum_w = sum_w + weight
        sum_wy = sum_wy + weight * v
    worst = constant(-np.inf)
    scale, offset, curvature, best = constant(0), constant(0), constant(0), worst
    for k in range(a.n_starts + REFITS):
        if k < a.n_starts:
            start = splat_f32(load_f32(a.starts + 8 * k)) * span
            inverse_scale = splat_f32(load_f32(a.starts + 8 * k + 4)) * inverse_span
        else:
            start, inverse_scale = offset, inverse(scale)
        sum_wl, sum_wll, sum_wyl = constant(0), constant(0), constant(0)
        for i in range(0, n * VECTOR, VECTOR):
            v, weight = loadv_f32(y + i), loadv_f32(w + i)
            chosen = nearest_integer((v - start) * inverse_scale, a, low_level, top)
            w_chosen = weight * chosen
            sum_wl = sum_wl + w_chosen
            sum_wll = sum_wll + w_chosen * chosen
            sum_wyl = sum_wyl + weight * v * chosen
        noise = constant(SINGULAR) * sum_w * sum_wll
        determinant = sum_w * sum_wll - sum_wl * sum_wl
        inverse_determinant = inverse(determinant)
        singular_scale = sum_wyl * inverse(sum_wll)
        s = where_more(
            determinant, noise, (sum_w * sum_wyl - sum_wy * sum_wl) * inverse_determinant, singular_scale
        )
        o = where_more(
            determinant, noise, (sum_wll * sum_wy - sum_wl * sum_wyl) * inverse_determinant, constant(0)
        )
        if a.positive_minimum:
            limit = constant(0) - low
            s = where_more(o, limit, (sum_wyl + low * sum_wl) * inverse(sum_wll), s)
            o = where_more(o, limit, limit, o)
        gain = constant(2) * (s * sum_wyl + o * sum_wy) - (
            s * s * sum_wll + constant(2) * s * o * sum_wl + o * o * sum_w
        )
        gain = where_more(s, constant(0), gain, worst)
        scale = where_more(gain, best, s, scale)
        offset = where_more(gain, best, o, offset)
        curvature = where_more(gain, best, sum_wll, curvature)
        best = where_more(gain, best, gain, best)
    return scale, curvature, constant(0) - (low + offset), sum_w


@jit
def _fit_power(a: Any, x: int, w: int, low: Any, high: Any) -> Any:
    """`scale_search.fit_power`."""
    peak = constant(2.0**-100)
    for i in range(0, a.sub_block * VECTOR, VECTOR):
        peak = maximum(absolute(loadv_f32(x + i)), peak)
    power = power_below(peak) * constant(1 / 8)
    best, scale = constant(np.inf), power
    for k in range(3):
        s = power * constant(1.0 if k == 0 else 0.5 if k == 1 else 2.0)
        inverse_scale = inverse(s)
        error = constant(0)
        for i in range(0, a.sub_block * VECTOR, VECTOR):
            v = loadv_f32(x + i)
            residual = s * nearest_level(v * inverse_scale, a, low, high) - v
            error = error + loadv_f32(w + i) * residual * residual
        scale = where_more(best, error, s, scale)
        best = where_more(best, error, error, best)
    return scale


@jit
def _fit_integers(a: Any, scale: int, weight: int, wx: int, out: int) -> Any:
    """Returns d for the sub-blocks' scales at `scale`, and stores the integers s at `out`."""
    n = a.block_size // a.sub_block
    low, high = constant(a.scale_low), constant(a.scale_high)
    d = half(_fit_uniform(a, scale, weight, wx, n, a.scale_starts, a.n_scale_starts, low, high)[0])
    inverse_d = inverse(d)
    for i in range(0, n * VECTOR, VECTOR):
        storev_f32(out + i, nearest_integer(loadv_f32(scale + i) * inverse_d, a, low, high))
    return d


def _fit(fit_sub_block: Any, refine: Any) -> Callable[[int, int, int], None]:
    """A kernel that searches for the scales of all blocks of a FIT record.

    `fit_sub_block(a, x, w, wx, low, high)` returns a sub-block's scale, curvature, minimum and total
    importance.
    """

    def fit(arguments: int, unused_step: int, unused_thread: int) -> None:
        a = carray(as_pointer(arguments), 1, FIT)[0]
        sub_blocks = a.block_size // a.sub_block
        low, high = splat_f32(load_f32(a.levels)), splat_f32(load_f32(a.levels + 4 * (a.n_levels - 1)))
        x = a.scratch
        w = x + a.block_size * VECTOR
        wx = w + a.block_size * VECTOR
        scale = wx + max(a.sub_block, sub_blocks) * VECTOR
        curvature, minimums, weight = (
            scale + sub_blocks * VECTOR,
            scale + 2 * sub_blocks * VECTOR,
            scale + 3 * sub_blocks * VECTOR,
        )
        s, m, best = (
            scale + 4 * sub_blocks * VECTOR,
            scale + 5 * sub_blocks * VECTOR,
            scale + 6 * sub_blocks * VECTOR,
        )
        for first in range(0, a.n_blocks, LANES):
            load_lanes(a, first, x, w)
            for r in range(sub_blocks):
                at = r * a.sub_block * VECTOR
                fitted = fit_sub_block(a, x + at, w + at, wx, low, high)
                storev_f32(scale + r * VECTOR, fitted[0])
                storev_f32(curvature + r * VECTOR, fitted[1])
                storev_f32(minimums + r * VECTOR, fitted[2])
                storev_f32(weight + r * VECTOR, fitted[3])
            if a.n_scale_starts:
                d = _fit_integers(a, scale, curvature, wx, s)
                dmin = _fit_integers(a, minimums, weight, wx, m)
                for i in range(0, 2 * sub_blocks * VECTOR, VECTOR):
                    storev_f32(best + i, loadv_f32(s + i))
                d, dmin = refine(a, x, w, s, m, best, d, dmin, low, high)
            else:
                d, dmin = half(loadv_f32(scale)), half(loadv_f32(minimums))
            store_lanes(a, first, d, dmin, wx, best)

    return fit


@jit
def _fit_uniform_sub_block(a: Any, x: int, w: int, wx: int, low: Any, high: Any) -> Any:
    scale, curvature = _fit_uniform(a, x, w, wx, a.sub_block, a.starts, a.n_starts, low, high)
    return scale, curvature, constant(0), constant(0)


@jit
def _fit_table_sub_block(a: Any, x: int, w: int, wx: int, low: Any, high: Any) -> Any:
    scale, curvature = _fit_table(a, x, w, wx, a.sub_block, a.starts, a.n_starts, low, high)
    return scale, curvature, constant(0), constant(0)


@jit
def _fit_affine_sub_block(a: Any, x: int, w: int, wx: int, low: Any, high: Any) -> Any:
    return _fit_affine(a, x, w, wx, a.sub_block, low, high)


def _fit_whole(fit_block: Any) -> Callable[[int, int, int], None]:
    """A kernel that searches for the one scale of each block of a FIT record, `fit_block(a, x, w, low,
    high)`.
    """

    def fit(arguments: int, unused_step: int, unused_thread: int) -> None:
        a = carray(as_pointer(arguments), 1, FIT)[0]
        low, high = splat_f32(load_f32(a.levels)), splat_f32(load_f32(a.levels + 4 * (a.n_levels - 1)))
        w = a.scratch + a.block_size * VECTOR
        for first in range(0, a.n_blocks, LANES):
            load_lanes(a, first, a.scratch, w)
            d = fit_block(a, a.scratch, w, low, high)
            store_lanes(a, first, d, constant(0), w, w)

    return fit


FITS: dict[str, EntryPoint] = {
    "uniform": kernel(_fit(_fit_uniform_sub_block, refine_uniform)),
    "table": kernel(_fit(_fit_table_sub_block, refine_table)),
    "affine": kernel(_fit(_fit_affine_sub_block, refine_uniform)),
    "powers": kernel(_fit_whole(_fit_power)),
    "e4m3": kernel(_fit_whole(fit_e4m3)),
}


@jit
def _integer_code(y: Any, a: Any, low: Any, high: Any) -> Any:
    """The code of the nearest of consecutive integer levels, as float32."""
    return nearest_integer(y, a, low, high) - low


@jit
def _level_code(y: Any, a: Any, low: Any, high: Any) -> Any:
    """The code of the nearest level of the record's table, as float32."""
    code = constant(0)
    borders = a.levels + 4 * a.n_levels
    for i in range(a.n_levels - 1):
        code = code + where_not_less(y, splat_f32(load_f32(borders + 4 * i)), constant(1), constant(0))
    return code


def _nearest(code: Any) -> Callable[[int, int, int], None]:
    def nearest(arguments: int, unused_step: int, unused_thread: int) -> None:
        """Stores the codes of all sub-blocks of a NEAREST record."""
        a = carray(as_pointer(arguments), 1, NEAREST)[0]
        low, high = splat_f32(load_f32(a.levels)), splat_f32(load_f32(a.levels + 4 * (a.n_levels - 1)))
        for r in range(a.n_sub_blocks):
            inverse_scale = inverse(splat_f32(load_f32(a.scale + 4 * r)))
            offset = splat_f32(load_f32(a.minimum + 4 * r))
            for i in range(r * a.sub_block, (r + 1) * a.sub_block, LANES):
                y = (loadv_f32(a.weights + 4 * i) + offset) * inverse_scale
                storev_i8(a.out + i, to_i32(code(y, a, low, high)))

    return nearest


NEARESTS: dict[str, EntryPoint] = {
    "uniform": kernel(_nearest(_integer_code)),
    "table": kernel(_nearest(_level_code)),
}
