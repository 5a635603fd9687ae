"""Recurrent states in GPU memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.state import SequenceStates
from ..ops import StateLayer
from .abi.arguments import Region
from .driver.device import Device


class DeviceStates(SequenceStates):
    """SequenceStates in GPU memory: `regions` has one matrix for each layer, with one row for each sequence.

    Kernels start from a state of zeros at position 0, so `clear` has nothing to do.
    """

    def __init__(
        self, layers: Sequence[StateLayer], max_sequences: int, device: Device, regions: Sequence[Region]
    ) -> None:
        super().__init__(layers, max_sequences, allocate=False)
        self._device = device
        self._regions = tuple(regions)

    def clear(self, sequence: int) -> None:
        """Do nothing: kernels ignore the state at position 0."""

    def read(self, sequence: int) -> tuple[np.ndarray, ...]:
        """Copies of a sequence's states, one float32 array for each layer."""
        self._device.use()
        states = tuple(np.empty(layer.shape, np.float32) for layer in self.layers)
        for array, region in zip(states, self._regions, strict=True):
            self._device.download(array, region.address + sequence * region.stride)
        self._device.wait()
        return states

    def write(self, sequence: int, arrays: Sequence[np.ndarray]) -> None:
        """Replace a sequence's states by what `read` returned."""
        self._device.use()
        for array, region in zip(arrays, self._regions, strict=True):
            self._device.upload(region.address + sequence * region.stride, array)
        self._device.wait()
