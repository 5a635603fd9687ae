"""Weights on the card: packed by all threads while they are copied, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from ....quant.block import QTensor
from ..driver.device import Device
from .packing import BLOCK, TILE, pack, packed_bytes, tile_bytes

PART_BYTES = 16 << 20  # of a matrix packed at once
_PARTS_AHEAD = 8

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Matrix:
    """A weight and where it lies on the card."""

    weight: QTensor
    address: int

    @property
    def n_out(self) -> int:
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        return self.weight.shape[1]

    @property
    def tile_bytes(self) -> int:
        """From 16 rows to the next, from row to row of floats."""
        return tile_bytes(self.weight)

    @property
    def blocks(self) -> int:
        """Blocks of 32 of a row."""
        return self.width // BLOCK

    @property
    def float_kind(self) -> int:
        """FLOAT, as kernels have it."""
        return {"F32": 32, "F16": 16, "BF16": 0}[self.weight.format.name]


def upload_weights(
    device: Device,
    groups: Iterable[tuple[QTensor, ...]],
    threads: int,
    release: Callable[[QTensor], None] | None = None,
    progress: Progress | None = None,
) -> dict[int, Matrix]:
    """Matrices by the identity of their tensors; those of a group lie one behind the other."""
    groups = list(groups)
    total = sum(packed_bytes(w) for group in groups for w in group)
    matrices: dict[int, Matrix] = {}
    jobs: list[tuple[QTensor, int, int, int]] = []  # tensor, first row, rows, address
    for group in groups:
        address = device.allocate(sum(packed_bytes(w) for w in group))
        for w in group:
            matrices[id(w)] = Matrix(w, address)
            together = 1 if w.format.is_float else TILE
            rows = max(1, PART_BYTES // tile_bytes(w)) * together
            for first in range(0, w.shape[0], rows):
                n = min(rows, w.shape[0] - first)
                jobs.append((w, first, n, address + first // together * tile_bytes(w)))
            address += packed_bytes(w)
    done = 0
    with ThreadPoolExecutor(threads) as pool:
        waiting: list[tuple[Future[np.ndarray], tuple[QTensor, int, int, int]]] = []
        rest = iter(jobs)
        for job in rest:
            waiting.append((pool.submit(_pack, *job[:3]), job))
            if len(waiting) == _PARTS_AHEAD + threads:
                break
        while waiting:
            future, (w, first, n, address) = waiting.pop(0)
            array = future.result()
            if (following := next(rest, None)) is not None:
                waiting.append((pool.submit(_pack, *following[:3]), following))
            device.upload(address, array)
            device.wait()
            if release is not None:
                release(replace(w, shape=(n, w.shape[1]), data=w.data[first : first + n]))
            done += array.nbytes
            if progress is not None:
                progress("copying weights to the card", done, total)
    return matrices


def _pack(weight: QTensor, first: int, n_rows: int) -> np.ndarray:
    tiles = n_rows if weight.format.is_float else -(-n_rows // TILE)
    out = np.zeros((tiles, tile_bytes(weight)), np.uint8)
    pack(weight, first, out)
    return out
