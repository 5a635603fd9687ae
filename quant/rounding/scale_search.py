"""The search for scales that lose least, in NumPy: the twin of `search_kernels`, operation by operation.

A block's weights lie along the first axes and blocks along the last, as lanes of a vector do in the kernels:
no sum crosses it, and sums go from the first weight to the last. All is float32: the two agree in every bit.

For given codes the error Σ w · (x - s · level + m)² is a quadratic in the scale s and the minimum m, and the
best of them have a closed form. So the search starts from many codebooks laid over a run (`starts`), rounds to
each, solves, and goes on from the best. Scales of scales are then fitted in the same way to what the runs
want, and refined together: each run's whole numbers by trying their neighbours with the codes that these
would give, and the block's scales by the closed form over all its runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..formats.packing import Scales

SMALLEST = np.float32(1e-30)  # what is less has no inverse
LARGEST = np.float32(3e8)  # magnitudes are cut here: more than any format can hold
LARGEST_HALF = np.float32(65504)
FLAT = np.float32(1e-5)  # determinants below this part of their terms are noise
REFITS = 2  # rounds of rounding and solving from the best start
ROUNDS = 3  # rounds of refining scales of scales
NEIGHBOURS = (0, -1, 1)
TWO = np.float32(2)

Level = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ScaleSearch:
    """How the scales of a format are found."""

    starts: (
        np.ndarray
    )  # float32 [k], levels that the largest magnitude is laid on; or [k, 2], see `fit_affine`
    affine: bool = False
    positive_minimum: bool = False
    powers: bool = False  # scales are powers of two
    scale_range: tuple[int, int] = (
        0,
        0,
    )  # of the whole numbers that runs' scales are; (0, 0): runs have none
    scale_starts: np.ndarray | None = None  # float32 [k], as `starts`, for the scale of these


def level_of(levels: np.ndarray) -> Level:
    """The function that rounds float32 to the nearest of ascending float32 `levels`."""
    if (np.diff(levels) == 1).all():
        return lambda y: np.minimum(np.maximum(np.rint(y), levels[0]), levels[-1])
    halfway = midpoints(levels)
    return lambda y: levels[np.searchsorted(halfway, y, side="right")]


def midpoints(levels: np.ndarray) -> np.ndarray:
    """Where rounding goes from one level to the next."""
    return ((levels[1:] + levels[:-1]) / TWO).astype(np.float32)


def find_scales(
    blocks: np.ndarray, importance: np.ndarray, levels: np.ndarray, run: int, how: ScaleSearch
) -> Scales:
    """The scales for float32 blocks `[n, block_size]` under importance of the same shape."""
    n, size = blocks.shape
    shape = size // run, run, n
    x = np.ascontiguousarray(blocks.clip(-LARGEST, LARGEST).T).reshape(shape)
    w = np.ascontiguousarray(importance.T).reshape(shape)
    level = level_of(levels)
    ones = np.ones((n, 1), np.float32)
    if how.powers:
        return Scales(fit_power(x[0], w[0], level), 0 * ones[:, 0], ones, ones)
    fits = [
        fit_affine(x_r, w_r, level, levels[-1], how)
        if how.affine
        else (*fit_symmetric(x_r, w_r, level, how.starts), 0 * x_r[0], 0 * x_r[0])
        for x_r, w_r in zip(x, w, strict=True)
    ]
    scale, bend, minimum, weight = (np.stack(column) for column in zip(*fits, strict=True))  # [runs, n]
    if how.scale_starts is None:
        return Scales(half(scale[0]), half(minimum[0]), ones, ones)
    low, high = how.scale_range
    d, s = fit_whole(scale, bend, how.scale_starts, low, high)
    dmin, m = fit_whole(minimum, weight, how.scale_starts, low, high)
    limits = low, high, high if how.affine else 0
    return refine(x, w, level, (d, dmin, s, m), limits)


def fit_symmetric(
    x: np.ndarray, w: np.ndarray, level: Level, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The scale s that makes Σ w (x - s · level(x / s))² small, and Σ w · level² there; x, w `[run, n]`."""
    wx = w * x
    per_peak = inverse(np.abs(x).max(axis=0))
    best, scale, bend = (np.zeros(x.shape[1], np.float32) for _ in range(3))
    for k in range(len(starts) + REFITS):
        per_scale = starts[k] * per_peak if k < len(starts) else inverse(scale)
        chosen = level(x * per_scale)
        along, square = total(wx * chosen), total(w * chosen * chosen)
        solved = along * inverse(square)
        gain = along * solved
        better = gain > best
        best, scale, bend = pick(better, (gain, solved, square), (best, scale, bend))
    return scale, bend


def fit_affine(
    x: np.ndarray, w: np.ndarray, level: Level, top: np.float32, how: ScaleSearch
) -> tuple[np.ndarray, ...]:
    """Scale s and minimum m that make Σ w (x - s · level((x + m) / s) + m)² small: s, Σ w · level², m, Σ w.

    Starts lay level 0 on `low + a · span` and the top level on `low + b · span`: they are (a, top / (b - a)).
    """
    low, high = x.min(axis=0), x.max(axis=0)
    if how.positive_minimum:
        low = np.minimum(low, np.float32(0))
    span = high - low
    per_span = inverse(span)
    y = x - low
    wy = w * y
    sum_w, sum_wy = total(w), total(wy)
    scale, offset, bend = (np.zeros(x.shape[1], np.float32) for _ in range(3))
    best = np.full_like(scale, -np.inf)
    for k in range(len(how.starts) + REFITS):
        if k < len(how.starts):
            start, per_scale = how.starts[k, 0] * span, how.starts[k, 1] * per_span
        else:
            start, per_scale = offset, inverse(scale)
        chosen = level((y - start) * per_scale)
        w_chosen = w * chosen
        one, two, along = total(w_chosen), total(w_chosen * chosen), total(wy * chosen)
        flat = FLAT * sum_w * two
        determinant = sum_w * two - one * one
        per_determinant = inverse(determinant)
        s, o = pick(  # where all codes are the same, from `low` on
            determinant > flat,
            (
                (sum_w * along - sum_wy * one) * per_determinant,
                (two * sum_wy - one * along) * per_determinant,
            ),
            (along * inverse(two), np.zeros_like(two)),
        )
        if how.positive_minimum:
            over = o > 0 - low
            s, o = pick(over, ((along + low * one) * inverse(two), 0 - low), (s, o))
        gain = TWO * (s * along + o * sum_wy) - (s * s * two + TWO * s * o * one + o * o * sum_w)
        gain = np.where(s > 0, gain, np.float32(-np.inf))
        better = gain > best
        best, scale, offset, bend = pick(better, (gain, s, o, two), (best, scale, offset, bend))
    return scale, bend, 0 - (low + offset), sum_w


def fit_power(x: np.ndarray, w: np.ndarray, level: Level) -> np.ndarray:
    """The power of two that makes Σ w (x - s · level(x / s))² least, of three around the peak."""
    peak = np.maximum(np.abs(x).max(axis=0), np.float32(2.0**-100))
    power = (peak.view(np.int32) & 0x7F800000).view(np.float32) * np.float32(1 / 8)
    best, scale = np.full_like(power, np.inf), power
    for factor in (1, 0.5, 2):
        s = power * np.float32(factor)
        error = total(w * (s * level(x * inverse(s)) - x) * (s * level(x * inverse(s)) - x))
        best, scale = pick(error < best, (error, s), (best, scale))
    return scale


def fit_whole(
    scale: np.ndarray, weight: np.ndarray, starts: np.ndarray, low: int, high: int
) -> tuple[np.ndarray, np.ndarray]:
    """d `[n]` in fp16 and whole s `[runs, n]` that make Σ weight · (scale - d · s)² small."""

    def whole(y: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(np.rint(y), np.float32(low)), np.float32(high))

    d = half(fit_symmetric(scale, weight, whole, starts)[0])
    return d, whole(scale * inverse(d))


def refine(
    x: np.ndarray,
    w: np.ndarray,
    level: Level,
    found: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    limits: tuple[int, int, int],
) -> Scales:
    """Scales of scales and the runs' whole numbers together, from d, dmin `[n]`, s and m `[runs, n]`."""
    d, dmin, s, m = found
    low, high, top = (np.float32(limit) for limit in limits)
    best = np.full_like(d, np.inf)
    best_d, best_dmin, best_s, best_m = found
    for _ in range(ROUNDS):
        runs = [refine_run(*run, level, d, dmin, (low, high, top)) for run in zip(x, w, s, m, strict=True)]
        s, m, errors, *terms = (np.stack(column) for column in zip(*runs, strict=True))
        error = total(errors)
        better = error < best
        best, best_d, best_dmin, best_s, best_m = pick(
            better, (error, d, dmin, s, m), (best, best_d, best_dmin, best_s, best_m)
        )
        ss, sm, mm, xs, xm = (total(term) for term in terms)
        determinant = ss * mm - sm * sm
        sound = determinant > FLAT * ss * mm
        per_determinant = inverse(determinant)
        solved, solved_min = pick(
            sound,
            ((xs * mm - xm * sm) * per_determinant, (xs * sm - xm * ss) * per_determinant),
            ((xs + dmin * sm) * inverse(ss), dmin),
        )
        usable = (solved * d >= 0) & (solved_min >= 0)
        d, dmin = pick(usable, (half(solved), half(solved_min)), (d, dmin))
    return Scales(best_d, best_dmin, np.ascontiguousarray(best_s.T), np.ascontiguousarray(best_m.T))


def refine_run(
    x: np.ndarray,
    w: np.ndarray,
    s: np.ndarray,
    m: np.ndarray,
    level: Level,
    d: np.ndarray,
    dmin: np.ndarray,
    limits: tuple[np.float32, np.float32, np.float32],
) -> tuple[np.ndarray, ...]:
    """A run's best whole s and m near the given, its error, and its terms of the equations for d and dmin."""
    low, high, top = limits
    best, best_s, best_m = np.full_like(d, np.inf), s, m
    for step in NEIGHBOURS:
        near_s = np.minimum(np.maximum(s + np.float32(step), low), high)
        scale = d * near_s
        per_scale = inverse(scale)
        for min_step in NEIGHBOURS if top else (0,):
            near_m = np.minimum(np.maximum(m + np.float32(min_step), np.float32(0)), top)
            minimum = dmin * near_m
            off = scale * level((x + minimum) * per_scale) - minimum - x
            error = total(w * off * off)
            best, best_s, best_m = pick(error < best, (error, near_s, near_m), (best, best_s, best_m))
    minimum = dmin * best_m
    chosen = level((x + minimum) * inverse(d * best_s))
    w_chosen = w * chosen
    terms = (
        best_s * best_s * total(w_chosen * chosen),
        best_s * best_m * total(w_chosen),
        best_m * best_m * total(w),
        best_s * total(w_chosen * x),
        best_m * total(w * x),
    )
    return best_s, best_m, best, *terms


def nearest(blocks: np.ndarray, levels: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    """uint8 codes of the levels nearest to float32 `[n, block_size]`; scale and minimum are `[n, runs]`."""
    n, runs = scale.shape
    y = (blocks.reshape(n, runs, -1) + minimum[..., None]) * inverse(scale)[..., None]
    return np.searchsorted(levels, level_of(levels)(y)).astype(np.uint8).reshape(blocks.shape)


def total(terms: np.ndarray) -> np.ndarray:
    """The sum over the first axis, in its order; np.sum chooses its own."""
    found = np.zeros(terms.shape[1:], np.float32)
    for term in terms:
        found = found + term
    return found


def inverse(values: np.ndarray) -> np.ndarray:
    """1 / values, and 0 for what is too small to have one."""
    usable = np.abs(values) > SMALLEST
    return np.where(usable, np.float32(1) / np.where(usable, values, np.float32(1)), np.float32(0))


def half(values: np.ndarray) -> np.ndarray:
    """Rounded to fp16, within its range."""
    return values.clip(-LARGEST_HALF, LARGEST_HALF).astype(np.float16).astype(np.float32)


def pick(where: np.ndarray, then: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Of two tuples of arrays, element by element, the first `where` that is true."""
    return [np.where(where, a, b) for a, b in zip(then, other, strict=True)]
