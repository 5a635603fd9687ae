"""The compiled search for NVFP4's scales; its NumPy twin is `scale_search.fit_e4m3`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..jit.decorators import jit
from ..jit.simd.arithmetic import absolute, maximum, minimum, round_even
from ..jit.simd.memory import loadv_f32
from .scale_search import E4M3_BELOW, E4M3_LARGEST, E4M3_LEAST, E4M3_TRIED
from .scale_search_lanes import (
    VECTOR,
    constant,
    inverse,
    nearest_level,
    power_below,
    where_more,
)


@jit
def _spacing(s: Any) -> Any:
    """`scale_search.e4m3_spacing`."""
    power = power_below(maximum(s, constant(2.0**-100)))
    return maximum(power * constant(1 / 8), constant(E4M3_LEAST))


@jit
def fit_e4m3(a: Any, x: int, w: int, low: Any, high: Any) -> Any:
    """The scale of each block of a FIT record, whose blocks are sub-blocks."""
    peak = constant(0)
    for i in range(0, a.sub_block * VECTOR, VECTOR):
        peak = maximum(absolute(loadv_f32(x + i)), peak)
    whole = peak * (constant(1) / high)
    spacing = _spacing(whole)
    s = round_even(whole * (constant(1) / spacing)) * spacing - constant(E4M3_BELOW) * spacing
    s = minimum(maximum(s, constant(E4M3_LEAST)), constant(E4M3_LARGEST))
    best, scale = constant(np.inf), s
    for _ in range(E4M3_TRIED):
        inverse_scale = inverse(s)
        error = constant(0)
        for i in range(0, a.sub_block * VECTOR, VECTOR):
            v = loadv_f32(x + i)
            residual = s * nearest_level(v * inverse_scale, a, low, high) - v
            error = error + loadv_f32(w + i) * residual * residual
        scale = where_more(best, error, s, scale)
        best = where_more(best, error, error, best)
        s = minimum(s + _spacing(s), constant(E4M3_LARGEST))
    return where_more(peak, constant(0), scale, constant(0))
