"""How far a batch is, on stderr."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ...runtime.batch.job import Job
from ...runtime.batch.runner import Batch, Progress
from ..console import terminal
from ..console.progress import LINE_SECONDS, StatusLine

STEP_SECONDS = 0.2  # between two states of the line
BAR = 24  # characters


class BatchProgress:
    """A line that is overwritten on a terminal, and one every LINE_SECONDS elsewhere.

    `share()` is the part of the input that was read, None for one whose length is not known.
    """

    def __init__(self, share: Callable[[], float | None]) -> None:
        self._share = share
        self._line = StatusLine()
        self._start = self._last = time.monotonic()
        self._first_share: float | None = None

    def at(self, progress: Progress) -> None:
        """A row was written."""
        now = time.monotonic()
        if now - self._last < (STEP_SECONDS if self._line.shown else LINE_SECONDS):
            return
        self._last = now
        text = self.text(progress, now - self._start)
        if self._line.shown:
            self._line.show(text)
        else:
            terminal.note(text)

    def text(self, progress: Progress, seconds: float) -> str:
        """The state in words, `seconds` after the start."""
        share = self._share()
        parts = [f"{progress.done} rows"]
        if progress.failed:
            parts.append(f"{progress.failed} failed")
        parts.append(f"{progress.tokens / max(seconds, 1e-9):.0f} tokens/s")
        if share is None:
            return "batch: " + ", ".join(parts)
        if self._first_share is None:
            self._first_share = share
        since = share - self._first_share
        if since > 0:
            parts.append(f"{human_seconds(seconds * (1 - share) / since)} left")
        filled = min(BAR, int(BAR * share))
        return f"batch {'━' * filled}{'─' * (BAR - filled)} {100 * share:.0f} %, {', '.join(parts)}"

    def erase(self) -> None:
        """Leave no trace on a terminal."""
        self._line.erase()


def run_batch(batch: Batch, job: Job) -> None:
    """Run a batch to its end, with its progress on stderr. What cuts it off is raised; the job can go on."""

    def share() -> float | None:
        return job.position() / job.n_bytes if job.n_bytes else None

    if len(job.known):
        terminal.remark(f"{len(job.known)} rows are done already")
    shown = BatchProgress(share)
    batch.report = shown.at
    start = time.monotonic()
    try:
        asyncio.run(batch.run())
    except BaseException:
        shown.erase()
        job.leave()
        if job.journal is not None:
            terminal.remark(f"({len(job.known)} rows are done; the same command goes on)")
        raise
    shown.erase()
    job.complete()
    seconds, progress = max(time.monotonic() - start, 1e-9), batch.progress
    parts = [f"{progress.done} rows in {human_seconds(seconds)}", f"{progress.tokens / seconds:.0f} tokens/s"]
    if progress.escalated:
        parts.append(f"{progress.escalated} answered by the large model")
    if progress.cached:
        parts.append(f"{progress.cached} from the cache of answers")
    if progress.failed:
        parts.append(f"{progress.failed} failed" + (f", see {job.errors.name}" if job.errors else ""))
    terminal.remark(", ".join(parts))


def human_seconds(seconds: float) -> str:
    """A duration as people say it: 40 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"
