"""The GPU's memory bandwidth, measured by copying: the upper limit of decoding speed."""

from __future__ import annotations

from types import TracebackType

from .device import Device

MAX_BYTES = 1 << 30
RUNS = 8


class CopyBandwidth:
    """Measures copies between two buffers in GPU memory, in bytes read and written per second.

    The first measurement allocates the buffers: a quarter of the free memory each, at most MAX_BYTES. `close`
    frees them and leaves the device open.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffers: tuple[int, int] | None = None
        self.n_bytes = 0

    def measure(self, runs: int = RUNS) -> float:
        """Bytes per second of the fastest of `runs` copies."""
        device = self._device
        device.use()
        if self._buffers is None:
            self.n_bytes = min(MAX_BYTES, device.memory()[0] // 4 // 256 * 256)
            self._buffers = device.allocate(self.n_bytes), device.allocate(self.n_bytes)
        times = []
        for _ in range(runs + 1):  # the first is a warm-up
            start, end = device.event(), device.event()
            start.record()
            device.copy(*self._buffers, self.n_bytes)
            end.record()
            times.append(end.seconds_since(start))
        return 2 * self.n_bytes / min(times[1:])

    def close(self) -> None:
        """Free the buffers."""
        if self._buffers is not None:
            for address in self._buffers:
                self._device.free(address)
            self._buffers = None

    def __enter__(self) -> CopyBandwidth:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
