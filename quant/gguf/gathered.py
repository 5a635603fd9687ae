"""GGUF tensors whose rows are gathered from tensors of a checkpoint, chunk by chunk.

A GGUF file seldom has the tensors of a checkpoint as they are: experts are stacked, projections joined or
split, rows of queries and keys permuted for the other RoPE pairing. A GatheredTensor does that to the rows of
a chunk when they are read; where no value changes, encoded rows are copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..block import BlockFormat, QTensor
from ..formats import FORMATS

CHUNK_WEIGHTS = 1 << 22  # weights a chunk


@dataclass(frozen=True)
class GatheredTensor:
    """A tensor `name` of `shape` (NumPy order), made of the rows of `parts`, which all have its width.

    The rows of all parts are numbered one part after the other. Row i of the tensor is row `order[i]` of the
    parts, times `scale[i]`, and its column j is column `columns[j]`; int [rows], float32 [rows], int [width].
    None means the identity.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[QTensor, ...]
    order: np.ndarray | None = None
    columns: np.ndarray | None = None
    scale: np.ndarray | None = None

    @classmethod
    def from_values(cls, name: str, values: np.ndarray) -> GatheredTensor:
        """A float32 tensor of computed values."""
        values = np.ascontiguousarray(values, np.float32)
        data = values.view(np.uint8).reshape(math.prod(values.shape[:-1]), -1)
        return cls(name, values.shape, (QTensor(name, FORMATS["F32"], values.shape, data),))

    @property
    def width(self) -> int:
        return self.shape[-1]

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def n_weights(self) -> int:
        return math.prod(self.shape)

    @property
    def matrix_rows(self) -> int:
        """Rows of a matrix; in stacks of experts, of one expert's."""
        return self.shape[-2] if len(self.shape) > 1 else 1

    @property
    def n_source_bytes(self) -> int:
        return sum(part.n_bytes for part in self.parts)

    @property
    def format(self) -> BlockFormat:
        """The format of the rows that are read: that of the parts, or F32 where values are computed."""
        first = self.parts[0].format
        copied = self.scale is None and all(part.format is first for part in self.parts)
        if copied and self.columns is not None:
            copied = self._block_order is not None
        return first if copied and self.factors is not None else FORMATS["F32"]

    @cached_property
    def factors(self) -> np.ndarray | None:
        """The factor of each matrix, float32 [matrices]; None if rows of one have several."""
        if not any(part.factors for part in self.parts):
            return np.ones(self.n_rows // self.matrix_rows, np.float32)
        factors = np.concatenate([part.row_factors() for part in self.parts])
        factors = (factors if self.order is None else factors[self.order]).reshape(-1, self.matrix_rows)
        return factors[:, 0] if (factors == factors[:, :1]).all() else None

    def chunks(self, weights: int = CHUNK_WEIGHTS) -> Iterator[QTensor]:
        """All rows in order, as matrices [rows, width] of about `weights` weights.

        No chunk has rows of two matrices of a stack.
        """
        step = max(1, weights // self.width)
        for first in range(0, self.n_rows, self.matrix_rows):
            for start in range(first, first + self.matrix_rows, step):
                yield self.rows(start, min(start + step, first + self.matrix_rows))

    def rows(self, start: int, end: int) -> QTensor:
        """Rows `start` … `end` - 1 as a matrix [rows, width] of `format`."""
        index = np.arange(start, end) if self.order is None else self.order[start:end]
        chunk = self._gathered(index, ordered=self.order is None)
        if self.columns is not None:
            chunk = self._with_columns(chunk)
        if self.scale is not None:
            chunk = _as_float32(chunk, chunk.dequantize() * self.scale[start:end, None])
        return chunk if chunk.format is self.format else _as_float32(chunk, chunk.dequantize())

    @cached_property
    def _starts(self) -> np.ndarray:
        """The number of the first row of each part, and behind them the number of rows."""
        return np.cumsum([0, *(len(part.data) for part in self.parts)])

    @cached_property
    def _block_order(self) -> np.ndarray | None:
        """`columns` as an order of blocks; None if it permutes columns within blocks."""
        assert self.columns is not None
        size = self.parts[0].format.block_size
        blocks = self.columns.reshape(-1, size)
        keeps_blocks = (blocks == blocks[:, :1] + np.arange(size)).all() and not (blocks[:, 0] % size).any()
        return blocks[:, 0] // size if keeps_blocks else None

    def _gathered(self, index: np.ndarray, ordered: bool) -> QTensor:
        """The parts' rows with the numbers `index`, which ascend by one if `ordered`."""
        owners = np.searchsorted(self._starts, index, side="right") - 1
        pieces: list[QTensor] = []
        cuts = np.flatnonzero(np.diff(owners)) + 1
        if len(cuts) > 64:  # rows of several parts alternate
            return self._interleaved(index, owners)
        for run in np.split(np.arange(len(index)), cuts):
            part = self.parts[int(owners[run[0]])]
            at = index[run] - self._starts[owners[run[0]]]
            data = part.data[int(at[0]) : int(at[-1]) + 1] if ordered else part.data[at]
            pieces.append(self._piece(part, at, data))
        return pieces[0] if len(pieces) == 1 else _joined(pieces)

    def _piece(self, part: QTensor, at: np.ndarray, data: np.ndarray) -> QTensor:
        """The rows `at` of a part, whose `data` are given; float32 if they have several factors."""
        piece = replace(part, name=self.name, shape=(len(data), self.width), data=data, factors=())
        if not part.factors:
            return piece
        factors = part.row_factors()[at]
        if (factors == factors[0]).all():
            return replace(piece, factors=(float(factors[0]),))
        return _as_float32(piece, piece.dequantize() * factors[:, None])

    def _interleaved(self, index: np.ndarray, owners: np.ndarray) -> QTensor:
        """The same rows, copied part by part; `owners` is the part of each."""
        used = np.unique(owners)
        pieces = []
        for owner in used.tolist():
            part = self.parts[owner]
            at = index[owners == owner] - self._starts[owner]
            pieces.append(self._piece(part, at, part.data[at]))
        whole = _joined(pieces)
        places = np.concatenate([np.flatnonzero(owners == owner) for owner in used])
        data = np.empty_like(whole.data)
        data[places] = whole.data
        return replace(whole, data=data)

    def _with_columns(self, chunk: QTensor) -> QTensor:
        if self._block_order is None or chunk.format is not self.parts[0].format:
            return _as_float32(chunk, chunk.dequantize()[:, self.columns])
        blocks = chunk.data.reshape(len(chunk.data), -1, chunk.format.type_size)
        return replace(
            chunk, data=np.ascontiguousarray(blocks[:, self._block_order]).reshape(chunk.data.shape)
        )


def file_order_key(name: str) -> tuple[int, str]:
    """Sort key of tensors in a file: tensors outside the layers first, then layer by layer, each by name."""
    _, _, rest = name.partition("blk.")
    return (int(rest.partition(".")[0]) if rest else -1), name


def _joined(pieces: list[QTensor]) -> QTensor:
    """Matrices stacked vertically; float32 if their formats or factors differ."""
    first = pieces[0]
    if any(piece.format is not first.format or piece.factors != first.factors for piece in pieces):
        pieces = [_as_float32(piece, piece.dequantize()) for piece in pieces]
    data = np.concatenate([piece.data for piece in pieces])
    return replace(pieces[0], shape=(len(data), pieces[0].shape[1]), data=data)


def _as_float32(like: QTensor, values: np.ndarray) -> QTensor:
    """The tensor `like` with float32 `values`."""
    data = np.ascontiguousarray(values, np.float32).view(np.uint8)
    return replace(like, format=FORMATS["F32"], data=data, factors=())
