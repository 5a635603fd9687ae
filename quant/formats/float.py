"""F32, F16, BF16: unquantised floating point, as blocks of one weight.

F32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm   IEEE 754 binary32
F16   s eeeee mmmmmmmmmm                   IEEE 754 binary16
BF16  s eeeeeeee mmmmmmm                   bfloat16: the upper half of a binary32

Source: IEEE 754-2019; `GGML_TYPE_F32`, `GGML_TYPE_F16` and `GGML_TYPE_BF16` of ggml.
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import dequantizer, quantizer

F32_BLOCK = np.dtype("<f4")
F16_BLOCK = np.dtype("<f2")
BF16_BLOCK = np.dtype("<u2")
assert F32_BLOCK.itemsize == 4
assert F16_BLOCK.itemsize == 2
assert BF16_BLOCK.itemsize == 2


def _from_f32(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, None]


def _from_f16(blocks: np.ndarray) -> np.ndarray:
    return blocks.astype(np.float32)[:, None]


def _from_bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.astype(np.uint32) << np.uint32(16)).view(np.float32)[:, None]


def _to_float(weights: np.ndarray, blocks: np.ndarray) -> None:
    """Store weights as F32 or F16, rounded to nearest even; beyond fp16's range they become infinite."""
    blocks[:] = weights[:, 0]


def _to_bf16(weights: np.ndarray, blocks: np.ndarray) -> None:
    """Store weights as BF16, rounded to nearest even."""
    bits = weights[:, 0].view(np.uint32)
    blocks[:] = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)


F32 = BlockFormat(
    "F32",
    0,
    1,
    4,
    dequantizer(_from_f32, F32_BLOCK, 1),
    is_float=True,
    quantize=quantizer(_to_float, F32_BLOCK, 1),
)
F16 = BlockFormat(
    "F16",
    1,
    1,
    2,
    dequantizer(_from_f16, F16_BLOCK, 1),
    is_float=True,
    quantize=quantizer(_to_float, F16_BLOCK, 1),
)
BF16 = BlockFormat(
    "BF16",
    30,
    1,
    2,
    dequantizer(_from_bf16, BF16_BLOCK, 1),
    is_float=True,
    quantize=quantizer(_to_bf16, BF16_BLOCK, 1),
)
