"""Rotary position embedding (RoPE; Su et al. 2021, "RoFormer") of one head of one row."""

from __future__ import annotations

import numpy as np
from numba import carray

from .....quant.jit.decorators import jit
from .....quant.jit.simd.memory import as_pointer


@jit
def rotate_pairs(x: int, out: int, cos: int, sin: int, n_angles: int, interleaved: int) -> None:
    """Rotate the n_angles pairs of dimensions of float32 [2 · n_angles] at `x` and write them to `out`.

    `cos` and `sin` are addresses of float32 [n_angles]; `out` may be `x`. With `interleaved`, pair i is
    dimensions 2i and 2i + 1; otherwise i and i + n_angles.
    """
    x_ = carray(as_pointer(x), 2 * n_angles, np.float32)
    out_ = carray(as_pointer(out), 2 * n_angles, np.float32)
    cos_, sin_ = carray(as_pointer(cos), n_angles, np.float32), carray(as_pointer(sin), n_angles, np.float32)
    if interleaved:
        for i in range(n_angles):
            even, odd = x_[2 * i], x_[2 * i + 1]
            out_[2 * i] = even * cos_[i] - odd * sin_[i]
            out_[2 * i + 1] = odd * cos_[i] + even * sin_[i]
    else:
        for i in range(n_angles):
            low, high = x_[i], x_[i + n_angles]
            out_[i] = low * cos_[i] - high * sin_[i]
            out_[i + n_angles] = high * cos_[i] + low * sin_[i]
