"""Rows that are decoded when they are read, for tensors that a checkpoint packs in a way of its own.

`LazyRows` is `QTensor.data` of such a tensor: it stands in for the array of GGUF blocks, which never is in
memory as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ..block import BlockFormat, QTensor

CHUNK_WEIGHTS = 1 << 18  # weights decoded at once, so few that the temporaries stay in the cache

Index = slice | np.ndarray  # of rows: a slice with a positive step, or an array of row numbers
Decode = Callable[[Index], np.ndarray]  # the rows at an index → contiguous uint8 [n, row_bytes]


@dataclass(frozen=True, eq=False)
class LazyRows:
    """Stands in for an array uint8 `[rows, row_bytes]`, whose rows are decoded each time they are read.

    A slice of it is another `LazyRows`; any other index, `np.asarray` and NumPy functions that take arrays
    decode the rows in question. `decode` may be called by several threads at once. `sources` are the
    arrays of the file that it reads.
    """

    decode: Decode
    row_bytes: int
    width: int  # weights a row
    numbers: range  # the numbers that `decode` knows these rows by
    sources: tuple[np.ndarray, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.numbers), self.row_bytes

    @property
    def size(self) -> int:
        return len(self.numbers) * self.row_bytes

    nbytes = size
    ndim = 2
    dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> LazyRows | np.ndarray:
        if isinstance(index, slice) and (index.step is None or index.step > 0):
            return replace(self, numbers=self.numbers[index])
        if isinstance(index, np.ndarray) and index.ndim == 1 and index.dtype.kind in "iu":
            return self.decode(np.arange(self.numbers.start, self.numbers.stop, self.numbers.step)[index])
        return cast(np.ndarray, np.asarray(self)[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        out = np.empty(self.shape, np.uint8)
        step = max(16, CHUNK_WEIGHTS // self.width)
        for start in range(0, len(out), step):
            part = self.numbers[start : start + step]
            out[start : start + step] = self.decode(slice(part.start, part.stop, part.step))
        return out if dtype is None else out.astype(dtype, copy=False)

    def columns(self, start: int, stop: int) -> LazyRows:
        """Bytes start … stop - 1 of each row; the rows are decoded as a whole."""

        def decode(index: Index) -> np.ndarray:
            return np.ascontiguousarray(self.decode(index)[:, start:stop])

        return replace(self, decode=decode, row_bytes=stop - start)

    def reshape(self, *shape: Any) -> LazyRows | np.ndarray:
        """Itself if that is its shape already, otherwise the decoded rows as an array of `shape`."""
        target = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if target in (self.shape, (len(self), -1), (-1, self.row_bytes)):
            return self
        return np.asarray(self).reshape(*shape)

    def tobytes(self) -> bytes:
        return np.asarray(self).tobytes()


def lazy_tensor(
    name: str, form: BlockFormat, shape: tuple[int, ...], decode: Decode, sources: tuple[np.ndarray, ...]
) -> QTensor:
    """A tensor of format `form` whose rows `decode` gives; rows are numbered across all its matrices."""
    n_rows, width = math.prod(shape[:-1]), shape[-1]
    rows = LazyRows(decode, form.row_bytes(width), width, range(n_rows), sources)
    return QTensor(name, form, shape, cast(np.ndarray, rows))


def is_lazy(tensor: QTensor) -> bool:
    """Whether the rows of a tensor are decoded when they are read, since its checkpoint packs them.

    Such tensors are (outputs, inputs) even where the architecture's plain checkpoints are (inputs, outputs).
    """
    return not isinstance(tensor.data, np.ndarray)


def sources(tensor: QTensor) -> tuple[np.ndarray, ...]:
    """The arrays of the file that a tensor is read from."""
    data: Any = tensor.data
    return data.sources if isinstance(data, LazyRows) else (data,)


def row_numbers(index: Index) -> np.ndarray:
    """The numbers of the rows at an index, int `[n]`; a slice must have a stop."""
    return np.arange(index.start, index.stop, index.step) if isinstance(index, slice) else index
