"""How fast a card copies within its memory: the limit that decoding runs against."""

from __future__ import annotations

from types import TracebackType

from .device import Device

MOST_BYTES = 1 << 30
RUNS = 8


class CopyBandwidth:
    """Measures copies between two pieces of the card's memory, in bytes read and written a second.

    The pieces are made when it is first asked, of what is free. The card is not closed with it.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pieces: tuple[int, int] | None = None
        self.n_bytes = 0

    def measure(self, runs: int = RUNS) -> float:
        """The best of `runs`."""
        device = self._device
        device.use()
        if self._pieces is None:
            self.n_bytes = min(MOST_BYTES, device.memory()[0] // 4 // 256 * 256)
            self._pieces = device.allocate(self.n_bytes), device.allocate(self.n_bytes)
        times = []
        for _ in range(runs + 1):  # the first warms up
            start, end = device.event(), device.event()
            start.record()
            device.copy(*self._pieces, self.n_bytes)
            end.record()
            times.append(end.seconds_since(start))
        return 2 * self.n_bytes / min(times[1:])

    def close(self) -> None:
        """Give the pieces back."""
        if self._pieces is not None:
            for address in self._pieces:
                self._device.free(address)
            self._pieces = None

    def __enter__(self) -> CopyBandwidth:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
