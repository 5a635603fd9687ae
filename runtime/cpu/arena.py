"""The arena: the aligned buffers that the machine's instructions point into."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...quant.block import QTensor

# NumPy asks for huge pages for an allocation of 4 MB or more; smaller buffers share one. Kernels step through
# rows that lie pages apart.
SHARED_BYTES, ROOM_BYTES, HUGE_PAGE = 4 << 20, 16 << 20, 2 << 20


@dataclass(frozen=True)
class Region:
    """A row-major matrix in the arena: the address of its first element and the bytes from row to row.

    `thread_stride` is the distance in bytes between the copies that the threads have of a single row; 0 if
    all threads share the matrix.
    """

    name: str
    address: int
    stride: int
    thread_stride: int = 0

    def floats(self, n_rows: int) -> np.ndarray:
        """View of the first rows as float32 [n_rows, padded width]; of a region with a copy for each thread,
        thread 0's row (n_rows = 1)."""
        width = (self.stride or self.thread_stride) // 4
        memory = (ctypes.c_float * (n_rows * width)).from_address(self.address)
        return np.ctypeslib.as_array(memory).reshape(n_rows, width)

    def fields(self, name: str) -> dict[str, int]:
        """The fields of an argument record that describe this region as its matrix `name`."""
        return {
            name: self.address,
            f"{name}_stride": self.stride,
            f"{name}_thread_stride": self.thread_stride,
        }


class Arena:
    """Allocates named buffers and constants for kernels, zeroed and aligned to 64 bytes.

    Pages that are never touched take no physical memory. Everything lives as long as the arena. A matrix
    whose name is in `given`, float32 [rows, width], has that memory.
    """

    def __init__(self, n_threads: int, given: Mapping[str, np.ndarray] | None = None) -> None:
        self.n_threads = n_threads
        self._given = given or {}
        self._keep: list[np.ndarray] = []
        self._room = np.zeros(0, np.uint8)  # for small buffers
        self._regions: dict[str, Region] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._vectors: dict[int, tuple[np.ndarray, int]] = {}  # by the identity of the values

    def rows(self, name: str, n_rows: int, row_bytes: int) -> Region:
        """The matrix called `name`, shared by all threads; allocated at the first request."""
        if name not in self._regions:
            memory = self._given.get(name)
            if memory is None:
                memory = self._zeros(n_rows * (-(-row_bytes // 64) * 64)).view(np.float32).reshape(n_rows, -1)
            assert len(memory) >= n_rows
            assert memory.strides[0] >= row_bytes
            self._arrays[name] = memory
            self._regions[name] = Region(name, memory.ctypes.data, memory.strides[0])
        return self._regions[name]

    def per_thread(self, name: str, row_bytes: int) -> Region:
        """One row for each thread. The rows share no cache line, since the threads write them at once."""
        name = f"{name} of each thread"
        if name not in self._regions:
            stride = -(-row_bytes // 128) * 128 + 128
            memory = self._zeros(self.n_threads * stride)
            self._regions[name] = Region(name, memory.ctypes.data, 0, stride)
        return self._regions[name]

    def floats(self, name: str) -> np.ndarray:
        """A shared matrix as float32 [rows, padded width]."""
        return self._arrays[name]

    def vector(self, values: np.ndarray) -> int:
        """The address of a constant float32 vector, padded with zeros to a multiple of 16 elements.

        The copy is made once, however many instructions read it.
        """
        if id(values) not in self._vectors:
            memory = self._zeros(-(-values.size // 16) * 64).view(np.float32)
            memory[: values.size] = values
            self._vectors[id(values)] = values, memory.ctypes.data
        return self._vectors[id(values)][1]

    def table(self, tensor: QTensor) -> tuple[int, int]:
        """Address and row stride in bytes of a tensor dequantised to float32, as `matrix` pads it."""
        return self.matrix(tensor.dequantize())

    def matrix(self, values: np.ndarray) -> tuple[int, int]:
        """Address and row stride in bytes of a constant float32 [rows, width] matrix, each row padded with
        zeros to a multiple of 16 elements."""
        rows, width = values.shape
        stride = -(-width // 16) * 64
        memory = self._zeros(rows * stride).view(np.float32).reshape(rows, -1)
        memory[:, :width] = values
        return memory.ctypes.data, stride

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Keep an array alive that an instruction points into."""
        self._keep.append(array)
        return array

    def _zeros(self, n_bytes: int) -> np.ndarray:
        """uint8 [n_bytes] of zeros, aligned to 64 bytes."""
        if n_bytes < SHARED_BYTES:
            size = -(-n_bytes // 64) * 64 + 64
            if size > len(self._room):
                self._room = self._own_zeros(ROOM_BYTES, HUGE_PAGE)
            memory, self._room = self._room[:n_bytes], self._room[size:]
            return memory
        return self._own_zeros(n_bytes, 64)

    def _own_zeros(self, n_bytes: int, alignment: int) -> np.ndarray:
        """The same in an allocation of its own."""
        # The operating system hands out zeroed pages when they are first touched.
        raw = self.keep(np.zeros(n_bytes + alignment, np.uint8))
        start = -raw.ctypes.data % alignment
        return raw[start : start + n_bytes]
