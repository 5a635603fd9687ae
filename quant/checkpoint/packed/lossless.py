"""Float formats that hold dequantised weights without rounding, decided from scales and codes.

Where neither bfloat16 nor binary16 holds all products of scales and codes, weights are rounded to binary16,
with a relative error of at most 2^-12 (bfloat16: 2^-9). F32 would spend four bytes on weights of one byte or
less, and the libraries that wrote such checkpoints compute in 16 bits as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

FLOAT_FORMATS = ("BF16", "F16", "F32")  # preferred first
F16_MAX = 65504.0


def fits_f16(values: np.ndarray) -> bool:
    """Whether all float32 values are finite and survive a conversion to binary16 unchanged."""
    with np.errstate(over="ignore"):
        return bool(
            np.isfinite(values).all() and (values.astype(np.float16).astype(np.float32) == values).all()
        )


def fits_bf16(values: np.ndarray) -> bool:
    """Whether all float32 values are finite and survive a conversion to bfloat16 unchanged."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return bool(np.isfinite(values).all() and not (bits & np.uint32(0xFFFF)).any())


def float_formats_of_products(scales: np.ndarray, extremes: Iterable[float]) -> tuple[str, ...]:
    """The FLOAT_FORMATS that hold every product of a scale and a code, or `rounding_formats`.

    `scales` are float32. `extremes` are three codes: the smallest positive one, of which all others are
    multiples, the one with the most significant bits, and the largest. If a format has to round some product,
    it rounds one of these three: its lowest bit is below the format's range, its significant bits are too
    many, or it is too large.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        products = [scales * np.float32(code) for code in extremes]
        lossless = {"BF16": all(map(fits_bf16, products)), "F16": all(map(fits_f16, products))}
        largest = max(float(np.abs(product).max(initial=0)) for product in products)
    return (
        tuple(name for name in FLOAT_FORMATS if lossless.get(name, True))
        if any(lossless.values())
        else rounding_formats(largest)
    )


def rounding_formats(largest: float) -> tuple[str, ...]:
    """The formats for values up to `largest` that no 16-bit format holds exactly.

    The first is the 16-bit format with the most significant bits that has their range. F32 is exact, and only
    there for experts, which need a common format.
    """
    return ("F16", "F32") if largest <= F16_MAX else ("BF16", "F32")


def extremes_of_integers(largest: int) -> tuple[float, float, float]:
    """The `extremes` of `float_formats_of_products` for the integers from -`largest` to `largest`."""
    return 1, largest - (largest + 1) % 2, largest


def float_formats_of_sums(scales: np.ndarray, largest: int, offsets: np.ndarray) -> tuple[str, ...]:
    """The FLOAT_FORMATS that hold scale · code + offset for every integer code from 0 to `largest`.

    A format may be missed that happens to hold all sums. The test takes each sum for a multiple of the lowest
    set bit of scale or offset, and for as large as |scale| · largest + |offset|.
    """
    finite = np.isfinite(scales).all() and np.isfinite(offsets).all()
    if not finite:
        return ("F32",)  # keeps NaN and infinity, for the caller to find
    last = np.minimum(_lowest_bit(scales), _lowest_bit(offsets))
    magnitude = np.abs(scales.astype(np.float64)) * largest + np.abs(offsets)
    steps = magnitude / last  # 0 / inf where both are zero
    bf16 = (steps <= 1 << 8).all() and (magnitude < 3e38).all() and (last >= 2.0**-133).all()
    f16 = (steps <= 1 << 11).all() and (magnitude <= F16_MAX).all() and (last >= 2.0**-24).all()
    if not (bf16 or f16):
        return rounding_formats(float(magnitude.max(initial=0)))
    return tuple(name for name, lossless in zip(FLOAT_FORMATS, (bf16, f16, True), strict=True) if lossless)


def _lowest_bit(values: np.ndarray) -> np.ndarray:
    """The value of the lowest set bit of each number, float64; infinity for 0."""
    mantissa, exponent = np.frexp(np.abs(values).astype(np.float64))
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    bit = np.ldexp((whole & -whole).astype(np.float64), exponent - 53)
    return np.where(whole == 0, np.inf, bit)


def encode_floats(values: np.ndarray, form: str) -> np.ndarray:
    """float32 [n, width] as rows of BF16, F16 or F32, rounded to nearest even: uint8 [n, row_bytes]."""
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
    if (nan := np.isnan(values)).any():  # adding would carry into the sign
        rounded[nan] = bits[nan] | np.uint32(1 << 22)
    rounded >>= np.uint32(16)
    return rounded.astype("<u2").view(np.uint8)
