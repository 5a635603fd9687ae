"""Block formats: how a run of weights is packed into bytes, and tensors stored that way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BlockFormat:
    """One GGML block type.

    `dequantize` takes uint8 `[n_blocks, type_size]` and returns float32 `[n_blocks, block_size]`.
    `quantize` goes the other way, float32 `[n_blocks, block_size]`, all finite, to the bytes that the `gguf`
    package gives; None where that has none. `encode` quantises to every format.
    Float types are formats too, with blocks of one value.
    """

    name: str  # as GGUF spells it: "Q4_K"
    ggml_type: int  # type id in a GGUF tensor record
    block_size: int  # weights a block
    type_size: int  # bytes a block
    dequantize: Callable[[np.ndarray], np.ndarray]
    is_float: bool = False
    quantize: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def bits_per_weight(self) -> float:
        return self.type_size * 8 / self.block_size

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` weights; `width` must be a multiple of `block_size`."""
        if width % self.block_size:
            raise ValueError(f"{self.name} needs a width divisible by {self.block_size}, not {width}")
        return width // self.block_size * self.type_size


@dataclass(frozen=True)
class QTensor:
    """A tensor as it lies in its file.

    `shape` is in NumPy order: a matrix is (outputs, inputs). `data` is uint8
    `[rows, row_bytes]`, where rows is the product of all dimensions but the last; usually a
    read-only view of a memory-mapped file. Where a checkpoint packs weights in another way, `data` is a
    `checkpoint.lazy_rows.LazyRows`, which stands in for such an array and decodes rows when they are read.
    """

    name: str
    format: BlockFormat
    shape: tuple[int, ...]
    data: np.ndarray

    @property
    def n_bytes(self) -> int:
        return self.data.size

    def dequantize(self) -> np.ndarray:
        """The tensor as float32 of `shape`."""
        blocks = np.asarray(self.data).reshape(-1, self.format.type_size)
        return self.format.dequantize(blocks).reshape(self.shape)

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Rows `index` of a matrix as float32 `[len(index), width]`, without touching the others."""
        blocks = np.asarray(self.data[index]).reshape(-1, self.format.type_size)
        return self.format.dequantize(blocks).reshape(len(index), self.shape[-1])
