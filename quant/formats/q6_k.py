"""Q6_K: 256 weights of 6 bits; each sub-block of 16 has an int8 scale. 6.5625 bits a weight.

    byte   0 … 127   128 … 191   192 … 207   208 209
           ql        qh          scales      d

    ql byte 64h+j:   bits 7654           3210
                     +64+j               +j              low 4 bits, of half h: weight 128h + …
    qh byte 32h+j:   bits 76     54      32      10
                     +96+j       +64+j   +32+j   +j      high 2 bits

    weight i of sub-block r = (d · scales_r) · (q_i - 32);  sub-block r is weights 16r … 16r+15

Source: `block_q6_K` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import Scales, bit_fields, dequantizer, join_fields, single, without_minimum

Q6_K_BLOCK = np.dtype([("ql", "u1", (2, 64)), ("qh", "u1", (2, 32)), ("scales", "i1", 16), ("d", "<f2")])
assert Q6_K_BLOCK.itemsize == 210


def scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale of each sub-block, and a minimum of zero: float32 `[n, 16]` each."""
    return without_minimum(single(blocks["d"]) * blocks["scales"].astype(np.float32))


def store_scales(blocks: np.ndarray, scales: Scales) -> None:
    """Write scales; s is -128 … 127."""
    blocks["d"], blocks["scales"] = scales.d, scales.s


def store_codes(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes 0 … 63, `[n, 256]`, which stand for -32 … 31."""
    blocks["ql"] = join_fields(codes.reshape(-1, 2, 2, 64), 4)
    blocks["qh"] = join_fields(codes.reshape(-1, 2, 4, 32) >> 4, 2)


def _dequantize(blocks: np.ndarray) -> np.ndarray:
    scale, _ = scales(blocks)
    low = bit_fields(blocks["ql"], 4).reshape(-1, 16, 16)
    high = bit_fields(blocks["qh"], 2).reshape(-1, 16, 16)
    codes = (low | high << 4).astype(np.float32) - 32
    return (scale[..., None] * codes).reshape(-1, 256)


Q6_K = BlockFormat("Q6_K", 14, 256, 210, dequantizer(_dequantize, Q6_K_BLOCK, 256))
