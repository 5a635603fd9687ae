"""What the parts of a split program hand on through the host: float32 rows in pinned memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import ops
from .abi.arguments import Region
from .copies import copy_rows
from .driver.device import Device
from .lowering.program import Lowering
from .step import StepShape


class Boundary:
    """The rows of a program's `boundary_in`, which the part in front has left, and of its `boundary_out`,
    which the part behind reads."""

    def __init__(self, program: ops.Program, max_rows: int, device: Device, lowering: Lowering) -> None:
        self._device, self._lowering = device, lowering
        self._buffers_in, self._buffers_out = program.boundary_in, program.boundary_out
        self._rows_in = [_pinned(device, max_rows, buffer.width) for buffer in self._buffers_in]
        self._rows_out = [_pinned(device, max_rows, buffer.width) for buffer in self._buffers_out]

    def write(self, values: Sequence[np.ndarray]) -> None:
        """Set the contents of the `boundary_in` buffers for the next step, float32 [rows, width]."""
        for rows, boundary_in in zip(values, self._rows_in, strict=True):
            boundary_in[: len(rows)] = rows

    def read(self, n_rows: int) -> list[np.ndarray]:
        """The first `n_rows` rows that `fetch` has brought of each `boundary_out` buffer."""
        return [rows[:n_rows] for rows in self._rows_out]

    def send(self, n_rows: int) -> None:
        """Enqueue copies of what the part before has left."""
        for buffer, rows in zip(self._buffers_in, self._rows_in, strict=True):
            copy_rows(self._device.upload, self._lowering.region(buffer), rows[:n_rows])

    def fetch(self, regions: Sequence[Region], shape: StepShape) -> None:
        """Enqueue copies of what the part behind reads, which a step of that shape leaves at `regions`."""
        left = zip(self._buffers_out, self._rows_out, regions, strict=True)
        for buffer, rows, region in left:
            n = shape.n_logits if buffer.logits_rows else shape.n_rows
            copy_rows(lambda address, rows: self._device.download(rows, address), region, rows[:n])


def _pinned(device: Device, n_rows: int, width: int) -> np.ndarray:
    return device.pinned(4 * n_rows * width).view(np.float32).reshape(n_rows, width)
