"""The compiled search for scales; `search` is its twin and says what is done and why.

A lane of a vector is a block: vectors hold the same weight of `LANES` blocks, and no sum crosses lanes. So
the results are those of the twin, in every bit, whatever the SIMD level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray

from ..jit.jit import EntryPoint, jit, kernel
from ..jit.levels import LANES
from ..jit.simd import (
    absolute,
    as_pointer,
    load_f32,
    loadv_f32,
    maximum,
    minimum,
    splat_f32,
    storev_f32,
    storev_i8,
    to_i32,
)
from .codebook import FIT, NEAREST
from .scale_search import FLAT, REFITS, ROUNDS
from .scale_search_lanes import (
    VECTOR,
    constant,
    half,
    inverse,
    load_lanes,
    neighbour,
    of_table,
    power_below,
    store_lanes,
    where_more,
    where_not_less,
    whole,
)


def _fit_symmetric(level: Any) -> Any:
    @jit
    def fit_symmetric(
        a: Any, x: int, w: int, wx: int, n: int, starts: int, n_starts: int, low: Any, high: Any
    ) -> Any:
        peak = constant(0)
        for i in range(0, n * VECTOR, VECTOR):
            v = loadv_f32(x + i)
            peak = maximum(absolute(v), peak)
            storev_f32(wx + i, loadv_f32(w + i) * v)
        per_peak = inverse(peak)
        best, scale, bend = constant(0), constant(0), constant(0)
        for k in range(n_starts + REFITS):
            per_scale = splat_f32(load_f32(starts + 4 * k)) * per_peak if k < n_starts else inverse(scale)
            along, square = constant(0), constant(0)
            for i in range(0, n * VECTOR, VECTOR):
                chosen = level(loadv_f32(x + i) * per_scale, a, low, high)
                along = along + loadv_f32(wx + i) * chosen
                square = square + loadv_f32(w + i) * chosen * chosen
            solved = along * inverse(square)
            gain = along * solved
            scale = where_more(gain, best, solved, scale)
            bend = where_more(gain, best, square, bend)
            best = where_more(gain, best, gain, best)
        return scale, bend

    return fit_symmetric


_fit_uniform, _fit_table = _fit_symmetric(whole), _fit_symmetric(of_table)


@jit
def _fit_affine(a: Any, x: int, w: int, y: int, n: int, low_level: Any, top: Any) -> Any:
    low = high = loadv_f32(x)
    for i in range(VECTOR, n * VECTOR, VECTOR):
        v = loadv_f32(x + i)
        low, high = minimum(v, low), maximum(v, high)
    if a.positive_minimum:
        low = minimum(low, constant(0))
    span = high - low
    per_span = inverse(span)
    sum_w, sum_wy = constant(0), constant(0)
    for i in range(0, n * VECTOR, VECTOR):
        v, weight = loadv_f32(x + i) - low, loadv_f32(w + i)
        storev_f32(y + i, v)
        sum_w = sum_w + weight
        sum_wy = sum_wy + weight * v
    least = constant(-np.inf)
    scale, offset, bend, best = constant(0), constant(0), constant(0), least
    for k in range(a.n_starts + REFITS):
        if k < a.n_starts:
            start = splat_f32(load_f32(a.starts + 8 * k)) * span
            per_scale = splat_f32(load_f32(a.starts + 8 * k + 4)) * per_span
        else:
            start, per_scale = offset, inverse(scale)
        one, two, along = constant(0), constant(0), constant(0)
        for i in range(0, n * VECTOR, VECTOR):
            v, weight = loadv_f32(y + i), loadv_f32(w + i)
            chosen = whole((v - start) * per_scale, a, low_level, top)
            w_chosen = weight * chosen
            one = one + w_chosen
            two = two + w_chosen * chosen
            along = along + weight * v * chosen
        flat = constant(FLAT) * sum_w * two
        determinant = sum_w * two - one * one
        per_determinant = inverse(determinant)
        alone = along * inverse(two)
        s = where_more(determinant, flat, (sum_w * along - sum_wy * one) * per_determinant, alone)
        o = where_more(determinant, flat, (two * sum_wy - one * along) * per_determinant, constant(0))
        if a.positive_minimum:
            most = constant(0) - low
            s = where_more(o, most, (along + low * one) * inverse(two), s)
            o = where_more(o, most, most, o)
        gain = constant(2) * (s * along + o * sum_wy) - (
            s * s * two + constant(2) * s * o * one + o * o * sum_w
        )
        gain = where_more(s, constant(0), gain, least)
        scale = where_more(gain, best, s, scale)
        offset = where_more(gain, best, o, offset)
        bend = where_more(gain, best, two, bend)
        best = where_more(gain, best, gain, best)
    return scale, bend, constant(0) - (low + offset), sum_w


@jit
def _fit_power(a: Any, x: int, w: int, low: Any, high: Any) -> Any:
    peak = constant(2.0**-100)
    for i in range(0, a.run * VECTOR, VECTOR):
        peak = maximum(absolute(loadv_f32(x + i)), peak)
    power = power_below(peak) * constant(1 / 8)
    best, scale = constant(np.inf), power
    for k in range(3):
        s = power * constant(1.0 if k == 0 else 0.5 if k == 1 else 2.0)
        per_scale = inverse(s)
        error = constant(0)
        for i in range(0, a.run * VECTOR, VECTOR):
            v = loadv_f32(x + i)
            off = s * of_table(v * per_scale, a, low, high) - v
            error = error + loadv_f32(w + i) * off * off
        scale = where_more(best, error, s, scale)
        best = where_more(best, error, error, best)
    return scale


@jit
def _fit_whole(a: Any, scale: int, weight: int, wx: int, out: int) -> Any:
    """The block's scale for its runs' `scale`; their whole numbers go to `out`."""
    n = a.block_size // a.run
    low, high = constant(a.scale_low), constant(a.scale_high)
    d = half(_fit_uniform(a, scale, weight, wx, n, a.scale_starts, a.n_scale_starts, low, high)[0])
    per_d = inverse(d)
    for i in range(0, n * VECTOR, VECTOR):
        storev_f32(out + i, whole(loadv_f32(scale + i) * per_d, a, low, high))
    return d


def _refine(level: Any) -> Any:
    @jit
    def refine(
        a: Any, x: int, w: int, s: int, m: int, best: int, d: Any, dmin: Any, low: Any, high: Any
    ) -> Any:
        """Refines d, dmin and the whole numbers at `s` and `m`; the best of these are kept at `best`."""
        n, runs = a.run, a.block_size // a.run
        s_low, s_high = constant(a.scale_low), constant(a.scale_high)
        top = constant(a.scale_high if a.affine else 0)
        n_min_steps = 3 if a.affine else 1
        least, best_d, best_dmin = constant(np.inf), d, dmin
        for _ in range(ROUNDS):
            total, ss, sm, mm, xs, xm = (
                constant(0),
                constant(0),
                constant(0),
                constant(0),
                constant(0),
                constant(0),
            )
            for r in range(runs):
                xr, wr = x + r * n * VECTOR, w + r * n * VECTOR
                s_now, m_now = loadv_f32(s + r * VECTOR), loadv_f32(m + r * VECTOR)
                run_best, s_best, m_best = constant(np.inf), s_now, m_now
                for step in range(3):
                    near_s = minimum(maximum(s_now + neighbour(step), s_low), s_high)
                    scale = d * near_s
                    per_scale = inverse(scale)
                    for min_step in range(n_min_steps):
                        near_m = minimum(maximum(m_now + neighbour(min_step), constant(0)), top)
                        low_end = dmin * near_m
                        error = constant(0)
                        for i in range(0, n * VECTOR, VECTOR):
                            v = loadv_f32(xr + i)
                            off = scale * level((v + low_end) * per_scale, a, low, high) - low_end - v
                            error = error + loadv_f32(wr + i) * off * off
                        s_best = where_more(run_best, error, near_s, s_best)
                        m_best = where_more(run_best, error, near_m, m_best)
                        run_best = where_more(run_best, error, error, run_best)
                storev_f32(s + r * VECTOR, s_best)
                storev_f32(m + r * VECTOR, m_best)
                low_end = dmin * m_best
                per_scale = inverse(d * s_best)
                wll, wl, w1, wlx, wx = constant(0), constant(0), constant(0), constant(0), constant(0)
                for i in range(0, n * VECTOR, VECTOR):
                    v, weight = loadv_f32(xr + i), loadv_f32(wr + i)
                    chosen = level((v + low_end) * per_scale, a, low, high)
                    w_chosen = weight * chosen
                    wll = wll + w_chosen * chosen
                    wl = wl + w_chosen
                    w1 = w1 + weight
                    wlx = wlx + w_chosen * v
                    wx = wx + weight * v
                total = total + run_best
                ss = ss + s_best * s_best * wll
                sm = sm + s_best * m_best * wl
                mm = mm + m_best * m_best * w1
                xs = xs + s_best * wlx
                xm = xm + m_best * wx
            for i in range(0, runs * VECTOR, VECTOR):
                storev_f32(best + i, where_more(least, total, loadv_f32(s + i), loadv_f32(best + i)))
                at = best + runs * VECTOR + i
                storev_f32(at, where_more(least, total, loadv_f32(m + i), loadv_f32(at)))
            best_d = where_more(least, total, d, best_d)
            best_dmin = where_more(least, total, dmin, best_dmin)
            least = where_more(least, total, total, least)
            determinant = ss * mm - sm * sm
            flat = constant(FLAT) * ss * mm
            per_determinant = inverse(determinant)
            alone = (xs + dmin * sm) * inverse(ss)
            solved = where_more(determinant, flat, (xs * mm - xm * sm) * per_determinant, alone)
            solved_min = where_more(determinant, flat, (xs * sm - xm * ss) * per_determinant, dmin)
            kept_d = where_not_less(solved * d, constant(0), half(solved), d)
            d_next = where_not_less(solved_min, constant(0), kept_d, d)
            kept_dmin = where_not_less(solved * d, constant(0), half(solved_min), dmin)
            dmin = where_not_less(solved_min, constant(0), kept_dmin, dmin)
            d = d_next
        return best_d, best_dmin

    return refine


_refine_uniform, _refine_table = _refine(whole), _refine(of_table)


def _fit(fit_run: Any, refine: Any) -> Callable[[int, int, int], None]:
    """A kernel that finds the scales of all blocks of a FIT record.

    `fit_run(a, x, w, wx, low, high)` gives a run's scale, its bend, minimum and weight.
    """

    def fit(arguments: int, unused_step: int, unused_thread: int) -> None:
        a = carray(as_pointer(arguments), 1, FIT)[0]
        runs = a.block_size // a.run
        low, high = splat_f32(load_f32(a.levels)), splat_f32(load_f32(a.levels + 4 * (a.n_levels - 1)))
        x = a.scratch
        w = x + a.block_size * VECTOR
        wx = w + a.block_size * VECTOR
        scale = wx + max(a.run, runs) * VECTOR
        bend, least, weight = (
            scale + runs * VECTOR,
            scale + 2 * runs * VECTOR,
            scale + 3 * runs * VECTOR,
        )
        s, m, best = scale + 4 * runs * VECTOR, scale + 5 * runs * VECTOR, scale + 6 * runs * VECTOR
        for first in range(0, a.n_blocks, LANES):
            load_lanes(a, first, x, w)
            for r in range(runs):
                at = r * a.run * VECTOR
                found = fit_run(a, x + at, w + at, wx, low, high)
                storev_f32(scale + r * VECTOR, found[0])
                storev_f32(bend + r * VECTOR, found[1])
                storev_f32(least + r * VECTOR, found[2])
                storev_f32(weight + r * VECTOR, found[3])
            if a.n_scale_starts:
                d = _fit_whole(a, scale, bend, wx, s)
                dmin = _fit_whole(a, least, weight, wx, m)
                for i in range(0, 2 * runs * VECTOR, VECTOR):
                    storev_f32(best + i, loadv_f32(s + i))
                d, dmin = refine(a, x, w, s, m, best, d, dmin, low, high)
            else:
                d, dmin = half(loadv_f32(scale)), half(loadv_f32(least))
            store_lanes(a, first, d, dmin, wx, best)

    return fit


@jit
def _uniform_run(a: Any, x: int, w: int, wx: int, low: Any, high: Any) -> Any:
    scale, bend = _fit_uniform(a, x, w, wx, a.run, a.starts, a.n_starts, low, high)
    return scale, bend, constant(0), constant(0)


@jit
def _table_run(a: Any, x: int, w: int, wx: int, low: Any, high: Any) -> Any:
    scale, bend = _fit_table(a, x, w, wx, a.run, a.starts, a.n_starts, low, high)
    return scale, bend, constant(0), constant(0)


@jit
def _affine_run(a: Any, x: int, w: int, wx: int, low: Any, high: Any) -> Any:
    return _fit_affine(a, x, w, wx, a.run, low, high)


def _fit_powers(arguments: int, unused_step: int, unused_thread: int) -> None:
    """The scale of each block of a FIT record, a power of two."""
    a = carray(as_pointer(arguments), 1, FIT)[0]
    low, high = splat_f32(load_f32(a.levels)), splat_f32(load_f32(a.levels + 4 * (a.n_levels - 1)))
    w = a.scratch + a.block_size * VECTOR
    for first in range(0, a.n_blocks, LANES):
        load_lanes(a, first, a.scratch, w)
        d = _fit_power(a, a.scratch, w, low, high)
        store_lanes(a, first, d, constant(0), w, w)


FITS: dict[str, EntryPoint] = {
    "uniform": kernel(_fit(_uniform_run, _refine_uniform)),
    "table": kernel(_fit(_table_run, _refine_table)),
    "affine": kernel(_fit(_affine_run, _refine_uniform)),
    "powers": kernel(_fit_powers),
}


@jit
def _code_of_whole(y: Any, a: Any, low: Any, high: Any) -> Any:
    return whole(y, a, low, high) - low


@jit
def _code_of_table(y: Any, a: Any, low: Any, high: Any) -> Any:
    found = constant(0)
    borders = a.levels + 4 * a.n_levels
    for i in range(a.n_levels - 1):
        found = found + where_not_less(y, splat_f32(load_f32(borders + 4 * i)), constant(1), constant(0))
    return found


def _nearest(code: Any) -> Callable[[int, int, int], None]:
    def nearest(arguments: int, unused_step: int, unused_thread: int) -> None:
        """The codes of all runs of a NEAREST record."""
        a = carray(as_pointer(arguments), 1, NEAREST)[0]
        low, high = splat_f32(load_f32(a.levels)), splat_f32(load_f32(a.levels + 4 * (a.n_levels - 1)))
        for r in range(a.n_runs):
            per_scale = inverse(splat_f32(load_f32(a.scale + 4 * r)))
            least = splat_f32(load_f32(a.minimum + 4 * r))
            for i in range(r * a.run, (r + 1) * a.run, LANES):
                y = (loadv_f32(a.weights + 4 * i) + least) * per_scale
                storev_i8(a.out + i, to_i32(code(y, a, low, high)))

    return nearest


NEARESTS: dict[str, EntryPoint] = {
    "uniform": kernel(_nearest(_code_of_whole)),
    "table": kernel(_nearest(_code_of_table)),
}
