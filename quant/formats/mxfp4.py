"""MXFP4: 32 weights as 4-bit floats (E2M1) with a shared power-of-two scale (E8M0). 4.25 bits a weight.

    byte   0   1 … 16
           e   qs                        weight i = 2^(e-128) · value(q_i)

    qs byte j:   bits 7654   3210        q:  bit 3   sign
                 q_(j+16)    q_j             bits 21 exponent, bit 0 mantissa

`value` doubles the E2M1 values 0, 0.5, 1, 1.5, 2, 3, 4, 6, so that they are whole numbers; the scale is
therefore 2^(e-128) instead of 2^(e-127).
E8M0 has no infinity, and its NaN (e = 255) is read as 2^127, as ggml does.

Source: OCP Microscaling Formats (MX) Specification 1.0; `block_mxfp4` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import Scales, bit_fields, dequantizer, join_fields, quantizer, without_minimum

E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # code 8 is +0, as in ggml

MXFP4_BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])
assert MXFP4_BLOCK.itemsize == 17

_TABLE = np.array(E2M1_DOUBLED, np.float32)
ASCENDING = np.array([15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7], np.uint8)  # E2M1 bits by rank
_SCALE = np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)  # e = 0 and 1 are subnormal


def _dequantize(blocks: np.ndarray) -> np.ndarray:
    return _SCALE[blocks["e"]][:, None] * _TABLE.take(bit_fields(blocks["qs"], 4).reshape(-1, 32))


def exponents(weights: np.ndarray) -> np.ndarray:
    """The exponents e, uint8 `[n]`, of float32 blocks `[n, 32]`.

    The largest magnitude of a block is 4 to 8 times 2^(e-127). If it is below 2^-125, the exponent wraps
    around to a large one, as in the `gguf` package, and all codes of the block become 0.
    """
    peak = np.abs(weights).max(axis=1)
    exponent = np.where(peak > 0, np.floor(np.log2(peak)) - 2 + 127, 0)
    return exponent.astype(np.int32).astype(np.uint8)


def nearest_codes(weights: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The nearest codes, uint8 `[n, 32]`, for scales float32 `[n, 1]`; ties go to the smaller magnitude."""
    magnitude = np.abs(weights)
    codes = np.zeros(weights.shape, np.uint8)
    for halfway in (0.5, 1.5, 2.5, 3.5, 5, 7, 10):
        codes += magnitude > np.float32(halfway) * scale
    return codes | ((weights < 0) & (codes > 0)).astype(np.uint8) << 3


def _quantize(weights: np.ndarray, blocks: np.ndarray) -> None:
    blocks["e"] = exponents(weights)
    codes = nearest_codes(weights, _SCALE[blocks["e"]][:, None])
    blocks["qs"] = join_fields(codes.reshape(-1, 2, 16), 4)


def scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The power-of-two scale of each block, and a minimum of zero: float32 `[n, 1]` each."""
    return without_minimum(_SCALE[blocks["e"]][:, None])


def store_scales(blocks: np.ndarray, scales: Scales) -> None:
    """Write the exponents of scales d, which are powers of two."""
    blocks["e"] = np.frexp(scales.d)[1] + 127


def store_codes(blocks: np.ndarray, codes: np.ndarray) -> None:
    """Write uint8 codes `[n, 32]`: 0 … 14, the ranks of the 15 distinct E2M1 values in ascending order."""
    blocks["qs"] = join_fields(ASCENDING.take(codes).reshape(-1, 2, 16), 4)


MXFP4 = BlockFormat(
    "MXFP4",
    39,
    32,
    17,
    dequantizer(_dequantize, MXFP4_BLOCK, 32),
    quantize=quantizer(_quantize, MXFP4_BLOCK, 32),
)
