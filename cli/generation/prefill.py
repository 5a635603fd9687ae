"""How far the prefill of a long prompt is, on stderr."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..console.progress import StatusLine

if TYPE_CHECKING:
    from ...runtime.engine.stats import GenerationStats

FIRST_SECONDS = 1.0  # shorter prefills are not worth a line
STEP_SECONDS = 0.25  # between two states of the line
BAR = 24  # characters


class PrefillProgress:
    """A status line on a terminal while a prompt is read, from FIRST_SECONDS on until `stop`.

    `stats()` are the statistics of the latest generation, which is the awaited one as soon as they are others
    than at the start. A thread looks at them, so that a generation costs no more with this than without.
    Prefill reports whole chunks; in between the line goes on at the speed that was measured so far.
    """

    def __init__(self, stats: Callable[[], GenerationStats]) -> None:
        self._stats = stats
        self._line = StatusLine()
        self._lock = threading.Lock()  # held while the line is written
        self._ended = threading.Event()
        self._is_shown = False
        self._thread = threading.Thread(target=self._run, args=(stats(),), daemon=True)

    def __enter__(self) -> Self:
        if self._line.shown:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Erase the line, and write no more."""
        if self._ended.is_set():
            return
        self._ended.set()
        with self._lock:
            if self._is_shown:
                self._line.erase()

    def _run(self, earlier: GenerationStats) -> None:
        start = changed = time.monotonic()
        wait, done, chunk, shown = FIRST_SECONDS, 0, 0, 0.0
        while not self._ended.wait(wait):
            wait = STEP_SECONDS
            stats, now = self._stats(), time.monotonic()
            if stats is earlier:
                continue
            if stats.time_to_first_token:  # prefill is over
                self.stop()
                return
            if stats.prefilled_tokens != done:
                chunk, done, changed = stats.prefilled_tokens - done, stats.prefilled_tokens, now
            speed = done / (changed - start) if done else 0.0
            # What was foreseen may have been too much: the line waits then, and does not go back.
            shown = max(shown, done + min(speed * (now - changed), chunk))
            ahead = shown - done
            with self._lock:
                if not self._ended.is_set():
                    self._is_shown = True
                    self._line.show(state(stats, ahead, speed, now - start))


def state(stats: GenerationStats, ahead: float, speed: float, seconds: float) -> str:
    """The text of the line. `ahead`: tokens of the current chunk that are most likely done; `speed`: tokens a
    second, 0 before the first chunk is done; `seconds`: since the start."""
    total = stats.prompt_tokens
    done = min(total, round(stats.cached_tokens + stats.prefilled_tokens + ahead))
    filled = BAR * done // max(1, total)
    bar = "━" * filled + "─" * (BAR - filled)
    more = f"{speed:.0f} tokens/s, {(total - done) / speed:.0f} s left" if speed else f"{seconds:.0f} s"
    return f"reading the prompt {bar} {done} of {total} tokens, {more}"
