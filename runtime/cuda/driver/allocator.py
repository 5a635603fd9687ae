"""Named allocations in the GPU's memory, whose addresses kernels take as arguments."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..abi.arguments import Region
from .device import Device

# Bytes behind an array that may be read: the compiler moves loads of constants, such as biases, out of loops
# and in front of the condition that the index is inside.
READ_AHEAD = 4096


class Memory:
    """Allocates named regions of GPU memory at their first use, filled with zeros.

    `n_bytes` is the size of all allocations. The memory is freed when the device is closed.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._regions: dict[str, Region] = {}
        self._vectors: dict[tuple[int, ...], tuple[tuple[np.ndarray, ...], int]] = {}
        self.n_bytes = 0

    def rows(self, name: str, n_rows: int, row_bytes: int) -> Region:
        """The matrix called `name`; every row begins at a multiple of 16 bytes."""
        if name not in self._regions:
            stride = -(-row_bytes // 16) * 16
            self._regions[name] = Region(self.zeros(n_rows * stride), stride)
        return self._regions[name]

    def slices(self, names: Iterable[str], n_rows: int, row_bytes: Iterable[int]) -> None:
        """Allocate one matrix whose columns are divided among the matrices called `names`, in this order."""
        names, sizes = list(names), list(row_bytes)
        whole = self.rows(" | ".join(names), n_rows, sum(sizes))
        for name, start in zip(names, np.cumsum([0, *sizes[:-1]]), strict=True):
            self._regions[name] = whole.columns(int(start))

    def vector(self, *values: np.ndarray) -> int:
        """The address of arrays concatenated as float32. The same arrays are uploaded only once."""
        key = tuple(id(v) for v in values)
        if key not in self._vectors:
            array = np.concatenate([np.asarray(v, np.float32).reshape(-1) for v in values])
            self._vectors[key] = values, self.array(array)
        return self._vectors[key][1]

    def array(self, values: np.ndarray) -> int:
        """Upload an array to memory of its own, with READ_AHEAD bytes behind it; returns the address."""
        values = np.ascontiguousarray(values)
        address = self.zeros(values.nbytes + READ_AHEAD)
        self._device.upload(address, values)
        self._device.wait()
        return address

    def zeros(self, n_bytes: int) -> int:
        """Allocate zeroed memory, rounded up to 256 bytes; returns the address."""
        size = -(-max(1, n_bytes) // 256) * 256
        address = self._device.allocate(size)
        self._device.clear(address, size)
        self.n_bytes += size
        return address
