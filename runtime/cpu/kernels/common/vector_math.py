"""Elementary functions on F32 vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from .....quant.jit.decorators import jit
from .....quant.jit.simd.arithmetic import bits_to_f32, fma, maximum, minimum, round_even, splat_f32, to_i32


@jit
def constant(value: float) -> Any:
    """A vector with the same number in every lane."""
    return splat_f32(np.float32(value))


@jit
def exp(x: Any) -> Any:
    """e^x in each lane, to about 1e-7 relative; x is clamped to [-87, 88], NaN stays NaN.

    x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r by its Taylor polynomial of degree 6; 2^n by setting the exponent
    bits.
    """
    x = maximum(constant(-87.0), minimum(constant(88.0), x))  # in this order NaN stays NaN
    n = round_even(x * constant(1.4426950408889634))
    r = fma(n, constant(-0.693359375), x)
    r = fma(n, constant(2.12194440e-4), r)
    p = constant(1.0 / 720.0)
    p = fma(p, r, constant(1.0 / 120.0))
    p = fma(p, r, constant(1.0 / 24.0))
    p = fma(p, r, constant(1.0 / 6.0))
    p = fma(p, r, constant(0.5))
    p = fma(p, r, constant(1.0))
    p = fma(p, r, constant(1.0))
    return p * bits_to_f32((to_i32(n) + 127) << 23)


@jit
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x) in each lane."""
    return constant(1.0) / (constant(1.0) + exp(constant(0.0) - x))


@jit
def tanh(x: Any) -> Any:
    """(e^2x - 1) / (e^2x + 1) in each lane, to about 1e-7 absolute."""
    return constant(1.0) - constant(2.0) / (exp(x + x) + constant(1.0))
