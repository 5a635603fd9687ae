"""Helpers of the block formats: quantising in chunks, packing bit fields, reading and writing scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

CHUNK_WEIGHTS = 1 << 16  # weights a chunk, so few that the temporaries of a chunk stay in the cache


@dataclass(frozen=True)
class Scales:
    """Scales d · s and minimums dmin · m of n blocks.

    d and dmin are float32 `[n]` with fp16 values; s and m float32 `[n, sub-blocks]` with whole numbers in the
    format's range, or 1 in formats whose blocks have no sub-blocks.
    """

    d: np.ndarray
    dmin: np.ndarray
    s: np.ndarray
    m: np.ndarray


Transform = Callable[[np.ndarray], np.ndarray]
Fill = Callable[[np.ndarray, np.ndarray], None]


def dequantizer(kernel: Transform, dtype: np.dtype, block_size: int) -> Transform:
    """`BlockFormat.dequantize`, which calls `kernel` for one chunk of blocks after the other.

    `kernel` takes structured blocks `[n]` of `dtype` and returns float32 `[n, block_size]`. Scales may be NaN
    or infinite: the weights then are what IEEE 754 makes of them, without a warning.
    """

    def dequantize(blocks: np.ndarray) -> np.ndarray:
        out = np.empty((len(blocks), block_size), np.float32)
        step = max(1, CHUNK_WEIGHTS // block_size)
        with np.errstate(invalid="ignore", over="ignore"):
            for i in range(0, len(blocks), step):
                chunk = np.ascontiguousarray(blocks[i : i + step])
                out[i : i + step] = kernel(chunk.view(dtype)[:, 0])
        return out

    return dequantize


def quantizer(kernel: Fill, dtype: np.dtype, block_size: int) -> Transform:
    """`BlockFormat.quantize`, which calls `kernel` for one chunk of blocks after the other.

    `kernel` reads finite float32 weights `[n, block_size]` and fills structured blocks `[n]` of `dtype`.
    """

    def quantize(weights: np.ndarray) -> np.ndarray:
        out = np.empty(len(weights), dtype)
        step = max(1, CHUNK_WEIGHTS // block_size)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for i in range(0, len(weights), step):
                kernel(np.ascontiguousarray(weights[i : i + step], np.float32), out[i : i + step])
        return out.view(np.uint8).reshape(len(weights), dtype.itemsize)

    return quantize


def bit_fields(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack fields of `bits` bits from uint8 `[…, k]`, lowest first: uint8 `[…, 8 / bits, k]`.

    GGML keeps neighbouring weights in neighbouring bytes: the lowest fields of all k bytes come first, then
    the next fields of the same bytes.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)


def join_fields(fields: np.ndarray, bits: int) -> np.ndarray:
    """The inverse of `bit_fields`: uint8 `[…, 8 / bits, k]` to `[…, k]`. Excess high bits are ignored."""
    mask = np.uint8((1 << bits) - 1)
    packed = fields[..., 0, :] & mask
    for i in range(1, 8 // bits):
        packed |= (fields[..., i, :] & mask) << np.uint8(bits * i)
    return packed


def without_minimum(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scales, and a minimum of zero for each of them."""
    return scale, np.zeros_like(scale)


def scales_alone(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum, float32 `[n, 1]` each, of blocks with a scale d and no minimum."""
    return without_minimum(single(blocks["d"]))


def store_scales_alone(blocks: np.ndarray, scales: Scales) -> None:
    """Write the scale d of blocks without a minimum."""
    blocks["d"] = scales.d


def scales_and_offsets(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum, float32 `[n, 1]` each, of blocks with a scale d and an offset m = -minimum."""
    return single(blocks["d"]), -single(blocks["m"])


def store_scales_and_offsets(blocks: np.ndarray, scales: Scales) -> None:
    """Write the scale d and the offset m, which is -dmin."""
    blocks["d"], blocks["m"] = scales.d, -scales.dmin


def single(half: np.ndarray) -> np.ndarray:
    """float16 `[n]` or `[n, k]` as float32 with a last axis of 1, to be broadcast over weights."""
    return half.astype(np.float32)[..., None]
