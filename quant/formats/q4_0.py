"""Q4_0 and Q4_1: 32 weights of 4 bits with a scale; Q4_1 also has a minimum. 4.5 and 5 bits a weight.

    Q4_0   byte   0 1   2 … 17
                  d     qs                    weight i = d · (q_i - 8)
    Q4_1   byte   0 1   2 3   4 … 19
                  d     m     qs              weight i = d · q_i + m

    qs byte j:    bits 7654     3210
                  q_(j+16)      q_j

Source: `block_q4_0` and `block_q4_1` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import bit_fields, dequantizer, join_fields, quantizer, single

Q4_0_BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
Q4_1_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
assert Q4_0_BLOCK.itemsize == 18
assert Q4_1_BLOCK.itemsize == 20


def _codes(blocks: np.ndarray) -> np.ndarray:
    return bit_fields(blocks["qs"], 4).reshape(-1, 32).astype(np.float32)


def _dequantize_q4_0(blocks: np.ndarray) -> np.ndarray:
    return single(blocks["d"]) * (_codes(blocks) - 8)


def _dequantize_q4_1(blocks: np.ndarray) -> np.ndarray:
    return single(blocks["d"]) * _codes(blocks) + single(blocks["m"])


def _quantize_q4_0(weights: np.ndarray, blocks: np.ndarray) -> None:
    d = signed_peak(weights) / np.float32(-8)
    codes = codes_from_zero(weights, d, 8)
    blocks["d"] = d[:, 0]
    store_codes(blocks, codes)


def _quantize_q4_1(weights: np.ndarray, blocks: np.ndarray) -> None:
    low = weights.min(axis=1, keepdims=True)
    d = (weights.max(axis=1, keepdims=True) - low) / np.float32(15)
    codes = codes_from_minimum(weights, d, low, 15)
    blocks["d"] = d[:, 0]
    blocks["m"] = low[:, 0]
    store_codes(blocks, codes)


def store_codes(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes 0 … 15, `[n, 32]`, into Q4_0 or Q4_1 blocks."""
    blocks["qs"] = join_fields(codes.reshape(-1, 2, 16), 4)


def signed_peak(weights: np.ndarray) -> np.ndarray:
    """The weight of largest magnitude of each block, with its sign: float32 `[n, 1]`.

    The formats map it to the most negative code, since there is one more negative level than positive ones.
    """
    at = np.abs(weights).argmax(axis=1, keepdims=True)
    return np.take_along_axis(weights, at, axis=1)


def codes_from_zero(weights: np.ndarray, d: np.ndarray, offset: int) -> np.ndarray:
    """uint8 codes 0 … 2 · offset - 1, rounded to nearest: weight = d · (code - offset)."""
    inverse = np.where(d == 0, np.float32(0), 1 / d)
    return (weights * inverse + np.float32(offset + 0.5)).astype(np.uint8).clip(0, 2 * offset - 1)


def codes_from_minimum(weights: np.ndarray, d: np.ndarray, low: np.ndarray, top: int) -> np.ndarray:
    """uint8 codes 0 … top, rounded to nearest: weight = d · code + low."""
    inverse = np.where(d == 0, np.float32(0), 1 / d)
    return ((weights - low) * inverse + np.float32(0.5)).astype(np.uint8).clip(0, top)


Q4_0 = BlockFormat(
    "Q4_0",
    2,
    32,
    18,
    dequantizer(_dequantize_q4_0, Q4_0_BLOCK, 32),
    quantize=quantizer(_quantize_q4_0, Q4_0_BLOCK, 32),
)
Q4_1 = BlockFormat(
    "Q4_1",
    3,
    32,
    20,
    dequantizer(_dequantize_q4_1, Q4_1_BLOCK, 32),
    quantize=quantizer(_quantize_q4_1, Q4_1_BLOCK, 32),
)
