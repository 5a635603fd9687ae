"""Block formats, which pack a fixed number of weights into bytes, and tensors in such a format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class BlockFormat:
    """One GGML block type.

    `dequantize` takes uint8 `[n_blocks, type_size]` and returns float32 `[n_blocks, block_size]`.
    `quantize` packs float32 `[n_blocks, block_size]`, all finite, into the same bytes as the `gguf` package
    does. It is None for formats that `gguf` cannot quantise to; `rounding.encode` quantises to every format.
    Float types are formats with blocks of one value.
    """

    name: str  # in GGUF's spelling: "Q4_K"
    ggml_type: int  # the type id in a GGUF tensor record
    block_size: int  # weights per block
    type_size: int  # bytes per block
    dequantize: Callable[[np.ndarray], np.ndarray]
    is_float: bool = False
    quantize: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def bits_per_weight(self) -> float:
        """Including the block's scales and zero points."""
        return self.type_size * 8 / self.block_size

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` weights. ValueError unless `width` is a multiple of `block_size`."""
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
    `factors` are what weights are multiplied by beside the scales in their blocks, each a float32: one for
    the whole tensor, or one for each of so many equal parts of its rows, as of stacked experts. Empty: 1.
    """

    name: str
    format: BlockFormat
    shape: tuple[int, ...]
    data: np.ndarray
    factors: tuple[float, ...] = ()

    @property
    def n_bytes(self) -> int:
        return self.data.size

    def dequantize(self) -> np.ndarray:
        """The tensor as float32 of `shape`."""
        blocks = np.asarray(self.data).reshape(-1, self.format.type_size)
        values = self.format.dequantize(blocks)
        if self.factors:
            values.reshape(len(self.factors), -1)[:] *= np.array(self.factors, np.float32)[:, None]
        return values.reshape(self.shape)

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Rows `index` of a matrix as float32 `[len(index), width]`; no other row is read."""
        blocks = np.asarray(self.data[index]).reshape(-1, self.format.type_size)
        values = self.format.dequantize(blocks).reshape(len(index), self.shape[-1])
        if self.factors:
            values *= self.row_factors()[index, None]
        return values

    def row_factors(self) -> np.ndarray:
        """What each row is multiplied by beside the scales in its blocks, float32 [rows]."""
        if not self.factors:
            return np.ones(len(self.data), np.float32)
        return np.repeat(np.array(self.factors, np.float32), len(self.data) // len(self.factors))

    def part_of_rows(self, start: int, stop: int) -> QTensor:
        """Rows start … stop - 1 of a matrix."""
        return replace(self, shape=(stop - start, self.shape[1]), data=self.data[start:stop])

    def part_of_columns(self, start: int, stop: int) -> QTensor:
        """Columns start … stop - 1 of a matrix, which are whole blocks: ValueError if they are not."""
        first, end = self.format.row_bytes(start), self.format.row_bytes(stop)
        cut: Any = self.data
        cut = cut[:, first:end] if isinstance(cut, np.ndarray) else cut.columns(first, end)
        return replace(self, shape=(self.shape[0], stop - start), data=cut)
