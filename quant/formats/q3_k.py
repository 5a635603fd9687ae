"""Q3_K: 256 weights of 3 bits; each sub-block of 16 has a 6-bit scale. 3.4375 bits a weight.

    byte   0 … 31   32 … 95   96 … 107   108 109
           hmask    qs        scales     d

    qs byte 32h+j:   bits 76     54     32     10
                     +96+j       +64+j  +32+j  +j     low 2 bits, of half h: weight 128h + …
    hmask byte j:    bit g is bit 2 of q of weight 32g + j

    scales byte 0-7 (r):    bits 7654            3210
                            low 4 of s_(r+8)     low 4 of s_r
    scales byte 8-11 (8+r): bits 76              54           32          10
                            high 2 of s_(r+12)   s_(r+8)      s_(r+4)     s_r

    weight i of sub-block r = (d · (s_r - 32)) · (q_i - 4);  sub-block r is weights 16r … 16r+15

Source: `block_q3_K` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import Scales, bit_fields, dequantizer, join_fields, single, without_minimum

Q3_K_BLOCK = np.dtype(
    [
        ("hmask", "u1", 32),
        ("qs", "u1", (2, 32)),
        ("scales_low", "u1", 8),
        ("scales_high", "u1", 4),
        ("d", "<f2"),
    ]
)
assert Q3_K_BLOCK.itemsize == 110


def scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale of each sub-block, and a minimum of zero: float32 `[n, 16]` each."""
    low = bit_fields(blocks["scales_low"], 4).reshape(-1, 16)
    high = bit_fields(blocks["scales_high"], 2).reshape(-1, 16)
    return without_minimum(single(blocks["d"]) * ((low | high << 4).astype(np.float32) - 32))


def store_scales(blocks: np.ndarray, scales: Scales) -> None:
    """Write scales; s is -32 … 31."""
    fields = (scales.s + 32).astype(np.uint8)
    blocks["d"] = scales.d
    blocks["scales_low"] = join_fields(fields.reshape(-1, 2, 8), 4)
    blocks["scales_high"] = join_fields(fields.reshape(-1, 4, 4) >> 4, 2)


def store_codes(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes 0 … 7, `[n, 256]`, which stand for -4 … 3."""
    blocks["qs"] = join_fields(codes.reshape(-1, 2, 4, 32), 2)
    blocks["hmask"] = join_fields(codes.reshape(-1, 8, 32) >> 2, 1)


def _dequantize(blocks: np.ndarray) -> np.ndarray:
    scale, _ = scales(blocks)
    low_bits = bit_fields(blocks["qs"], 2).reshape(-1, 16, 16)
    third_bit = bit_fields(blocks["hmask"], 1).reshape(-1, 16, 16)
    codes = (low_bits | third_bit << 2).astype(np.float32) - 4
    return (scale[..., None] * codes).reshape(-1, 256)


Q3_K = BlockFormat("Q3_K", 11, 256, 110, dequantizer(_dequantize, Q3_K_BLOCK, 256))
