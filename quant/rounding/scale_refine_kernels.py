"""The compiled refinement of scales of scales; its NumPy twin, `scale_search.refine`, explains it.

Vectors and pointers are those of `scale_search_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..jit.decorators import jit
from ..jit.simd.arithmetic import maximum, minimum
from ..jit.simd.memory import loadv_f32, storev_f32
from .scale_search import ROUNDS, SINGULAR
from .scale_search_lanes import (
    VECTOR,
    constant,
    half,
    inverse,
    nearest_integer,
    nearest_level,
    neighbour,
    where_more,
    where_not_less,
)


def _refine(level: Any) -> Any:
    """`scale_search.refine` with `level` as the rounding to a level."""

    @jit
    def refine(
        a: Any, x: int, w: int, s: int, m: int, best: int, d: Any, dmin: Any, low: Any, high: Any
    ) -> Any:
        """Refines d, dmin, and the integers at `s` and `m`; the best integers are stored at `best`."""
        n, sub_blocks = a.sub_block, a.block_size // a.sub_block
        s_low, s_high = constant(a.scale_low), constant(a.scale_high)
        top = constant(a.scale_high if a.affine else 0)
        n_min_steps = 3 if a.affine else 1
        best_error, best_d, best_dmin = constant(np.inf), d, dmin
        for _ in range(ROUNDS):
            total, ss, sm, mm, xs, xm = (
                constant(0),
                constant(0),
                constant(0),
                constant(0),
                constant(0),
                constant(0),
            )
            for r in range(sub_blocks):
                xr, wr = x + r * n * VECTOR, w + r * n * VECTOR
                s_now, m_now = loadv_f32(s + r * VECTOR), loadv_f32(m + r * VECTOR)
                sub_block_best, s_best, m_best = constant(np.inf), s_now, m_now
                for step in range(3):
                    near_s = minimum(maximum(s_now + neighbour(step), s_low), s_high)
                    scale = d * near_s
                    inverse_scale = inverse(scale)
                    for min_step in range(n_min_steps):
                        near_m = minimum(maximum(m_now + neighbour(min_step), constant(0)), top)
                        offset = dmin * near_m
                        error = constant(0)
                        for i in range(0, n * VECTOR, VECTOR):
                            v = loadv_f32(xr + i)
                            residual = scale * level((v + offset) * inverse_scale, a, low, high) - offset - v
                            error = error + loadv_f32(wr + i) * residual * residual
                        s_best = where_more(sub_block_best, error, near_s, s_best)
                        m_best = where_more(sub_block_best, error, near_m, m_best)
                        sub_block_best = where_more(sub_block_best, error, error, sub_block_best)
                storev_f32(s + r * VECTOR, s_best)
                storev_f32(m + r * VECTOR, m_best)
                offset = dmin * m_best
                inverse_scale = inverse(d * s_best)
                sum_wll, sum_wl, sum_w, sum_wxl, sum_wx = (
                    constant(0),
                    constant(0),
                    constant(0),
                    constant(0),
                    constant(0),
                )
                for i in range(0, n * VECTOR, VECTOR):
                    v, weight = loadv_f32(xr + i), loadv_f32(wr + i)
                    chosen = level((v + offset) * inverse_scale, a, low, high)
                    w_chosen = weight * chosen
                    sum_wll = sum_wll + w_chosen * chosen
                    sum_wl = sum_wl + w_chosen
                    sum_w = sum_w + weight
                    sum_wxl = sum_wxl + w_chosen * v
                    sum_wx = sum_wx + weight * v
                total = total + sub_block_best
                ss = ss + s_best * s_best * sum_wll
                sm = sm + s_best * m_best * sum_wl
                mm = mm + m_best * m_best * sum_w
                xs = xs + s_best * sum_wxl
                xm = xm + m_best * sum_wx
            for i in range(0, sub_blocks * VECTOR, VECTOR):
                storev_f32(best + i, where_more(best_error, total, loadv_f32(s + i), loadv_f32(best + i)))
                at = best + sub_blocks * VECTOR + i
                storev_f32(at, where_more(best_error, total, loadv_f32(m + i), loadv_f32(at)))
            best_d = where_more(best_error, total, d, best_d)
            best_dmin = where_more(best_error, total, dmin, best_dmin)
            best_error = where_more(best_error, total, total, best_error)
            determinant = ss * mm - sm * sm
            noise = constant(SINGULAR) * ss * mm
            inverse_determinant = inverse(determinant)
            singular_d = (xs + dmin * sm) * inverse(ss)
            solved = where_more(determinant, noise, (xs * mm - xm * sm) * inverse_determinant, singular_d)
            solved_min = where_more(determinant, noise, (xs * sm - xm * ss) * inverse_determinant, dmin)
            kept_d = where_not_less(solved * d, constant(0), half(solved), d)
            d_next = where_not_less(solved_min, constant(0), kept_d, d)
            kept_dmin = where_not_less(solved * d, constant(0), half(solved_min), dmin)
            dmin = where_not_less(solved_min, constant(0), kept_dmin, dmin)
            d = d_next
        return best_d, best_dmin

    return refine


refine_uniform, refine_table = _refine(nearest_integer), _refine(nearest_level)
