"""Rows that are made when they are read: what `QTensor.data` is of a tensor whose file packs it otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ..block import BlockFormat, QTensor

CHUNK_WEIGHTS = 1 << 18  # weights made at once: the temporaries of one stay in the cache

Index = slice | np.ndarray  # of rows: positive steps, or their numbers
Make = Callable[[Index], np.ndarray]


@dataclass(frozen=True, eq=False)
class MadeRows:
    """Stands in for uint8 `[rows, row_bytes]` without being in memory.

    Slices are such again; other indices, `np.asarray` and everything else of NumPy's that takes arrays make
    the rows asked for, anew each time. `make` gives contiguous uint8 `[n, row_bytes]` of the rows at an
    index, and must not mind being called by several threads at once. `sources` are the bytes that it reads.
    """

    make: Make
    row_bytes: int
    width: int  # weights a row
    numbers: range  # of these rows among all that `make` knows
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

    def __getitem__(self, index: Any) -> MadeRows | np.ndarray:
        if isinstance(index, slice) and (index.step is None or index.step > 0):
            return replace(self, numbers=self.numbers[index])
        if isinstance(index, np.ndarray) and index.ndim == 1 and index.dtype.kind in "iu":
            return self.make(np.arange(self.numbers.start, self.numbers.stop, self.numbers.step)[index])
        return cast(np.ndarray, np.asarray(self)[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        out = np.empty(self.shape, np.uint8)
        step = max(16, CHUNK_WEIGHTS // self.width)
        for start in range(0, len(out), step):
            part = self.numbers[start : start + step]
            out[start : start + step] = self.make(slice(part.start, part.stop, part.step))
        return out if dtype is None else out.astype(dtype, copy=False)

    def reshape(self, *shape: Any) -> MadeRows | np.ndarray:
        """The same if the shape is, else the rows as an array of that shape."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if wanted in (self.shape, (len(self), -1), (-1, self.row_bytes)):
            return self
        return np.asarray(self).reshape(*shape)

    def tobytes(self) -> bytes:
        return np.asarray(self).tobytes()


def made_tensor(
    name: str, form: BlockFormat, shape: tuple[int, ...], make: Make, sources: tuple[np.ndarray, ...]
) -> QTensor:
    """The tensor of `shape` whose rows, numbered across its matrices, `make` gives in blocks of `form`."""
    n_rows, width = math.prod(shape[:-1]), shape[-1]
    rows = MadeRows(make, form.row_bytes(width), width, range(n_rows), sources)
    return QTensor(name, form, shape, cast(np.ndarray, rows))


def is_made(tensor: QTensor) -> bool:
    """Whether a tensor's file packs it otherwise; then (outputs, inputs) whatever its unpacked kin have."""
    return not isinstance(tensor.data, np.ndarray)


def sources(tensor: QTensor) -> tuple[np.ndarray, ...]:
    """The arrays in the file that a tensor is read from."""
    data: Any = tensor.data
    return data.sources if isinstance(data, MadeRows) else (data,)


def numbers_of(index: Index) -> np.ndarray:
    """The numbers of the rows at an index; those of a slice have an end."""
    return np.arange(index.start, index.stop, index.step) if isinstance(index, slice) else index
