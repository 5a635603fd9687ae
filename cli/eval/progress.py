"""Progress of scoring, on stderr."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from ..console import terminal
from ..console.progress import LINE_SECONDS, StatusLine

if TYPE_CHECKING:
    from ...runtime.evaluation.scores import Evaluation


class Scoring(StatusLine):
    """The progress of scoring model `name`: a status line on a terminal, elsewhere a line now and then."""

    def __init__(self, name: str, n_windows: int) -> None:
        super().__init__()
        self._name = name
        self._n_windows = n_windows
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Self:
        self._show(f"window 1 of {self._n_windows}")
        return self

    def at(self, done: int, so_far: Evaluation) -> None:
        """Report that `done` windows are scored; for `evaluate`."""
        now = time.monotonic()
        if not self.shown and (now - self._last < LINE_SECONDS or done == self._n_windows):
            return
        self._last = now
        left = (now - self._start) / done * (self._n_windows - done)
        what = f"window {done} of {self._n_windows}, perplexity {so_far.perplexity().value:.4f}"
        if so_far.kld is not None:
            what += f", KLD {so_far.divergence().kld.value:.6f}"
        self._show(f"{what}, {left:.0f} s left")

    def _show(self, what: str) -> None:
        text = f"{self._name}: {what}"
        self.show(text)
        if not self.shown and self._last > self._start:
            terminal.note(text)
