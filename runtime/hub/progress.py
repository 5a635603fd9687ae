"""What a download reports while it runs. The caller decides whether and how that is shown."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self


class DownloadProgress(Protocol):
    """One download: entered when it begins, left when it ends, also when an error ends it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def at(self, done: int) -> None:
        """`done` bytes of the download are on disk by now."""
        ...


# Makes the DownloadProgress of one download from its label and its size in bytes (None: unknown).
ProgressFactory = Callable[[str, int | None], DownloadProgress]


class NoProgress:
    """A DownloadProgress that reports nothing."""

    def __init__(self, label: str, n_bytes: int | None) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def at(self, done: int) -> None:
        pass


class CallbackProgress(NoProgress):
    """A DownloadProgress that calls `callback` with a stage ("downloading smollm2"), the bytes done and the
    bytes in all (0: unknown), as `kukri.load`'s `progress` is called."""

    def __init__(self, callback: Callable[[str, int, int], None], label: str, n_bytes: int | None) -> None:
        self._callback = callback
        self._stage = f"downloading {label}"
        self._n_bytes = n_bytes or 0

    def __enter__(self) -> Self:
        self.at(0)
        return self

    def at(self, done: int) -> None:
        self._callback(self._stage, done, self._n_bytes)
