"""Tensors put together of rows of others, read a few rows at a time.

What a converter writes is rarely a tensor as it lies in a checkpoint: experts are stacked, projections
joined or taken apart, rows ordered for another way of pairing them. All of that is done to a few rows when
they are asked for, on the bytes as they are where no value changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..block import BlockFormat, QTensor
from ..formats import FORMATS

CHUNK_WEIGHTS = 1 << 22  # weights that are worked on at a time


@dataclass(frozen=True)
class Assembled:
    """A tensor `name` of `shape` (NumPy order): the rows of `parts`, all of one width, one after the other.

    `order` int [rows] says which of these rows each row is, `columns` int [width] the same of columns;
    `scale` float32 [rows] multiplies rows (in their new order). None: as they are.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[QTensor, ...]
    order: np.ndarray | None = None
    columns: np.ndarray | None = None
    scale: np.ndarray | None = None

    @classmethod
    def of_values(cls, name: str, values: np.ndarray) -> Assembled:
        """A small tensor of its own, float32."""
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
        """Rows of one of the matrices that a stack is made of."""
        return self.shape[-2] if len(self.shape) > 1 else 1

    @property
    def n_source_bytes(self) -> int:
        return sum(part.n_bytes for part in self.parts)

    @property
    def format(self) -> BlockFormat:
        """The format that rows come in: that of the parts, or F32 where values have to be computed."""
        first = self.parts[0].format
        plain = self.scale is None and all(part.format is first for part in self.parts)
        if plain and self.columns is not None:
            plain = self._blocks is not None
        return first if plain else FORMATS["F32"]

    def chunks(self, weights: int = CHUNK_WEIGHTS) -> Iterator[QTensor]:
        """The rows in order, matrices [rows, width] of about so many `weights`; none crosses from one
        matrix of a stack to the next."""
        step = max(1, weights // self.width)
        for first in range(0, self.n_rows, self.matrix_rows):
            for start in range(first, first + self.matrix_rows, step):
                yield self.rows(start, min(start + step, first + self.matrix_rows))

    def rows(self, start: int, end: int) -> QTensor:
        """Rows `start` … `end` - 1 as a matrix."""
        index = np.arange(start, end) if self.order is None else self.order[start:end]
        chunk = self._gathered(index, ordered=self.order is None)
        if self.columns is not None:
            chunk = self._with_columns(chunk)
        if self.scale is not None:
            chunk = _single(chunk, chunk.dequantize() * self.scale[start:end, None])
        return chunk if chunk.format is self.format else _single(chunk, chunk.dequantize())

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0, *(len(part.data) for part in self.parts)])

    @cached_property
    def _blocks(self) -> np.ndarray | None:
        """`columns` as an order of whole blocks, None if it takes blocks apart."""
        assert self.columns is not None
        size = self.parts[0].format.block_size
        blocks = self.columns.reshape(-1, size)
        whole = (blocks == blocks[:, :1] + np.arange(size)).all() and not (blocks[:, 0] % size).any()
        return blocks[:, 0] // size if whole else None

    def _gathered(self, index: np.ndarray, ordered: bool) -> QTensor:
        owners = np.searchsorted(self._starts, index, side="right") - 1
        pieces: list[QTensor] = []
        cuts = np.flatnonzero(np.diff(owners)) + 1
        of_one = len(cuts) > 64  # rows of the parts take turns
        if of_one:
            return self._scattered(index, owners)
        for run in np.split(np.arange(len(index)), cuts):
            part = self.parts[int(owners[run[0]])]
            at = index[run] - self._starts[owners[run[0]]]
            data = part.data[int(at[0]) : int(at[-1]) + 1] if ordered else part.data[at]
            pieces.append(replace(part, name=self.name, shape=(len(run), self.width), data=data))
        return pieces[0] if len(pieces) == 1 else _joined(pieces)

    def _scattered(self, index: np.ndarray, owners: np.ndarray) -> QTensor:
        used = np.unique(owners)
        pieces = []
        for owner in used.tolist():
            part = self.parts[owner]
            data = part.data[index[owners == owner] - self._starts[owner]]
            pieces.append(replace(part, name=self.name, shape=(len(data), self.width), data=data))
        whole = _joined(pieces)
        places = np.concatenate([np.flatnonzero(owners == owner) for owner in used])
        data = np.empty_like(whole.data)
        data[places] = whole.data
        return replace(whole, data=data)

    def _with_columns(self, chunk: QTensor) -> QTensor:
        if self._blocks is None or chunk.format is not self.parts[0].format:
            return _single(chunk, chunk.dequantize()[:, self.columns])
        blocks = chunk.data.reshape(len(chunk.data), -1, chunk.format.type_size)
        return replace(chunk, data=np.ascontiguousarray(blocks[:, self._blocks]).reshape(chunk.data.shape))


def place_in_file(name: str) -> tuple[int, str]:
    """Where a tensor stands among others: first those outside the layers, then layer by layer, by name."""
    _, _, rest = name.partition("blk.")
    return (int(rest.partition(".")[0]) if rest else -1), name


def _joined(pieces: list[QTensor]) -> QTensor:
    """Matrices under each other."""
    if any(piece.format is not pieces[0].format for piece in pieces):
        pieces = [_single(piece, piece.dequantize()) for piece in pieces]
    data = np.concatenate([piece.data for piece in pieces])
    return replace(pieces[0], shape=(len(data), pieces[0].shape[1]), data=data)


def _single(like: QTensor, values: np.ndarray) -> QTensor:
    """`values` as a tensor of float32."""
    data = np.ascontiguousarray(values, np.float32).view(np.uint8)
    return replace(like, format=FORMATS["F32"], data=data)
