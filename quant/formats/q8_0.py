"""Q8_0: 32 weights as int8 with one scale. 8.5 bits a weight.

    byte   0 1   2 … 33
           d     q0 … q31          weight i = d · q_i

Source: `block_q8_0` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import dequantizer, quantizer, single

Q8_0_BLOCK = np.dtype([("d", "<f2"), ("q", "i1", 32)])
assert Q8_0_BLOCK.itemsize == 34


def _dequantize(blocks: np.ndarray) -> np.ndarray:
    return blocks["q"].astype(np.float32) * single(blocks["d"])


def store_codes(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes 0 … 254, `[n, 32]`, which stand for -127 … 127."""
    blocks["q"] = (codes - np.uint8(127)).view(np.int8)


def _quantize(weights: np.ndarray, blocks: np.ndarray) -> None:
    d = np.abs(weights).max(axis=1, keepdims=True) / np.float32(127)
    scaled = weights * np.where(d == 0, np.float32(0), 1 / d)
    # to nearest, halves away from zero, as C's roundf; np.round goes to even
    whole = np.trunc(scaled)
    blocks["q"] = whole + np.trunc(2 * (scaled - whole))
    blocks["d"] = d[:, 0]


Q8_0 = BlockFormat(
    "Q8_0",
    8,
    32,
    34,
    dequantizer(_dequantize, Q8_0_BLOCK, 32),
    quantize=quantizer(_quantize, Q8_0_BLOCK, 32),
)
