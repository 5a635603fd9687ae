"""The RMS norm of a head, with the same roundings wherever it is computed."""

from __future__ import annotations

import math

import numpy as np

from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import fma, lane_sum, splat_f32
from .....quant.jit.simd.memory import loadv_f32, storev_f32
from .vector_math import constant

LARGEST_HEAD = 256  # dimensions up to which norms of groups are computed here


@jit
def norm_head(x: int, out: int, weight: int, padded: int, dim: int, eps: float) -> None:
    """out = x / sqrt(mean(x²) + eps) · weight, for float32 [padded] at `x`, which is 0 from `dim` on.

    `padded` is a multiple of LANES; `out` may be `x`.
    """
    total = constant(0.0)
    for d in range(0, 4 * padded, 4 * LANES):
        values = loadv_f32(x + d)
        total = fma(values, values, total)
    factor = splat_f32(np.float32(1.0 / math.sqrt(lane_sum(total) / dim + eps)))
    for d in range(0, 4 * dim, 4 * LANES):
        storev_f32(out + d, loadv_f32(x + d) * factor * loadv_f32(weight + d))
