"""Running a batch: rows are read ahead, asked many at a time, and written as their answers come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .ahead import AHEAD, RowsAhead
from .journal import RowSet
from .lines import Lines, Outcome, sort_key
from .output import Output
from .requests import Asking, Request
from .rows import BadRow, Row

RETRY_SECONDS = 1.0  # before the second attempt; twice as long before each further one

Execute = Callable[[Request], Awaitable[Outcome]]


@dataclass
class Progress:
    """How far a run is. `done` counts rows of earlier runs too; `tokens` are those written in this run,
    `cached` the answers among them that were kept from earlier requests, `escalated` those that the large
    one of two models gave."""

    done: int = 0
    failed: int = 0
    tokens: int = 0
    cached: int = 0
    escalated: int = 0


@dataclass
class Batch:
    """One run over the rows of an input.

    - `width`: requests that are asked at a time. `retries`: how often a row is asked again after an error
      that may pass; a wrong request is not.
    - `ordered`: answers are written in the order of the rows, instead of as they come.
    - `report`: is told of the progress after each row.
    """

    rows: RowsAhead
    asking: Asking
    execute: Execute
    lines: Lines
    output: Output
    width: int
    retries: int = 2
    ordered: bool = False
    report: Callable[[Progress], None] = lambda progress: None
    known: RowSet = field(default_factory=RowSet)  # rows that earlier runs have done
    progress: Progress = field(default_factory=Progress)
    _ids: set[int] = field(default_factory=set)  # hashes of the custom_ids so far
    _waiting: list[Request] = field(default_factory=list)
    _held: dict[int, tuple[bytes, bool]] = field(default_factory=dict)  # lines that wait for earlier rows
    _open: list[int] = field(default_factory=list)  # rows that are read and not written, in order

    async def run(self) -> None:
        """Ask and write all rows. Raises OSError if the output cannot be written, and BatchError for an input
        that is damaged; what is written then can be resumed."""
        running: dict[asyncio.Task[Outcome], Request] = {}
        try:
            while True:
                self._read_ahead()
                while self._waiting and len(running) < self.width:
                    request = self._waiting.pop()
                    running[asyncio.ensure_future(self._ask(request))] = request
                if not running:
                    if (row := await self.rows.wait()) is None:
                        break
                    self._begin(row)
                    continue
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._finish(running.pop(task), task.result())
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.gather(*running, return_exceptions=True)
            self.rows.stop()
            self.output.sync()

    def _read_ahead(self) -> None:
        """Take the rows that are there, unless the oldest that is not written is far behind."""
        if len(self._waiting) > AHEAD // 2 or len(self._open) > 4 * max(AHEAD, self.width):
            return
        while len(self._waiting) < AHEAD and (row := self.rows.take()) is not None:
            self._begin(row)
        # Taken from the end. Where the order counts, what is asked first is what can be written first.
        key = (lambda request: request.row.number) if self.ordered else sort_key
        self._waiting.sort(key=key, reverse=True)

    def _begin(self, row: Row) -> None:
        known = row.number in self.known
        try:
            request = self.asking.request(row)
            if request.custom_id is not None:
                name = hash(request.custom_id)
                if name in self._ids:
                    raise BadRow(f"has the custom_id {request.custom_id!r:.80} of an earlier row")
                self._ids.add(name)
        except BadRow as problem:
            if not known:
                self._open.append(row.number)
                self._write(row.number, self.lines.failure(row, str(problem)), failed=True)
            return
        if not known:
            self._open.append(row.number)
            self._waiting.append(request)

    async def _ask(self, request: Request) -> Outcome:
        seconds = RETRY_SECONDS
        for _ in range(self.retries):
            outcome = await self.execute(request)
            if outcome.status < 500 and outcome.status != 429:
                return outcome
            await asyncio.sleep(seconds)
            seconds *= 2
        return await self.execute(request)

    def _finish(self, request: Request, outcome: Outcome) -> None:
        row = request.row
        if outcome.status == 200:
            try:
                line, failed = self.lines.line(outcome), False
            except BadRow as problem:
                line, failed = self.lines.failure(row, str(problem), request), True
        else:
            line, failed = self.lines.failure(row, _message(outcome.body), request, outcome.status), True
        self.progress.tokens += outcome.n_tokens
        self.progress.cached += outcome.n_cached
        self.progress.escalated += bool(outcome.routing and outcome.routing["escalated"])
        self._write(row.number, line, failed)

    def _write(self, number: int, line: bytes, failed: bool) -> None:
        """Write a row's line, or keep it until all rows before it are written."""
        self.progress.done += 1
        self.progress.failed += failed
        if not self.ordered:
            self._open.remove(number)
            self.output.push(number, line, failed)
        else:
            self._held[number] = (line, failed)
            n = 0
            while n < len(self._open) and self._open[n] in self._held:
                self.output.push(self._open[n], *self._held.pop(self._open[n]))
                n += 1
            del self._open[:n]
        self.report(self.progress)


def _message(body: dict[str, Any]) -> str:
    error = body.get("error")
    return str(error.get("message")) if isinstance(error, dict) else str(error)
