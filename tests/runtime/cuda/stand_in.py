"""A stand-in for the GPU: its memory is the host's, and the simulator runs the launches."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from kukri.runtime.cuda.compile.kernel import CudaKernel
from kukri.runtime.cuda.compile.stage import parameter_types
from kukri.runtime.cuda.driver.launch import Launch

from .simulator import run


class StandInEvent:
    recorded = False

    def record(self) -> None:
        self.recorded = True


class StandInDevice:
    """The interface of `driver.device.Device`. Memory is filled with NaN until it is cleared or written."""

    capability = (9, 0)
    multiprocessors = 4
    warpgroups = True
    name = "simulator"

    def __init__(self) -> None:
        self.kernels: list[CudaKernel] = []
        self.launched: list[str] = []
        self.copies: list[tuple[StandInDevice, int]] = []  # from other devices
        self._memory: list[np.ndarray] = []

    def use(self) -> None: ...

    def wait(self) -> None: ...

    def close(self) -> None: ...

    def allocate(self, n_bytes: int) -> int:
        raw = np.full(n_bytes + 256, 0xFF, np.uint8)
        self._memory.append(raw)
        return -(-raw.ctypes.data // 256) * 256

    def pinned(self, n_bytes: int) -> np.ndarray:
        return np.zeros(n_bytes, np.uint8)

    def upload(self, address: int, source: np.ndarray) -> None:
        self._at(address, source.nbytes)[:] = source.reshape(-1).view(np.uint8)

    def download(self, out: np.ndarray, address: int) -> None:
        out.reshape(-1).view(np.uint8)[:] = self._at(address, out.nbytes)

    def copy(self, address: int, source: int, n_bytes: int) -> None:
        self._at(address, n_bytes)[:] = self._at(source, n_bytes)

    def copy_from(self, other: StandInDevice, address: int, source: int, n_bytes: int) -> None:
        self.copies.append((other, n_bytes))
        self.copy(address, source, n_bytes)

    def reaches(self, other: StandInDevice) -> bool:
        return True

    def event(self, timed: bool = True) -> StandInEvent:
        return StandInEvent()

    def wait_for(self, event: StandInEvent) -> None:
        assert event.recorded

    def clear(self, address: int, n_bytes: int) -> None:
        self._at(address, n_bytes)[:] = 0

    def launch(self, launch: Launch) -> None:
        kernel = self.kernels[launch.function]
        values: list[Any] = []
        at = 0
        for parameter in parameter_types(kernel.function()):
            kind = "f" if parameter is float else "q"
            at = at if kind == "f" else -(-at // 8) * 8
            values += struct.unpack_from(kind, launch.arguments, at)
            at += struct.calcsize(kind)
        assert at == len(launch.arguments), launch.name
        self.launched.append(kernel.name)
        how = launch.grid, launch.threads, values, launch.shared_bytes, launch.cluster
        run(kernel.function(), kernel.values(), *how)

    @contextmanager
    def capture(self) -> Iterator[list[Launch]]:
        held: list[Any] = []
        self.upload, self.download, self.launch = (  # type: ignore[method-assign]
            lambda *a: held.append((StandInDevice.upload, a)),
            lambda *a: held.append((StandInDevice.download, a)),
            lambda *a: held.append((StandInDevice.launch, a)),
        )
        yield held
        del self.upload, self.download, self.launch

    def run(self, graph: list[Any]) -> None:
        for function, arguments in graph:
            function(self, *arguments)

    @staticmethod
    def _at(address: int, n_bytes: int) -> np.ndarray:
        import ctypes

        return np.frombuffer((ctypes.c_uint8 * n_bytes).from_address(address), np.uint8)


class ThreadedDevice(StandInDevice):
    """One of several devices whose kernels wait for each other: it runs graphs in a thread."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self._stream = ThreadPoolExecutor(1)
        self._running: list[Future[None]] = []

    def run(self, graph: list[Any]) -> None:
        self._running.append(self._stream.submit(super().run, graph))

    def wait(self) -> None:
        for work in self._running:
            work.result(timeout=600)
        self._running.clear()


class StandInKernels:
    """The interface of `compile.kernel.Kernels`."""

    def __init__(self, device: StandInDevice) -> None:
        self.device = device

    def compile_all(self, ask: Any) -> None: ...

    def compile_in_order(self, capacity: str, first: Any, alike: Any, later: Any) -> None: ...

    def complete(self, make: Any) -> Any:
        return make()

    def close(self) -> None: ...

    def function(self, what: CudaKernel, shared_bytes: int = 0) -> int:
        if what not in self.device.kernels:
            self.device.kernels.append(what)
        return self.device.kernels.index(what)
