"""Vectors of float weights and cache entries by type, and elementary functions on vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from .....quant.jit.jit import jit
from .....quant.jit.simd import (
    bits_to_f32,
    fma,
    loadv_bf16,
    loadv_f16,
    loadv_f32,
    maximum,
    minimum,
    round_even,
    splat_f32,
    store_f16,
    store_f32,
    to_i32,
)
from ...abi.sizes import FLOAT_BYTES
from ...simd.dot8 import Codes

FLOATS = {name: Codes(name, limit=0) for name in FLOAT_BYTES}

_LOADS = {"F32": loadv_f32, "F16": loadv_f16, "BF16": loadv_bf16}
_STORES = {"F32": store_f32, "F16": store_f16}


def load_floats(kind: Codes, address: int) -> Any:
    """`LANES` consecutive floats of type `kind`, as F32."""
    raise TypeError("for compiled code")


@overload(load_floats, jit_options={"forceinline": True})
def _choose_load_floats(kind: Any, address: Any) -> Any:
    load = _LOADS[kind.value.name]

    def read(kind: Any, address: Any) -> Any:
        return load(address)

    return read


def store_float(kind: Codes, address: int, value: float) -> None:
    """One float32, rounded to type `kind`."""
    raise TypeError("for compiled code")


@overload(store_float, jit_options={"forceinline": True})
def _choose_store_float(kind: Any, address: Any, value: Any) -> Any:
    store = _STORES[kind.value.name]

    def write(kind: Any, address: Any, value: Any) -> Any:
        store(address, value)

    return write


@jit
def constant(value: float) -> Any:
    """The same number in every lane."""
    return splat_f32(np.float32(value))


@jit
def exp(x: Any) -> Any:
    """e^x in each lane, to about 1e-7 relative; below -87 the smallest normal number, above 88 clamped.

    x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r by its series to degree 6; 2^n by setting the exponent bits.
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
    """1 / (1 + e^-x)."""
    return constant(1.0) / (constant(1.0) + exp(constant(0.0) - x))


@jit
def tanh(x: Any) -> Any:
    """(e^2x - 1) / (e^2x + 1), to about 1e-7 absolute."""
    return constant(1.0) - constant(2.0) / (exp(x + x) + constant(1.0))
