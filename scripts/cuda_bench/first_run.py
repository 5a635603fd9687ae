"""The kernels that a first run waits for, without a card: listed by when they are needed, and compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from kukri.runtime.cuda.compile.kernel import CudaKernel
from kukri.runtime.cuda.driver.launch import Launch
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.weights import upload


class PlannedCard:
    """The interface of `driver.device.Device` as far as launches are planned: an H200 that nothing is copied
    to. Its addresses are those of no memory."""

    capability = (9, 0)
    multiprocessors = 132
    warpgroups = True
    shared_bytes = 227 << 10
    name = "planned H200"
    index = 0

    def __init__(self) -> None:
        self._next = 1 << 40

    def use(self) -> None: ...

    def wait(self) -> None: ...

    def close(self) -> None: ...

    def allocate(self, n_bytes: int) -> int:
        address = self._next
        self._next += -(-n_bytes // 256) * 256
        return address

    def pinned(self, n_bytes: int) -> np.ndarray:
        return np.zeros(n_bytes, np.uint8)

    def upload(self, address: int, source: np.ndarray) -> None: ...

    def clear(self, address: int, n_bytes: int) -> None: ...


class ListedKernels:
    """The interface of `Kernels`: notes what is asked for."""

    def __init__(self, device: PlannedCard) -> None:
        self.device = device
        self.wanted: dict[CudaKernel[Any], None] = {}

    def compile_all(self, ask: Callable[[], object]) -> None:
        ask()

    def function(self, what: CudaKernel[Any], shared_bytes: int = 0) -> int:
        self.wanted[what] = None
        return 1
