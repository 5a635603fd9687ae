"""Copies weights to the GPU: several threads pack parts of them while earlier parts are copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from ....quant.block import QTensor
from ..driver.device import Device
from .packing import BLOCK, TILE, pack, packed_bytes, tile_bytes

PART_BYTES = 16 << 20  # of a matrix that one thread packs at once
_PARTS_AHEAD = 8

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Matrix:
    """A weight and the address of its packed copy in GPU memory."""

    weight: QTensor
    address: int

    @property
    def n_out(self) -> int:
        """Rows of the matrix: outputs of the product."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """Columns of the matrix: inputs of the product."""
        return self.weight.shape[1]

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile of 16 rows; of one row for a float matrix."""
        return tile_bytes(self.weight)

    @property
    def blocks(self) -> int:
        """Blocks of 32 weights in a row."""
        return self.width // BLOCK

    @property
    def float_kind(self) -> int:
        """The constant FLOAT of kernels: 32 for float32, 16 for float16, 0 for bfloat16."""
        return {"F32": 32, "F16": 16, "BF16": 0}[self.weight.format.name]


@dataclass(frozen=True)
class _Part:
    """Rows `first` … `first` + `n_rows` - 1 of a weight, which are packed and copied to `address` at once."""

    weight: QTensor
    first: int
    n_rows: int
    address: int

    def pack(self) -> np.ndarray:
        """The rows in the layout of GPU memory: uint8 [tiles, tile_bytes]."""
        tiles = self.n_rows if self.weight.format.is_float else -(-self.n_rows // TILE)
        out = np.zeros((tiles, tile_bytes(self.weight)), np.uint8)
        pack(self.weight, self.first, out)
        return out

    def rows(self) -> QTensor:
        """The rows in the layout of the file."""
        shape = self.n_rows, self.weight.shape[1]
        return replace(self.weight, shape=shape, data=self.weight.data[self.first : self.first + self.n_rows])


def upload_weights(
    device: Device,
    groups: Iterable[tuple[QTensor, ...]],
    threads: int,
    release: Callable[[QTensor], None] | None = None,
    progress: Progress | None = None,
) -> dict[int, Matrix]:
    """Pack weights on `threads` threads and copy them to the GPU; returns matrices by `id` of their tensor.

    The matrices of a group are allocated contiguously, in order. `release` is called with the rows of a
    tensor that are copied, so that their file pages can be dropped; `progress` with a text, bytes copied and
    all bytes. Raises CudaOutOfMemory.
    """
    groups = list(groups)
    total = sum(packed_bytes(w) for group in groups for w in group)
    matrices: dict[int, Matrix] = {}
    parts: list[_Part] = []
    for group in groups:
        address = device.allocate(sum(packed_bytes(w) for w in group))
        for w in group:
            matrices[id(w)] = Matrix(w, address)
            parts += _parts(w, address)
            address += packed_bytes(w)
    done = 0
    for part, packed in _packed_ahead(parts, threads):
        device.upload(part.address, packed)
        device.wait()
        if release is not None:
            release(part.rows())
        done += packed.nbytes
        if progress is not None:
            progress("copying weights to the card", done, total)
    return matrices


def _parts(weight: QTensor, address: int) -> list[_Part]:
    """A weight cut into parts of up to PART_BYTES, or of one tile."""
    rows_per_tile = 1 if weight.format.is_float else TILE
    rows = max(1, PART_BYTES // tile_bytes(weight)) * rows_per_tile
    return [
        _Part(
            weight,
            first,
            min(rows, weight.shape[0] - first),
            address + first // rows_per_tile * tile_bytes(weight),
        )
        for first in range(0, weight.shape[0], rows)
    ]


def _packed_ahead(parts: Sequence[_Part], threads: int) -> Iterator[tuple[_Part, np.ndarray]]:
    """Parts and their packed rows, in order, while threads pack up to _PARTS_AHEAD + `threads` of the
    next.
    """
    with ThreadPoolExecutor(threads) as pool:
        rest = iter(parts)
        waiting = deque((part, pool.submit(part.pack)) for part in islice(rest, _PARTS_AHEAD + threads))
        while waiting:
            part, future = waiting.popleft()
            packed = future.result()
            waiting.extend((following, pool.submit(following.pack)) for following in islice(rest, 1))
            yield part, packed
