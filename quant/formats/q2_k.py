"""Q2_K: 256 weights of 2 bits; each sub-block of 16 has a 4-bit scale and minimum. 2.625 bits a weight.

    byte   0 … 15    16 … 79   80 81   82 83
           scales    qs        d       dmin

    scales byte r:   bits 7654   3210
                     m_r         s_r           of sub-block r: weights 16r … 16r+15
    qs byte 32h+j:   bits 76     54     32     10
                     +96+j       +64+j  +32+j  +j     of half h: weight 128h + …

    weight i of sub-block r = (d · s_r) · q_i - (dmin · m_r)

Source: `block_q2_K` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import Scales, bit_fields, dequantizer, join_fields, single

Q2_K_BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", (2, 32)), ("d", "<f2"), ("dmin", "<f2")])
assert Q2_K_BLOCK.itemsize == 84


def scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale and the minimum of each sub-block: float32 `[n, 16]` each."""
    packed = blocks["scales"]
    scale = single(blocks["d"]) * (packed & 15).astype(np.float32)
    return scale, single(blocks["dmin"]) * (packed >> 4).astype(np.float32)


def store_scales(blocks: np.ndarray, scales: Scales) -> None:
    """Write scales and minimums; s and m are 0 … 15."""
    blocks["d"], blocks["dmin"] = scales.d, scales.dmin
    blocks["scales"] = scales.s.astype(np.uint8) | scales.m.astype(np.uint8) << 4


def store_codes(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes 0 … 3, `[n, 256]`."""
    blocks["qs"] = join_fields(codes.reshape(-1, 2, 4, 32), 2)


def _dequantize(blocks: np.ndarray) -> np.ndarray:
    scale, minimum = scales(blocks)
    codes = bit_fields(blocks["qs"], 2).reshape(-1, 16, 16).astype(np.float32)
    return (scale[..., None] * codes - minimum[..., None]).reshape(-1, 256)


Q2_K = BlockFormat("Q2_K", 10, 256, 84, dequantizer(_dequantize, Q2_K_BLOCK, 256))
