"""The search for the scales with the least error, in NumPy: the twin of `scale_search_kernels`.

For given codes, the weighted error Σ w · (x - s · level + m)² of a sub-block is a quadratic in its scale s
and minimum m, whose minimiser has a closed form. The search starts from many trial scales (`starts`); for
each it rounds the weights to levels, solves for s and m, and keeps the best; from there it rounds and
solves again.

In K-quants the scales of sub-blocks are d · s with an fp16 d and an integer s. These are fitted to the
sub-blocks' scales by the same search, and then refined together: s and m of each sub-block by trying the
neighbouring integers, with the codes that each of them leads to, and d and dmin by the closed form over all
sub-blocks of the block.

Kernel and twin agree in every bit. Therefore blocks lie along the last axis here, as they are lanes of a
vector in the kernels; all arithmetic is float32, sums add the first weight first, and none crosses the last
axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..formats.packing import Scales

SMALLEST = np.float32(1e-30)  # magnitudes up to here count as 0 in divisions
LARGEST = np.float32(3e8)  # magnitudes are clipped here, beyond what any format can hold
LARGEST_HALF = np.float32(65504)
SINGULAR = np.float32(1e-5)  # a determinant below this fraction of its first term is rounding noise
REFITS = 2  # rounds of rounding and solving after the best start
ROUNDS = 3  # rounds of refining d, dmin, s and m
NEIGHBOURS = (0, -1, 1)
E4M3_LEAST, E4M3_LARGEST = 2.0**-10, 224.0  # halves of E4M3 numbers, since codes are doubled
E4M3_BELOW, E4M3_TRIED = 2, 10  # scales that are tried below the peak's, and in all; eight double a scale
TWO = np.float32(2)

RoundToLevel = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ScaleSearch:
    """The parameters of a format's scale search."""

    # Trial scales: float32 [k], the levels that the largest magnitude is mapped to; if affine [k, 2], see
    # `fit_affine`
    starts: np.ndarray
    affine: bool = False  # sub-blocks have a minimum
    positive_minimum: bool = False  # the minimum is at least 0
    powers: bool = False  # scales are powers of two
    e4m3: bool = False  # scales of sub-blocks are halves of 8-bit floats
    scale_range: tuple[int, int] = (0, 0)  # of s; (0, 0): blocks have no sub-blocks
    scale_starts: np.ndarray | None = None  # float32 [k]: trial values of d, as `starts`


def level_of(levels: np.ndarray) -> RoundToLevel:
    """The function that rounds float32 values to the nearest of ascending float32 `levels`."""
    if (np.diff(levels) == 1).all():
        return lambda y: np.minimum(np.maximum(np.rint(y), levels[0]), levels[-1])
    borders = midpoints(levels)
    return lambda y: levels[np.searchsorted(borders, y, side="right")]


def midpoints(levels: np.ndarray) -> np.ndarray:
    """The values halfway between neighbouring levels, float32 `[n_levels - 1]`."""
    return ((levels[1:] + levels[:-1]) / TWO).astype(np.float32)


def find_scales(
    blocks: np.ndarray, importance: np.ndarray, levels: np.ndarray, sub_block: int, search: ScaleSearch
) -> Scales:
    """The scales for float32 blocks `[n, block_size]` under importance of the same shape."""
    n, size = blocks.shape
    shape = size // sub_block, sub_block, n
    x = np.ascontiguousarray(blocks.clip(-LARGEST, LARGEST).T).reshape(shape)
    w = np.ascontiguousarray(importance.T).reshape(shape)
    level = level_of(levels)
    ones = np.ones((n, 1), np.float32)
    if search.powers:
        return Scales(fit_power(x[0], w[0], level), 0 * ones[:, 0], ones, ones)
    if search.e4m3:
        s = np.stack([fit_e4m3(x_r, w_r, level, levels[-1]) for x_r, w_r in zip(x, w, strict=True)], axis=1)
        return Scales(ones[:, 0], 0 * ones[:, 0], s, 0 * s)
    fits = [
        fit_affine(x_r, w_r, level, levels[-1], search)
        if search.affine
        else (*fit_symmetric(x_r, w_r, level, search.starts), 0 * x_r[0], 0 * x_r[0])
        for x_r, w_r in zip(x, w, strict=True)
    ]
    scale, curvature, minimum, weight = (np.stack(column) for column in zip(*fits, strict=True))
    if search.scale_starts is None:
        return Scales(half(scale[0]), half(minimum[0]), ones, ones)
    low, high = search.scale_range
    d, s = fit_integers(scale, curvature, search.scale_starts, low, high)
    dmin, m = fit_integers(minimum, weight, search.scale_starts, low, high)
    limits = low, high, high if search.affine else 0
    return refine(x, w, level, (d, dmin, s, m), limits)


def fit_symmetric(
    x: np.ndarray, w: np.ndarray, level: RoundToLevel, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The scale s that makes Σ w (x - s · level(x / s))² small, and Σ w · level², the curvature, there.

    x and w are `[sub_block, n]`, the results `[n]`.
    """
    wx = w * x
    inverse_peak = inverse(np.abs(x).max(axis=0))
    best, scale, curvature = (np.zeros(x.shape[1], np.float32) for _ in range(3))
    for k in range(len(starts) + REFITS):
        inverse_scale = starts[k] * inverse_peak if k < len(starts) else inverse(scale)
        chosen = level(x * inverse_scale)
        sum_wxl, sum_wll = total(wx * chosen), total(w * chosen * chosen)
        solved = sum_wxl * inverse(sum_wll)
        gain = sum_wxl * solved
        better = gain > best
        best, scale, curvature = pick(better, (gain, solved, sum_wll), (best, scale, curvature))
    return scale, curvature


def fit_affine(
    x: np.ndarray, w: np.ndarray, level: RoundToLevel, top: np.float32, search: ScaleSearch
) -> tuple[np.ndarray, ...]:
    """Scale s and minimum m that make Σ w (x - s · level((x + m) / s) + m)² small: s, Σ w · level², m, Σ w.

    x and w are `[sub_block, n]`, the results `[n]`. A start maps `low + a · span` to level 0 and
    `low + b · span` to the `top` level, where span = high - low of the weights; it is (a, top / (b - a)).
    """
    low, high = x.min(axis=0), x.max(axis=0)
    if search.positive_minimum:
        low = np.minimum(low, np.float32(0))
    span = high - low
    inverse_span = inverse(span)
    y = x - low
    wy = w * y
    sum_w, sum_wy = total(w), total(wy)
    scale, offset, curvature = (np.zeros(x.shape[1], np.float32) for _ in range(3))
    best = np.full_like(scale, -np.inf)
    for k in range(len(search.starts) + REFITS):
        if k < len(search.starts):
            start, inverse_scale = search.starts[k, 0] * span, search.starts[k, 1] * inverse_span
        else:
            start, inverse_scale = offset, inverse(scale)
        chosen = level((y - start) * inverse_scale)
        w_chosen = w * chosen
        sum_wl, sum_wll, sum_wyl = total(w_chosen), total(w_chosen * chosen), total(wy * chosen)
        noise = SINGULAR * sum_w * sum_wll
        determinant = sum_w * sum_wll - sum_wl * sum_wl
        inverse_determinant = inverse(determinant)
        s, o = pick(  # singular where all codes are the same: then the offset is 0
            determinant > noise,
            (
                (sum_w * sum_wyl - sum_wy * sum_wl) * inverse_determinant,
                (sum_wll * sum_wy - sum_wl * sum_wyl) * inverse_determinant,
            ),
            (sum_wyl * inverse(sum_wll), np.zeros_like(sum_wll)),
        )
        if search.positive_minimum:
            negative = o > 0 - low
            s, o = pick(negative, ((sum_wyl + low * sum_wl) * inverse(sum_wll), 0 - low), (s, o))
        gain = TWO * (s * sum_wyl + o * sum_wy) - (s * s * sum_wll + TWO * s * o * sum_wl + o * o * sum_w)
        gain = np.where(s > 0, gain, np.float32(-np.inf))
        better = gain > best
        best, scale, offset, curvature = pick(better, (gain, s, o, sum_wll), (best, scale, offset, curvature))
    return scale, curvature, 0 - (low + offset), sum_w


def fit_power(x: np.ndarray, w: np.ndarray, level: RoundToLevel) -> np.ndarray:
    """The power of two s, of three near peak / 8, with the least Σ w (x - s · level(x / s))²; `[n]`."""
    peak = np.maximum(np.abs(x).max(axis=0), np.float32(2.0**-100))
    power = (peak.view(np.int32) & 0x7F800000).view(np.float32) * np.float32(1 / 8)
    best, scale = np.full_like(power, np.inf), power
    for factor in (1, 0.5, 2):
        s = power * np.float32(factor)
        error = total(w * (s * level(x * inverse(s)) - x) * (s * level(x * inverse(s)) - x))
        best, scale = pick(error < best, (error, s), (best, scale))
    return scale


def fit_e4m3(x: np.ndarray, w: np.ndarray, level: RoundToLevel, top: np.float32) -> np.ndarray:
    """The half of an E4M3 number s with the least Σ w (x - s · level(x / s))²; `[n]`.

    Tried are those from a little below that which maps the peak to the `top` level, 12, to those that map it
    to 8, the level before. Beyond, levels are as far apart as with half the scale.
    """
    peak = np.abs(x).max(axis=0)
    whole = peak * (np.float32(1) / top)
    spacing = e4m3_spacing(whole)
    s = np.rint(whole * (np.float32(1) / spacing)) * spacing - np.float32(E4M3_BELOW) * spacing
    s = np.minimum(np.maximum(s, np.float32(E4M3_LEAST)), np.float32(E4M3_LARGEST))
    best, scale = np.full_like(s, np.inf), s
    for _ in range(E4M3_TRIED):
        residual = s * level(x * inverse(s)) - x
        error = total(w * residual * residual)
        best, scale = pick(error < best, (error, s), (best, scale))
        s = np.minimum(s + e4m3_spacing(s), np.float32(E4M3_LARGEST))
    return np.where(peak > 0, scale, np.float32(0))


def e4m3_spacing(s: np.ndarray) -> np.ndarray:
    """From half an E4M3 number to the next one."""
    power = np.maximum(s, np.float32(2.0**-100)).view(np.int32) & 0x7F800000
    return np.maximum(power.view(np.float32) * np.float32(1 / 8), np.float32(E4M3_LEAST))


def fit_integers(
    scale: np.ndarray, weight: np.ndarray, starts: np.ndarray, low: int, high: int
) -> tuple[np.ndarray, np.ndarray]:
    """fp16 d `[n]` and integers s `[sub-blocks, n]`, low … high, with small Σ weight · (scale - d · s)²."""

    def nearest_integer(y: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(np.rint(y), np.float32(low)), np.float32(high))

    d = half(fit_symmetric(scale, weight, nearest_integer, starts)[0])
    return d, nearest_integer(scale * inverse(d))


def refine(
    x: np.ndarray,
    w: np.ndarray,
    level: RoundToLevel,
    initial: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    limits: tuple[int, int, int],
) -> Scales:
    """Refine d, dmin `[n]`, s and m `[sub-blocks, n]` together; `limits` are lowest s, highest s and m."""
    d, dmin, s, m = initial
    low, high, top = (np.float32(limit) for limit in limits)
    best = np.full_like(d, np.inf)
    best_d, best_dmin, best_s, best_m = initial
    for _ in range(ROUNDS):
        refined = [
            refine_sub_block(*sub_block, level, d, dmin, (low, high, top))
            for sub_block in zip(x, w, s, m, strict=True)
        ]
        s, m, errors, *terms = (np.stack(column) for column in zip(*refined, strict=True))
        error = total(errors)
        better = error < best
        best, best_d, best_dmin, best_s, best_m = pick(
            better, (error, d, dmin, s, m), (best, best_d, best_dmin, best_s, best_m)
        )
        ss, sm, mm, xs, xm = (total(term) for term in terms)
        determinant = ss * mm - sm * sm
        regular = determinant > SINGULAR * ss * mm
        inverse_determinant = inverse(determinant)
        solved, solved_min = pick(
            regular,
            ((xs * mm - xm * sm) * inverse_determinant, (xs * sm - xm * ss) * inverse_determinant),
            ((xs + dmin * sm) * inverse(ss), dmin),
        )
        usable = (solved * d >= 0) & (solved_min >= 0)
        d, dmin = pick(usable, (half(solved), half(solved_min)), (d, dmin))
    return Scales(best_d, best_dmin, np.ascontiguousarray(best_s.T), np.ascontiguousarray(best_m.T))


def refine_sub_block(
    x: np.ndarray,
    w: np.ndarray,
    s: np.ndarray,
    m: np.ndarray,
    level: RoundToLevel,
    d: np.ndarray,
    dmin: np.ndarray,
    limits: tuple[np.float32, np.float32, np.float32],
) -> tuple[np.ndarray, ...]:
    """The best of a sub-block's s and m and their neighbours, their error, and the terms of d's equations.

    The terms are Σ w of the products of s · level, m and x: ss, sm, mm, xs, xm.
    """
    low, high, top = limits
    best, best_s, best_m = np.full_like(d, np.inf), s, m
    for step in NEIGHBOURS:
        near_s = np.minimum(np.maximum(s + np.float32(step), low), high)
        scale = d * near_s
        inverse_scale = inverse(scale)
        for min_step in NEIGHBOURS if top else (0,):
            near_m = np.minimum(np.maximum(m + np.float32(min_step), np.float32(0)), top)
            minimum = dmin * near_m
            residual = scale * level((x + minimum) * inverse_scale) - minimum - x
            error = total(w * residual * residual)
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


def nearest_codes(
    blocks: np.ndarray, levels: np.ndarray, scale: np.ndarray, minimum: np.ndarray
) -> np.ndarray:
    """The nearest codes, uint8, of float32 `[n, block_size]`; scale and minimum are `[n, sub-blocks]`."""
    n, sub_blocks = scale.shape
    y = (blocks.reshape(n, sub_blocks, -1) + minimum[..., None]) * inverse(scale)[..., None]
    return np.searchsorted(levels, level_of(levels)(y)).astype(np.uint8).reshape(blocks.shape)


def total(terms: np.ndarray) -> np.ndarray:
    """The sum over the first axis, first term first; np.sum adds in an order of its own."""
    out = np.zeros(terms.shape[1:], np.float32)
    for term in terms:
        out = out + term
    return out


def inverse(values: np.ndarray) -> np.ndarray:
    """1 / values; 0 for magnitudes up to SMALLEST."""
    usable = np.abs(values) > SMALLEST
    return np.where(usable, np.float32(1) / np.where(usable, values, np.float32(1)), np.float32(0))


def half(values: np.ndarray) -> np.ndarray:
    """Values rounded to fp16 and clipped to its range, as float32."""
    return values.clip(-LARGEST_HALF, LARGEST_HALF).astype(np.float16).astype(np.float32)


def pick(where: np.ndarray, then: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """np.where for tuples of arrays: elements of `then` where `where` is true, else of `other`."""
    return [np.where(where, a, b) for a, b in zip(then, other, strict=True)]
