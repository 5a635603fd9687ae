"""F32, F16, BF16: floating point as it is, in blocks of one.

F32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm   IEEE 754 binary32
F16   s eeeee mmmmmmmmmm                   IEEE 754 binary16
BF16  s eeeeeeee mmmmmmm                   the upper half of a binary32
"""

from __future__ import annotations

import numpy as np

from ..block import BlockFormat
from .packing import dequantizer

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


F32 = BlockFormat("F32", 0, 1, 4, dequantizer(_from_f32, F32_BLOCK, 1), is_float=True)
F16 = BlockFormat("F16", 1, 1, 2, dequantizer(_from_f16, F16_BLOCK, 1), is_float=True)
BF16 = BlockFormat("BF16", 30, 1, 2, dequantizer(_from_bf16, BF16_BLOCK, 1), is_float=True)
