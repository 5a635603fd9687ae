"""How far the scoring of a model is. Always on stderr."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import terminal
from .progress import LINE_SECONDS

if TYPE_CHECKING:
    from ..runtime.evaluate import Evaluation


class Scoring:
    """A line on a terminal that says how far model `name` is and leaves no trace; elsewhere a line now and
    then."""

    def __init__(self, name: str, n_windows: int) -> None:
        self._name = name
        self._n_windows = n_windows
        self._shown = terminal.takes_escapes(sys.stderr)
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Self:
        self._show(f"window 1 of {self._n_windows}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            terminal.tell("\r\x1b[2K")

    def at(self, done: int, so_far: Evaluation) -> None:
        """Report that `done` windows are scored; for `evaluate`."""
        now = time.monotonic()
        if not self._shown and (now - self._last < LINE_SECONDS or done == self._n_windows):
            return
        self._last = now
        left = (now - self._start) / done * (self._n_windows - done)
        what = f"window {done} of {self._n_windows}, perplexity {so_far.perplexity().value:.4f}"
        if so_far.kld is not None:
            what += f", KLD {so_far.divergence().kld.value:.6f}"
        self._show(f"{what}, {left:.0f} s left")

    def _show(self, what: str) -> None:
        line = terminal.one_line(f"{self._name}: {what}")
        if self._shown:
            line = line[: shutil.get_terminal_size().columns - 1]
            terminal.tell("\r\x1b[2K" + terminal.paint(line, "2", sys.stderr))
        elif self._last > self._start:
            terminal.note(line)
