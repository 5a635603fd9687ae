"""What the block formats share: going through big tensors in chunks, and taking bit fields apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

CHUNK_WEIGHTS = 1 << 16  # weights a chunk: the temporaries of one stay in the cache


@dataclass(frozen=True)
class Scales:
    """Scales d · s and minimums dmin · m of n blocks: float32 d, dmin `[n]`, and whole s, m `[n, runs]`.

    All are what the format can hold: d and dmin fp16 values, s and m in its range, or 1 where runs have none.
    """

    d: np.ndarray
    dmin: np.ndarray
    s: np.ndarray
    m: np.ndarray


Transform = Callable[[np.ndarray], np.ndarray]
Fill = Callable[[np.ndarray, np.ndarray], None]


def dequantizer(kernel: Transform, dtype: np.dtype, block_size: int) -> Transform:
    """`BlockFormat.dequantize` from a `kernel` for few blocks: structured `[n]` to float32 `[n, block_size]`.

    The result is a new array. Scales may be NaN or infinite: the weights then are as IEEE 754 has it.
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
    """`BlockFormat.quantize` from a `kernel` for few blocks.

    The kernel reads float32 `[n, block_size]`, all finite, and fills structured `[n]`.
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
    """Fields of `bits` bits of uint8 `[…, k]`, lowest first, as uint8 `[…, 8 / bits, k]`.

    Every packed format keeps neighbours in neighbouring bytes: the low fields of a run of bytes
    come first, then the next fields of the same run.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)


def join_fields(fields: np.ndarray, bits: int) -> np.ndarray:
    """The opposite of `bit_fields`: uint8 `[…, 8 / bits, k]` to `[…, k]`; only the low `bits` bits count."""
    mask = np.uint8((1 << bits) - 1)
    packed = fields[..., 0, :] & mask
    for i in range(1, 8 // bits):
        packed |= (fields[..., i, :] & mask) << np.uint8(bits * i)
    return packed


def without_minimum(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales, and minimums of zero."""
    return scale, np.zeros_like(scale)


def scales_alone(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum, float32 `[n, 1]`, of blocks that have a scale d."""
    return without_minimum(single(blocks["d"]))


def store_scales_alone(blocks: np.ndarray, scales: Scales) -> None:
    blocks["d"] = scales.d


def scales_and_offsets(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum, float32 `[n, 1]`, of blocks that have a scale d and a negated minimum m."""
    return single(blocks["d"]), -single(blocks["m"])


def store_scales_and_offsets(blocks: np.ndarray, scales: Scales) -> None:
    blocks["d"], blocks["m"] = scales.d, -scales.dmin


def single(half: np.ndarray) -> np.ndarray:
    """float16 `[n]` or `[n, k]` as float32 with an axis of one behind it, to multiply runs of weights."""
    return half.astype(np.float32)[..., None]
