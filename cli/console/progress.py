"""Progress of downloads, quantisation and loading, on stderr."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

from ...quant.units import human_bytes
from . import terminal
from .safe_text import one_line

LINE_SECONDS = 10.0  # between two lines of a log
LOADING_SECONDS = 0.05  # between two states of a line
TICK_SECONDS = 1.0  # between two states of a line that counts seconds


class Progress:
    """Shows bytes done of `total` (None: unknown) under the name `label`: a bar on a terminal, elsewhere a
    line every LINE_SECONDS, which begins with `verb`. A `runtime.hub.progress.DownloadProgress`."""

    def __init__(self, label: str, total: int | None, verb: str = "downloading") -> None:
        self._label = one_line(label)
        self._verb = verb
        self._total = total
        self._bar: Any = None
        self._task: Any = None
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if terminal.takes_escapes(sys.stderr):
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=terminal.console(),
                transient=True,
            )
            self._task = self._bar.add_task(self._label, total=self._total)
            self._bar.start()
        else:
            size = "" if self._total is None else f" ({human_bytes(self._total)})"
            terminal.note(f"{self._verb} {self._label}{size}")
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
            of = "" if self._total is None else f" of {human_bytes(self._total)}"
            terminal.note(f"{self._verb} {self._label}: {human_bytes(done)}{of}")


class StatusLine:
    """A line that is overwritten by each `show` and erased at the end; where stderr is no terminal,
    nothing.
    """

    def __init__(self) -> None:
        self.shown = terminal.takes_escapes(sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.erase()

    def erase(self) -> None:
        if self.shown:
            terminal.overwrite("")

    def show(self, text: str) -> None:
        if self.shown:
            from rich.cells import cell_len, set_cell_size

            line, width = one_line(text), shutil.get_terminal_size().columns - 1
            terminal.overwrite(set_cell_size(line, width) if cell_len(line) > width else line)


class Loading(StatusLine):
    """The status line while a model is loaded.

    While kernels are compiled, some of which take much longer than others, it counts the seconds as well, in
    a thread. Where stderr is no terminal, only compiling is reported, since it takes long the first time.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._stage = ""
        self._counted = ""
        self._last = self._since = 0.0
        self._ended = threading.Event()
        self._lock = threading.Lock()  # held while the line is written
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.show(f"loading {self._name} …")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with self._lock:
            self.erase()

    def at(self, stage: str, done: int, total: int) -> None:
        """The `progress` callback of `load_model`: `stage` has done `done` of `total`.

        A model also calls it later, when a step waits for kernels: the line has made way for others then.
        """
        if self._ended.is_set():
            return
        now = time.monotonic()
        if stage == self._stage and now - self._last < LOADING_SECONDS and done < total:
            return
        if stage != self._stage:
            self._since = now
            if stage.startswith("compiling"):
                self._begin_compiling(stage, total)
        with self._lock:
            self._stage, self._last = stage, now
            self._counted = f"{done} of {total}" if total < 10_000 else f"{100 * done // total} %"
            self._show_stage()

    def _begin_compiling(self, stage: str, total: int) -> None:
        if not self.shown:
            terminal.note(f"{stage}: {total}")
        elif self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()

    def _tick(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            with self._lock:
                if not self._ended.is_set() and self._stage.startswith("compiling"):
                    self._show_stage()

    def _show_stage(self) -> None:
        seconds = int(time.monotonic() - self._since)
        took = f", {seconds} s" if seconds and self._stage.startswith("compiling") else ""
        self.show(f"loading {self._name}: {self._stage}, {self._counted}{took} …")
