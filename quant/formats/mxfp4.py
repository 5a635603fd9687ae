"""MXFP4: 32 weights as 4-bit floats (E2M1) with a shared power of two (E8M0). 4.25 bits a weight.

    byte   0   1 … 16
           e   qs                        weight i = 2^(e-128) · value(q_i)

    qs byte j:   bits 7654   3210        q:  bit 3   sign
                 q_(j+16)    q_j             bits 21 exponent, bit 0 mantissa

The table holds twice the E2M1 values, to be whole numbers; hence 2^(e-128) and not 2^(e-127).
E8M0 has no infinity, and its NaN (e = 255) is read as 2^127, as ggml does.

Source: OCP Microscaling Formats (MX) Specification 1.0; `block_mxfp4` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import bit_fields, dequantizer

E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # code 8 is +0, as in ggml

MXFP4_BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])
assert MXFP4_BLOCK.itemsize == 17

_TABLE = np.array(E2M1_DOUBLED, np.float32)
_SCALE = np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)  # e = 0 and 1 are subnormal


def _dequantize(blocks: np.ndarray) -> np.ndarray:
    return _SCALE[blocks["e"]][:, None] * _TABLE.take(bit_fields(blocks["qs"], 4).reshape(-1, 32))


MXFP4 = BlockFormat("MXFP4", 39, 32, 17, dequantizer(_dequantize, MXFP4_BLOCK, 32))
