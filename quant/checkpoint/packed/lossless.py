"""Which formats hold given values without rounding, and which one to round to where none of 16 bits does.

Four bytes for a weight that had one, or half of one, help nobody: what was published with such scales is
computed in 16 bits by the libraries that packed it. Rounded values are the nearest of binary16, which
is 2^-12 away at most, where bfloat16 has 2^-9.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

FLOAT_FORMATS = ("BF16", "F16", "F32")  # in the order that they are preferred in
F16_MAX = 65504.0


def in_f16(values: np.ndarray) -> bool:
    """Whether float32 values are all finite and the same in binary16."""
    with np.errstate(over="ignore"):
        return bool(
            np.isfinite(values).all() and (values.astype(np.float16).astype(np.float32) == values).all()
        )


def in_bf16(values: np.ndarray) -> bool:
    """Whether float32 values are all finite and the same in bfloat16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return bool(np.isfinite(values).all() and not (bits & np.uint32(0xFFFF)).any())


def formats_of_products(scales: np.ndarray, witnesses: Iterable[float]) -> tuple[str, ...]:
    """Those of FLOAT_FORMATS that hold every product of a scale and a code, or `rounded`.

    `scales` are float32, `witnesses` three of the codes, which are multiples of the first, their least
    distance: that itself, the one that takes most significant bits, and the largest. A product that has to be
    rounded anywhere is so at one of them: its last bit lies below all that the format has, its bits are too
    many, or it is too large.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        products = [scales * np.float32(code) for code in witnesses]
        held = {"BF16": all(map(in_bf16, products)), "F16": all(map(in_f16, products))}
        largest = max(float(np.abs(each).max(initial=0)) for each in products)
    return (
        tuple(name for name in FLOAT_FORMATS if held.get(name, True))
        if any(held.values())
        else rounded(largest)
    )


def rounded(largest: float) -> tuple[str, ...]:
    """The formats for values up to `largest` that neither bfloat16 nor binary16 holds: F32 does so, but for a
    family of tensors that agree on the first it is that of 16 bits with more digits."""
    return ("F16", "F32") if largest <= F16_MAX else ("BF16", "F32")


def witnesses_of_integers(largest: int) -> tuple[float, float, float]:
    """`formats_of_products` of the integers up to ±`largest`."""
    return 1, largest - (largest + 1) % 2, largest


def formats_of_sums(scales: np.ndarray, largest: int, offsets: np.ndarray) -> tuple[str, ...]:
    """Those of FLOAT_FORMATS that hold scale · code + offset for every integer code from 0 to `largest`.

    Sufficient, not necessary: all sums are multiples of the last bit of scale or offset, and none is larger
    than the largest of each together.
    """
    finite = np.isfinite(scales).all() and np.isfinite(offsets).all()
    if not finite:
        return ("F32",)  # to be refused, or not, by who reads it
    last = np.minimum(_last_bit(scales), _last_bit(offsets))
    magnitude = np.abs(scales.astype(np.float64)) * largest + np.abs(offsets)
    steps = magnitude / last  # 0 / inf where both are zero
    bf16 = (steps <= 1 << 8).all() and (magnitude < 3e38).all() and (last >= 2.0**-133).all()
    f16 = (steps <= 1 << 11).all() and (magnitude <= F16_MAX).all() and (last >= 2.0**-24).all()
    if not (bf16 or f16):
        return rounded(float(magnitude.max(initial=0)))
    return tuple(name for name, held in zip(FLOAT_FORMATS, (bf16, f16, True), strict=True) if held)


def _last_bit(values: np.ndarray) -> np.ndarray:
    """The value of the last bit set of each significand, float64; infinity for 0."""
    mantissa, exponent = np.frexp(np.abs(values).astype(np.float64))
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    bit = np.ldexp((whole & -whole).astype(np.float64), exponent - 53)
    return np.where(whole == 0, np.inf, bit)


def encode_floats(values: np.ndarray, form: str) -> np.ndarray:
    """float32 [n, width] as uint8 [n, row_bytes] of BF16, F16 or F32, rounded to nearest even."""
    values = np.ascontiguousarray(values, np.float32)
    if form == "F32":
        return values.view(np.uint8)
    if form == "F16":
        with np.errstate(over="ignore"):
            return values.astype("<f2").view(np.uint8)
    bits = values.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    if (nan := np.isnan(values)).any():  # rounding could carry into the sign
        rounded[nan] = bits[nan] | np.uint32(1 << 22)
    rounded >>= np.uint32(16)
    return rounded.astype("<u2").view(np.uint8)
