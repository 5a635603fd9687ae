"""IQ4_NL and IQ4_XS: 4-bit non-uniform quantisation; a code is an index into the codebook `IQ4_VALUES`.

    IQ4_NL   byte   0 1   2 … 17                   32 weights, 4.5 bits a weight
                    d     qs                       weight i = d · value(q_i)

    IQ4_XS   byte   0 1   2 3        4 … 7      8 … 135      256 weights, 4.25 bits a weight
                    d     scales_h   scales_l   qs
             Sub-block r is weights 32r … 32r+31; its scale s_r has 6 bits.
             scales_l byte r/2:   low 4 bits of s_r, even r in bits 3210, odd r in bits 7654
             scales_h:            16 bits, little-endian; bits 2r+1 and 2r are the high 2 bits of s_r
             weight i of sub-block r = (d · (s_r - 32)) · value(q_i), where value(q) is IQ4_VALUES[q]

    qs byte 16r+j:   bits 7654      3210
                     q_(32r+16+j)   q_(32r+j)

Source: `block_iq4_nl` and `block_iq4_xs` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import Scales, bit_fields, dequantizer, join_fields, single, without_minimum

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

IQ4_NL_BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
IQ4_XS_BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", (8, 16))])
assert IQ4_NL_BLOCK.itemsize == 18
assert IQ4_XS_BLOCK.itemsize == 136

_TABLE = np.array(IQ4_VALUES, np.float32)


def _dequantize_iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return single(blocks["d"]) * _TABLE.take(bit_fields(blocks["qs"], 4).reshape(-1, 32))


def _dequantize_iq4_xs(blocks: np.ndarray) -> np.ndarray:
    values = _TABLE.take(bit_fields(blocks["qs"], 4).reshape(-1, 8, 32))
    return (scales_xs(blocks)[0][..., None] * values).reshape(-1, 256)


def scales_xs(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale of each sub-block of IQ4_XS blocks, and a minimum of zero: float32 `[n, 8]` each."""
    low = bit_fields(blocks["scales_l"][..., None], 4).reshape(-1, 8)
    high = blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    return without_minimum(single(blocks["d"]) * ((low | high << 4).astype(np.float32) - 32))


def store_scales_xs(blocks: np.ndarray, scales: Scales) -> None:
    """Write the scales of IQ4_XS blocks; s is -32 … 31."""
    fields = (scales.s + 32).astype(np.uint16)
    blocks["d"] = scales.d
    blocks["scales_l"] = (fields[:, ::2] & 15) | (fields[:, 1::2] & 15) << 4
    blocks["scales_h"] = (fields >> 4 << np.arange(0, 16, 2, dtype=np.uint16)).sum(axis=1)


def store_codes_nl(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes 0 … 15, `[n, 32]`, into IQ4_NL blocks."""
    blocks["qs"] = join_fields(codes.reshape(-1, 2, 16), 4)


def store_codes_xs(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes 0 … 15, `[n, 256]`, into IQ4_XS blocks."""
    blocks["qs"] = join_fields(codes.reshape(-1, 8, 2, 16), 4)


IQ4_NL = BlockFormat("IQ4_NL", 20, 32, 18, dequantizer(_dequantize_iq4_nl, IQ4_NL_BLOCK, 32))
IQ4_XS = BlockFormat("IQ4_XS", 23, 256, 136, dequantizer(_dequantize_iq4_xs, IQ4_XS_BLOCK, 256))
