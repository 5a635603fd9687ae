"""The compiled search for scales; `search` is its twin and says what is done and why.

A lane of a vector is a block: vectors hold the same weight of `LANES` blocks, and no sum crosses lanes. So the
results are those of the twin, in every bit, whatever the SIMD level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray

from .emit import F32V, HALF, I32V, all_lanes
from .grid import FIT, NEAREST
from .jit import EntryPoint, jit, kernel
from .levels import LANES
from .search import (
    FLAT,
    LARGEST,
    LARGEST_HALF,
    REFITS,
    ROUNDS,
    SMALLEST,
)
from .simd import (
    F32,
    absolute,
    as_pointer,
    instruction,
    load_f32,
    loadv_f32,
    maximum,
    minimum,
    round_even,
    splat_f32,
    store_f32,
    storev_f32,
    storev_i8,
    to_i32,
)

VECTOR = 4 * LANES  # bytes


@instruction(F32, F32, F32, F32, F32)
def where_more(builder: Any, a: Any, b: Any, then: Any, other: Any) -> Any:
    """`then` in the lanes where a > b, else `other`; vcmpps + vblendmps."""
    return builder.select(builder.fcmp_ordered(">", a, b), then, other)


@instruction(F32, F32, F32, F32, F32)
def where_not_less(builder: Any, a: Any, b: Any, then: Any, other: Any) -> Any:
    """`then` in the lanes where a >= b, else `other`."""
    return builder.select(builder.fcmp_ordered(">=", a, b), then, other)


@instruction(F32, F32)
def through_half(builder: Any, a: Any) -> Any:
    """Rounded to fp16 and widened again; vcvtps2ph + vcvtph2ps."""
    return builder.fpext(builder.fptrunc(a, ir.VectorType(HALF, LANES)), F32V)


@instruction(F32, F32)
def power_below(builder: Any, a: Any) -> Any:
    """The largest power of two that is not above a normal positive number; vandps."""
    bits = builder.and_(builder.bitcast(a, I32V), all_lanes(I32V, 0x7F800000))
    return builder.bitcast(bits, F32V)


@jit
def _all(value: float) -> Any:
    return splat_f32(np.float32(value))


@jit
def _inverse(v: Any) -> Any:
    return where_more(absolute(v), _all(SMALLEST), _all(1) / v, _all(0))


@jit
def _half(v: Any) -> Any:
    return through_half(minimum(maximum(v, _all(-LARGEST_HALF)), _all(LARGEST_HALF)))


@jit
def _whole(y: Any, a: Any, low: Any, high: Any) -> Any:
    """The nearest of consecutive whole numbers."""
    return minimum(maximum(round_even(y), low), high)


@jit
def _of_table(y: Any, a: Any, low: Any, high: Any) -> Any:
    """The nearest of a table of levels, behind which lies halfway from each to the next."""
    found = low
    half = a.levels + 4 * a.n_levels
    for i in range(a.n_levels - 1):
        border = splat_f32(load_f32(half + 4 * i))
        found = where_not_less(y, border, splat_f32(load_f32(a.levels + 4 * i + 4)), found)
    return found


def _fit_symmetric(level: Any) -> Any:
    @jit
    def fit_symmetric(
        a: Any, x: int, w: int, wx: int, n: int, starts: int, n_starts: int, low: Any, high: Any
    ) -> Any:
        peak = _all(0)
        for i in range(0, n * VECTOR, VECTOR):
            v = loadv_f32(x + i)
            peak = maximum(absolute(v), peak)
            storev_f32(wx + i, loadv_f32(w + i) * v)
        per_peak = _inverse(peak)
        best, scale, bend = _all(0), _all(0), _all(0)
        for k in range(n_starts + REFITS):
            per_scale = splat_f32(load_f32(starts + 4 * k)) * per_peak if k < n_starts else _inverse(scale)
            along, square = _all(0), _all(0)
            for i in range(0, n * VECTOR, VECTOR):
                chosen = level(loadv_f32(x + i) * per_scale, a, low, high)
                along = along + loadv_f32(wx + i) * chosen
                square = square + loadv_f32(w + i) * chosen * chosen
            solved = along * _inverse(square)
            gain = along * solved
            scale = where_more(gain, best, solved, scale)
            bend = where_more(gain, best, square, bend)
            best = where_more(gain, best, gain, best)
        return scale, bend

    return fit_symmetric


_fit_uniform, _fit_table = _fit_symmetric(_whole), _fit_symmetric(_of_table)


@jit
def _fit_affine(a: Any, x: int, w: int, y: int, n: int, low_level: Any, top: Any) -> Any:
    low = high = loadv_f32(x)
    for i in range(VECTOR, n * VECTOR, VECTOR):
        v = loadv_f32(x + i)
        low, high = minimum(v, low), maximum(v, high)
    if a.positive_minimum:
        low = minimum(low, _all(0))
    span = high - low
    per_span = _inverse(span)
    sum_w, sum_wy = _all(0), _all(0)
    for i in range(0, n * VECTOR, VECTOR):
        v, weight = loadv_f32(x + i) - low, loadv_f32(w + i)
        storev_f32(y + i, v)
        sum_w = sum_w + weight
        sum_wy = sum_wy + weight * v
    least = _all(-np.inf)
    scale, offset, bend, best = _all(0), _all(0), _all(0), least
    for k in range(a.n_starts + REFITS):
        if k < a.n_starts:
            start = splat_f32(load_f32(a.starts + 8 * k)) * span
            per_scale = splat_f32(load_f32(a.starts + 8 * k + 4)) * per_span
        else:
            start, per_scale = offset, _inverse(scale)
        one, two, along = _all(0), _all(0), _all(0)
        for i in range(0, n * VECTOR, VECTOR):
            v, weight = loadv_f32(y + i), loadv_f32(w + i)
            chosen = _whole((v - start) * per_scale, a, low_level, top)
            w_chosen = weight * chosen
            one = one + w_chosen
            two = two + w_chosen * chosen
            along = along + weight * v * chosen
        flat = _all(FLAT) * sum_w * two
        determinant = sum_w * two - one * one
        per_determinant = where_more(determinant, flat, _inverse(determinant), _all(0))
        s = (sum_w * along - sum_wy * one) * per_determinant
        o = (two * sum_wy - one * along) * per_determinant
        if a.positive_minimum:
            most = _all(0) - low
            s = where_more(o, most, (along + low * one) * _inverse(two), s)
            o = where_more(o, most, most, o)
        gain = _all(2) * (s * along + o * sum_wy) - (s * s * two + _all(2) * s * o * one + o * o * sum_w)
        gain = where_more(s, _all(0), gain, least)
        scale = where_more(gain, best, s, scale)
        offset = where_more(gain, best, o, offset)
        bend = where_more(gain, best, two, bend)
        best = where_more(gain, best, gain, best)
    return scale, bend, _all(0) - (low + offset), sum_w


@jit
def _fit_power(a: Any, x: int, w: int, low: Any, high: Any) -> Any:
    peak = _all(2.0**-100)
    for i in range(0, a.run * VECTOR, VECTOR):
        peak = maximum(absolute(loadv_f32(x + i)), peak)
    power = power_below(peak) * _all(1 / 8)
    best, scale = _all(np.inf), power
    for k in range(3):
        s = power * _all(1.0 if k == 0 else 0.5 if k == 1 else 2.0)
        per_scale = _inverse(s)
        error = _all(0)
        for i in range(0, a.run * VECTOR, VECTOR):
            v = loadv_f32(x + i)
            off = s * _of_table(v * per_scale, a, low, high) - v
            error = error + loadv_f32(w + i) * off * off
        scale = where_more(best, error, s, scale)
        best = where_more(best, error, error, best)
    return scale


@jit
def _fit_whole(a: Any, scale: int, weight: int, wx: int, out: int) -> Any:
    """The block's scale for its runs' `scale`; their whole numbers go to `out`."""
    n = a.block_size // a.run
    low, high = _all(a.scale_low), _all(a.scale_high)
    d = _half(_fit_uniform(a, scale, weight, wx, n, a.scale_starts, a.n_scale_starts, low, high)[0])
    per_d = _inverse(d)
    for i in range(0, n * VECTOR, VECTOR):
        storev_f32(out + i, _whole(loadv_f32(scale + i) * per_d, a, low, high))
    return d


@jit
def _neighbour(k: int) -> Any:
    return _all(0.0 if k == 0 else -1.0 if k == 1 else 1.0)


def _refine(level: Any) -> Any:
    @jit
    def refine(
        a: Any, x: int, w: int, s: int, m: int, best: int, d: Any, dmin: Any, low: Any, high: Any
    ) -> Any:
        """Refines d, dmin and the whole numbers at `s` and `m`; the best of these are kept at `best`."""
        n, runs = a.run, a.block_size // a.run
        s_low, s_high = _all(a.scale_low), _all(a.scale_high)
        top = _all(a.scale_high if a.affine else 0)
        n_min_steps = 3 if a.affine else 1
        least, best_d, best_dmin = _all(np.inf), d, dmin
        for _ in range(ROUNDS):
            total, ss, sm, mm, xs, xm = _all(0), _all(0), _all(0), _all(0), _all(0), _all(0)
            for r in range(runs):
                xr, wr = x + r * n * VECTOR, w + r * n * VECTOR
                s_now, m_now = loadv_f32(s + r * VECTOR), loadv_f32(m + r * VECTOR)
                run_best, s_best, m_best = _all(np.inf), s_now, m_now
                for step in range(3):
                    near_s = minimum(maximum(s_now + _neighbour(step), s_low), s_high)
                    scale = d * near_s
                    per_scale = _inverse(scale)
                    for min_step in range(n_min_steps):
                        near_m = minimum(maximum(m_now + _neighbour(min_step), _all(0)), top)
                        low_end = dmin * near_m
                        error = _all(0)
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
                per_scale = _inverse(d * s_best)
                wll, wl, w1, wlx, wx = _all(0), _all(0), _all(0), _all(0), _all(0)
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
            flat = _all(FLAT) * ss * mm
            per_determinant = _inverse(determinant)
            alone = (xs + dmin * sm) * _inverse(ss)
            solved = where_more(determinant, flat, (xs * mm - xm * sm) * per_determinant, alone)
            solved_min = where_more(determinant, flat, (xs * sm - xm * ss) * per_determinant, dmin)
            kept_d = where_not_less(solved * d, _all(0), _half(solved), d)
            d_next = where_not_less(solved_min, _all(0), kept_d, d)
            kept_dmin = where_not_less(solved * d, _all(0), _half(solved_min), dmin)
            dmin = where_not_less(solved_min, _all(0), kept_dmin, dmin)
            d = d_next
        return best_d, best_dmin

    return refine


_refine_uniform, _refine_table = _refine(_whole), _refine(_of_table)


@jit
def _load_lanes(a: Any, first: int, x: int, w: int) -> None:
    """`LANES` blocks from the first and their importance, weight by weight; zeros for blocks that are not there."""
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
def _store_lanes(a: Any, first: int, d: Any, dmin: Any, scratch: int, whole: int) -> None:
    """d and dmin, and the runs' whole s and m at `whole`, to where the record says."""
    runs = a.block_size // a.run
    storev_f32(scratch, d)
    storev_f32(scratch + VECTOR, dmin)
    for lane in range(min(LANES, a.n_blocks - first)):
        block = first + lane
        store_f32(a.d + 4 * block, load_f32(scratch + 4 * lane))
        store_f32(a.dmin + 4 * block, load_f32(scratch + VECTOR + 4 * lane))
        if a.n_scale_starts:
            for r in range(runs):
                s = whole + r * VECTOR + 4 * lane
                store_f32(a.s + 4 * (block * runs + r), load_f32(s))
                store_f32(a.m + 4 * (block * runs + r), load_f32(s + runs * VECTOR))


def _fit(fit_run: Any, refine: Any) -> Callable[[int, int, int], None]:
    """A kernel: scales of all blocks of a FIT record. `fit_run(a, x, w, wx, low, high)` gives a run's scale, its
    bend, minimum and weight."""

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
            _load_lanes(a, first, x, w)
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
                d, dmin = _half(loadv_f32(scale)), _half(loadv_f32(least))
            _store_lanes(a, first, d, dmin, wx, best)

    return fit


@jit
def _uniform_run(a: Any, x: int, w: int, wx: int, low: Any, high: Any) -> Any:
    scale, bend = _fit_uniform(a, x, w, wx, a.run, a.starts, a.n_starts, low, high)
    return scale, bend, _all(0), _all(0)


@jit
def _table_run(a: Any, x: int, w: int, wx: int, low: Any, high: Any) -> Any:
    scale, bend = _fit_table(a, x, w, wx, a.run, a.starts, a.n_starts, low, high)
    return scale, bend, _all(0), _all(0)


@jit
def _affine_run(a: Any, x: int, w: int, wx: int, low: Any, high: Any) -> Any:
    return _fit_affine(a, x, w, wx, a.run, low, high)


def _fit_powers(arguments: int, unused_step: int, unused_thread: int) -> None:
    """The scale of each block of a FIT record, a power of two."""
    a = carray(as_pointer(arguments), 1, FIT)[0]
    low, high = splat_f32(load_f32(a.levels)), splat_f32(load_f32(a.levels + 4 * (a.n_levels - 1)))
    w = a.scratch + a.block_size * VECTOR
    for first in range(0, a.n_blocks, LANES):
        _load_lanes(a, first, a.scratch, w)
        d = _fit_power(a, a.scratch, w, low, high)
        _store_lanes(a, first, d, _all(0), w, w)


FITS: dict[str, EntryPoint] = {
    "uniform": kernel(_fit(_uniform_run, _refine_uniform)),
    "table": kernel(_fit(_table_run, _refine_table)),
    "affine": kernel(_fit(_affine_run, _refine_uniform)),
    "powers": kernel(_fit_powers),
}


@jit
def _code_of_whole(y: Any, a: Any, low: Any, high: Any) -> Any:
    return _whole(y, a, low, high) - low


@jit
def _code_of_table(y: Any, a: Any, low: Any, high: Any) -> Any:
    found = _all(0)
    half = a.levels + 4 * a.n_levels
    for i in range(a.n_levels - 1):
        found = found + where_not_less(y, splat_f32(load_f32(half + 4 * i)), _all(1), _all(0))
    return found


def _nearest(code: Any) -> Callable[[int, int, int], None]:
    def nearest(arguments: int, unused_step: int, unused_thread: int) -> None:
        """The codes of all runs of a NEAREST record."""
        a = carray(as_pointer(arguments), 1, NEAREST)[0]
        low, high = splat_f32(load_f32(a.levels)), splat_f32(load_f32(a.levels + 4 * (a.n_levels - 1)))
        for r in range(a.n_runs):
            per_scale = _inverse(splat_f32(load_f32(a.scale + 4 * r)))
            least = splat_f32(load_f32(a.minimum + 4 * r))
            for i in range(r * a.run, (r + 1) * a.run, LANES):
                y = (loadv_f32(a.weights + 4 * i) + least) * per_scale
                storev_i8(a.out + i, to_i32(code(y, a, low, high)))

    return nearest


NEARESTS: dict[str, EntryPoint] = {
    "uniform": kernel(_nearest(_code_of_whole)),
    "table": kernel(_nearest(_code_of_table)),
}
