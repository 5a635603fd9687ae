"""Recurrent states that lie on the card."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.state import SequenceStates
from ..ops.recurrent import StateLayer
from .compile.arguments import Region
from .driver.device import Device


class CardStates(SequenceStates):
    """As SequenceStates; `regions` has the card's memory of each layer, a row a sequence.

    Kernels begin from zeros at position 0, so nothing is cleared here.
    """

    def __init__(
        self, layers: Sequence[StateLayer], max_sequences: int, device: Device, regions: Sequence[Region]
    ) -> None:
        super().__init__(layers, max_sequences, held=False)
        self._device = device
        self._regions = tuple(regions)

    def clear(self, sequence: int) -> None:
        """Kernels do that."""

    def read(self, sequence: int) -> tuple[np.ndarray, ...]:
        self._device.use()
        found = tuple(np.empty(layer.shape, np.float32) for layer in self.layers)
        for array, region in zip(found, self._regions, strict=True):
            self._device.download(array, region.address + sequence * region.stride)
        self._device.wait()
        return found

    def write(self, sequence: int, arrays: Sequence[np.ndarray]) -> None:
        self._device.use()
        for array, region in zip(arrays, self._regions, strict=True):
            self._device.upload(region.address + sequence * region.stride, array)
        self._device.wait()
