"""Q5_0 and Q5_1: 32 weights of 5 bits with a scale; Q5_1 also has a minimum. 5.5 and 6 bits a weight.

    Q5_0   byte   0 1   2 … 5   6 … 21
                  d     qh      qs              weight i = d · (q_i - 16)
    Q5_1   byte   0 1   2 3     4 … 7   8 … 23
                  d     m       qh      qs      weight i = d · q_i + m

    qs byte j:    bits 7654              3210
                  low 4 of q_(j+16)      low 4 of q_j
    qh:           32 bits, little-endian; bit i is bit 4 of q_i

Source: `block_q5_0` and `block_q5_1` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import bit_fields, dequantizer, join_fields, quantizer, single
from .q4_0 import codes_from_minimum, codes_from_zero, signed_peak

Q5_0_BLOCK = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q5_1_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
assert Q5_0_BLOCK.itemsize == 22
assert Q5_1_BLOCK.itemsize == 24


def _codes(blocks: np.ndarray) -> np.ndarray:
    low = bit_fields(blocks["qs"], 4).reshape(-1, 32)
    high = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
    return (low | high << 4).astype(np.float32)


def _dequantize_q5_0(blocks: np.ndarray) -> np.ndarray:
    return single(blocks["d"]) * (_codes(blocks) - 16)


def _dequantize_q5_1(blocks: np.ndarray) -> np.ndarray:
    return single(blocks["d"]) * _codes(blocks) + single(blocks["m"])


def _quantize_q5_0(weights: np.ndarray, blocks: np.ndarray) -> None:
    d = signed_peak(weights) / np.float32(-16)
    blocks["d"] = d[:, 0]
    store_codes(blocks, codes_from_zero(weights, d, 16))


def _quantize_q5_1(weights: np.ndarray, blocks: np.ndarray) -> None:
    low = weights.min(axis=1, keepdims=True)
    d = (weights.max(axis=1, keepdims=True) - low) / np.float32(31)
    blocks["d"] = d[:, 0]
    blocks["m"] = low[:, 0]
    store_codes(blocks, codes_from_minimum(weights, d, low, 31))


def store_codes(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes 0 … 31, `[n, 32]`, into Q5_0 or Q5_1 blocks."""
    blocks["qs"] = join_fields(codes.reshape(-1, 2, 16), 4)
    blocks["qh"] = np.packbits(codes >> 4, axis=1, bitorder="little")


Q5_0 = BlockFormat(
    "Q5_0",
    6,
    32,
    22,
    dequantizer(_dequantize_q5_0, Q5_0_BLOCK, 32),
    quantize=quantizer(_quantize_q5_0, Q5_0_BLOCK, 32),
)
Q5_1 = BlockFormat(
    "Q5_1",
    7,
    32,
    24,
    dequantizer(_dequantize_q5_1, Q5_1_BLOCK, 32),
    quantize=quantizer(_quantize_q5_1, Q5_1_BLOCK, 32),
)
