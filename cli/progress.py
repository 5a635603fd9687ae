"""How far a download is: a bar on a terminal, a line now and then elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from . import terminal

LINE_SECONDS = 10.0  # between two lines of a log


class Progress:
    """Shows bytes done of `total` (None: unknown) under the name `label`."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label = label
        self._total = total
        self._bar: Any = None
        self._task: Any = None
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if terminal.takes_escapes(sys.stderr):
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(self._label, total=self._total)
            self._bar.start()
        else:
            size = "" if self._total is None else f" ({terminal.human_bytes(self._total)})"
            terminal.note(f"downloading {self._label}{size}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def at(self, done: int) -> None:
        """Report `done` bytes."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        elif time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            of = "" if self._total is None else f" of {terminal.human_bytes(self._total)}"
            terminal.note(f"downloading {self._label}: {terminal.human_bytes(done)}{of}")
