"""Q4_K and Q5_K: 256 weights of 4 or 5 bits; each sub-block of 32 has a 6-bit scale and a 6-bit minimum.

    Q4_K   byte   0 1   2 3    4 … 15   16 … 143              4.5 bits a weight
                  d     dmin   scales   qs
    Q5_K   byte   0 1   2 3    4 … 15   16 … 47   48 … 175    5.5 bits a weight
                  d     dmin   scales   qh        qs

    scales byte 0-3 (r):    bits 76               543210
                            high 2 of s_(r+4)     s_r
    scales byte 4-7 (4+r):  bits 76               543210
                            high 2 of m_(r+4)     m_r
    scales byte 8-11 (8+r): bits 7654             3210
                            low 4 of m_(r+4)      low 4 of s_(r+4)

    qs byte 32p+j:          bits 7654             3210
                            low 4 of q_(64p+32+j) low 4 of q_(64p+j)
    qh byte j:              bit r is bit 4 of q_(32r+j)

    weight i of sub-block r = (d · s_r) · q_i - (dmin · m_r);  sub-block r is weights 32r … 32r+31

Source: `block_q4_K` and `block_q5_K` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import Scales, bit_fields, dequantizer, join_fields, single

Q4_K_BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (3, 4)), ("qs", "u1", (4, 32))])
Q5_K_BLOCK = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (3, 4)), ("qh", "u1", 32), ("qs", "u1", (4, 32))]
)
assert Q4_K_BLOCK.itemsize == 144
assert Q5_K_BLOCK.itemsize == 176


def scales_and_minimums(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 6-bit scales and minimums, uint8 `[n, 8]` each, from the `scales` bytes, uint8 `[n, 3, 4]`."""
    first, second, third = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, minimums


def scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale and the minimum of each sub-block of Q4_K or Q5_K blocks: float32 `[n, 8]` each."""
    s, m = scales_and_minimums(blocks["scales"])
    return single(blocks["d"]) * s.astype(np.float32), single(blocks["dmin"]) * m.astype(np.float32)


def store_scales(blocks: np.ndarray, scales: Scales) -> None:
    """Write scales and minimums of Q4_K or Q5_K blocks; s and m are 0 … 63."""
    s, m = scales.s.astype(np.uint8), scales.m.astype(np.uint8)
    blocks["d"], blocks["dmin"] = scales.d, scales.dmin
    blocks["scales"][:, 0] = s[:, :4] | s[:, 4:] >> 4 << 6
    blocks["scales"][:, 1] = m[:, :4] | m[:, 4:] >> 4 << 6
    blocks["scales"][:, 2] = s[:, 4:] & 15 | m[:, 4:] << 4


def store_codes_q4_k(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes 0 … 15, `[n, 256]`, into Q4_K blocks."""
    blocks["qs"] = join_fields(codes.reshape(-1, 4, 2, 32), 4)


def store_codes_q5_k(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes 0 … 31, `[n, 256]`, into Q5_K blocks."""
    store_codes_q4_k(blocks, codes)
    blocks["qh"] = join_fields(codes.reshape(-1, 8, 32) >> 4, 1)


def _weights(blocks: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The weights, float32 `[n, 256]`, of blocks whose codes are uint8 `[n, 8, 32]`."""
    scale, minimum = scales(blocks)
    return (scale[..., None] * codes.astype(np.float32) - minimum[..., None]).reshape(-1, 256)


def _dequantize_q4_k(blocks: np.ndarray) -> np.ndarray:
    return _weights(blocks, bit_fields(blocks["qs"], 4).reshape(-1, 8, 32))


def _dequantize_q5_k(blocks: np.ndarray) -> np.ndarray:
    low = bit_fields(blocks["qs"], 4).reshape(-1, 8, 32)
    return _weights(blocks, low | bit_fields(blocks["qh"], 1) << 4)


Q4_K = BlockFormat("Q4_K", 12, 256, 144, dequantizer(_dequantize_q4_k, Q4_K_BLOCK, 256))
Q5_K = BlockFormat("Q5_K", 13, 256, 176, dequantizer(_dequantize_q5_k, Q5_K_BLOCK, 256))
