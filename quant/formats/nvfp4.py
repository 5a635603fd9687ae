"""NVFP4: 64 weights as 4-bit floats (E2M1), with an 8-bit float scale (E4M3) for each 16. 4.5 bits a weight.

    byte   0 … 3   4 … 35
           d       qs                     weight i of sub-block r = (d_r / 2) · value(q_(16r+i))

    qs byte 8r+j:   bits 7654       3210             d_r:  bit 7       unused
                    q_(16r+8+j)     q_(16r+j)              bits 6543   exponent, with bias 7
                                                           bits 210    mantissa

`value` doubles the E2M1 values, as in MXFP4. E4M3 has no infinity; its NaN (127) is read as 0, as ggml does.

A tensor has one more scale, a float32, since E4M3 reaches from 2⁻⁹ to 448 only: `QTensor.factors`. GGUF files
have it in a tensor of its own, "….scale", and not in the blocks.

Source: NVIDIA, "Introducing NVFP4 for Efficient and Accurate Low-Precision Inference"; `block_nvfp4` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .mxfp4 import ASCENDING, E2M1_DOUBLED
from .packing import Scales, bit_fields, dequantizer, join_fields, without_minimum

SUB_BLOCK = 16  # weights that share a scale
LARGEST_SCALE = 126  # the code of 448
LARGEST_WEIGHT = 6 * 448  # in a tensor whose factor is 1

NVFP4_BLOCK = np.dtype([("d", "u1", 4), ("qs", "u1", (4, 8))])
assert NVFP4_BLOCK.itemsize == 36

_TABLE = np.array(E2M1_DOUBLED, np.float32)
_CODES = np.arange(128)
E4M3 = np.where(_CODES < 8, np.ldexp(_CODES, -9), np.ldexp(1 + _CODES % 8 / 8, _CODES // 8 - 7))
E4M3 = E4M3.astype(np.float32)  # by code, ascending; of 127, which is NaN, what its bits were otherwise


def scale_codes(d: np.ndarray) -> np.ndarray:
    """The codes of stored scales, uint8: without the unused bit, and 0 for NaN, which is read as 0.

    The code 255 is no NaN to ggml, which reads it as 480; it stays 127.
    """
    return np.where(d == 127, 0, d & 127).astype(np.uint8)


def scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the doubled values of each sub-block are multiplied by, and minimums of zero: float32 `[n, 4]`."""
    return without_minimum(E4M3[scale_codes(blocks["d"])] * np.float32(0.5))


def _dequantize(blocks: np.ndarray) -> np.ndarray:
    values = _TABLE.take(bit_fields(blocks["qs"], 4).reshape(-1, 4, SUB_BLOCK))
    return (scales(blocks)[0][..., None] * values).reshape(-1, 64)


def store_scales(blocks: np.ndarray, scales: Scales) -> None:
    """Write scales s, which are halves of E4M3 numbers."""
    blocks["d"] = np.searchsorted(E4M3, 2 * scales.s)


def store_codes(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes `[n, 64]`: 0 … 14, the ranks of the 15 distinct E2M1 values in ascending order."""
    blocks["qs"] = join_fields(ASCENDING.take(codes).reshape(-1, 4, 2, 8), 4)


NVFP4 = BlockFormat("NVFP4", 40, 64, 36, dequantizer(_dequantize, NVFP4_BLOCK, 64))
