"""Memory that instructions point into: matrices of rows, and each thread's copies of a single row."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from ...quant.block import QTensor


@dataclass(frozen=True)
class Region:
    """A matrix: the address of its first element and the bytes from row to row.

    `private`: bytes between the copies that the threads have of it; 0 if they share it.
    """

    name: str
    address: int
    stride: int
    private: int = 0

    def floats(self, n_rows: int) -> np.ndarray:
        """Its first rows as float32 [n_rows, padded width]; of a private one there is one row, thread 0's."""
        width = (self.stride or self.private) // 4
        memory = (ctypes.c_float * (n_rows * width)).from_address(self.address)
        return np.ctypeslib.as_array(memory).reshape(n_rows, width)

    def fields(self, name: str) -> dict[str, int]:
        """What a record says of it as its matrix `name`."""
        return {name: self.address, f"{name}_stride": self.stride, f"{name}_private": self.private}


class Memory:
    """Named pieces of memory, 64-byte aligned and zeroed; what is never touched costs nothing."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._keep: list[np.ndarray] = []
        self._regions: dict[str, Region] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._vectors: dict[int, tuple[np.ndarray, int]] = {}  # by the identity of the values

    def rows(self, name: str, n_rows: int, row_bytes: int) -> Region:
        """The matrix of that name, made when first asked for."""
        if name not in self._regions:
            stride = -(-row_bytes // 64) * 64
            memory = self._zeros(n_rows * stride).reshape(n_rows, stride)
            self._arrays[name] = memory.view(np.float32)
            self._regions[name] = Region(name, memory.ctypes.data, stride)
        return self._regions[name]

    def private(self, name: str, row_bytes: int) -> Region:
        """One row for each thread, none on a cache line of another's: they are written at the same time."""
        name = f"{name} of each thread"
        if name not in self._regions:
            stride = -(-row_bytes // 128) * 128 + 128
            memory = self._zeros(self.n_threads * stride)
            self._regions[name] = Region(name, memory.ctypes.data, 0, stride)
        return self._regions[name]

    def floats(self, name: str) -> np.ndarray:
        """A matrix as float32 [rows, padded width]."""
        return self._arrays[name]

    def vector(self, values: np.ndarray) -> int:
        """The address of float32 values, padded with zeros to whole vectors of the widest kind.

        Made once, however many instructions read them.
        """
        if id(values) not in self._vectors:
            memory = self._zeros(-(-values.size // 16) * 64).view(np.float32)
            memory[: values.size] = values
            self._vectors[id(values)] = values, memory.ctypes.data
        return self._vectors[id(values)][1]

    def table(self, tensor: QTensor) -> tuple[int, int]:
        """The address of a matrix as float32, its rows padded with zeros like vectors, and their stride."""
        return self.matrix(tensor.dequantize())

    def matrix(self, values: np.ndarray) -> tuple[int, int]:
        """The same of float32 [rows, width]."""
        rows, width = values.shape
        stride = -(-width // 16) * 64
        memory = self._zeros(rows * stride).view(np.float32).reshape(rows, -1)
        memory[:, :width] = values
        return memory.ctypes.data, stride

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Hold on to an array that something points into."""
        self._keep.append(array)
        return array

    def _zeros(self, n_bytes: int) -> np.ndarray:
        # The system gives zeroed pages when they are first touched.
        raw = self.keep(np.zeros(n_bytes + 64, np.uint8))
        start = -raw.ctypes.data % 64
        return raw[start : start + n_bytes]
