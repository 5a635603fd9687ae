"""What the block formats share: going through big tensors in chunks, and taking bit fields apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

CHUNK_WEIGHTS = 1 << 16  # weights a chunk: the temporaries of one stay in the cache

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


def single(half: np.ndarray) -> np.ndarray:
    """float16 `[n]` or `[n, k]` as float32 with an axis of one behind it, to multiply runs of weights."""
    return half.astype(np.float32)[..., None]
