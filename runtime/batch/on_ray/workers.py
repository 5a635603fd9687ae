"""Rows handed out to workers, and done again elsewhere when a worker is lost. Nothing here knows Ray."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .... import KukriError
from ..lines import Outcome
from ..requests import Request
from ..rows import BatchError
from .worker import Asked, Done, Order, Report

WATCH_SECONDS = 2.0  # between two looks for machines that have come
RESTART_SECONDS = 1.0  # before a lost worker's place gets another one
PATIENCE_SECONDS = 120.0  # without any worker, after which the run gives up
MOST_FAILED_LOADS = 3  # of a place, in a row
LOSSES = 3  # after which a row is answered by itself, so that it can take no others with it
LOST_ALONE = 2  # after which a row is what ends its workers


class WorkerLost(KukriError):
    """A worker's process, or its machine, is gone."""


class Handle(Protocol):
    """A worker from afar. All but `stop` raise WorkerLost."""

    async def load(self, order: Order) -> Report: ...
    async def exchange(self, asked: Sequence[Asked]) -> list[Done]: ...
    def stop(self) -> None: ...


class Place(Protocol):
    """Where a worker can be: a machine, or a card of one. `key` tells it from others, `name` tells people."""

    @property
    def key(self) -> Hashable: ...
    @property
    def name(self) -> str: ...
    def start(self) -> Handle: ...


@dataclass(eq=False)
class _Item:
    """A request on its way, and how often its worker was lost: among others, and with nothing beside it."""

    request: Request
    future: asyncio.Future[Outcome]
    losses: int = 0
    lost_alone: int = 0

    @property
    def is_suspect(self) -> bool:
        return self.losses >= LOSSES

    def settle(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


@dataclass
class Workers:
    """Answers requests with a worker at every place that there is, also at those that come later.

    Each worker has up to `depth` requests: `width` that are being answered, and some that wait so that none
    of its sequences has to. What a lost worker had is handed to others. A row that ended its workers
    while it was alone with them fails.

    - `places`: gives those that are there now.
    - `remark`: is told, in a line, of workers that are lost, and of machines that take no part.
    - `resized`: is told how many requests should be on their way; it grows and shrinks with the cluster.
    """

    places: Callable[[], Sequence[Place]]
    order: Order
    width: int
    remark: Callable[[str], None] = lambda line: None
    resized: Callable[[int], None] = lambda n: None
    patience: float = PATIENCE_SECONDS
    _open: set[_Item] = field(default_factory=set)
    _waiting: deque[_Item] = field(default_factory=deque)
    _suspects: deque[_Item] = field(default_factory=deque)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: dict[Hashable, asyncio.Task[None]] = field(default_factory=dict)
    _refused: dict[Hashable, str] = field(default_factory=dict)
    _watching: asyncio.Task[None] | None = None
    _failure: BaseException | None = None

    @property
    def depth(self) -> int:
        return self.width + max(1, self.width // 2)

    async def __call__(self, request: Request) -> Outcome:
        """What a worker answers. Raises BatchError when there is none, and none comes."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
            self._watching.add_done_callback(self._ended)
        if self._failure is not None:
            raise self._failure
        item = _Item(request, asyncio.get_running_loop().create_future())
        self._open.add(item)
        self._waiting.append(item)
        self._changed.set()
        try:
            return await item.future
        finally:
            self._open.discard(item)

    async def _watch(self) -> None:
        """Have a worker at every place, until there is none for too long."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            there = {place.key: place for place in await asyncio.to_thread(self.places)}
            new = there.keys() - self._serving.keys() - self._refused.keys()
            for key in new:
                self._serving[key] = asyncio.create_task(self._serve(there[key]))
                self._serving[key].add_done_callback(self._ended)
            if new:
                self._resize()
            if self._serving:
                last = loop.time()
            elif there and not there.keys() - self._refused.keys():
                reasons = "; ".join(f"{there[key].name}: {self._refused[key]}" for key in there)
                raise BatchError(f"no machine of the cluster takes part: {reasons}")
            elif loop.time() - last > self.patience:
                raise BatchError(f"the cluster has had no machine for {self.patience:.0f} s")
            await asyncio.sleep(WATCH_SECONDS)

    def _resize(self) -> None:
        self.resized(max(1, len(self._serving)) * 2 * self.depth)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task of this object has ended: an error of it is one of the whole run."""
        if task.cancelled() or (problem := task.exception()) is None:
            return
        self._failure = problem
        for item in self._open:
            if not item.future.done():
                item.future.set_exception(problem)

    async def _serve(self, place: Place) -> None:
        """Keep a worker at a place while the place is there."""
        failed, reason = 0, ""
        try:
            while True:
                worker, running = place.start(), dict[int, _Item]()
                try:
                    report = await worker.load(self.order)
                    if report.refused:
                        self._refuse(place, report.refused)
                        return
                    failed = 0
                    for note in report.notes:
                        self.remark(f"{place.name}: {note}")
                    await self._feed(worker, running)
                except WorkerLost as lost:
                    failed, reason = failed + 1, str(lost)
                    self._take_back(place, running, reason)
                finally:
                    worker.stop()
                await asyncio.sleep(RESTART_SECONDS)
                if place.key not in {each.key for each in await asyncio.to_thread(self.places)}:
                    self.remark(f"{place.name} is gone")
                    return
                if failed > MOST_FAILED_LOADS:
                    self._refuse(place, f"its worker ends whenever it loads the model ({reason})")
                    return
        finally:
            self._serving.pop(place.key, None)
            self._resize()

    def _refuse(self, place: Place, reason: str) -> None:
        self._refused[place.key] = reason
        self.remark(f"{place.name} takes no part: {reason}")

    async def _feed(self, worker: Handle, running: dict[int, _Item]) -> None:
        """Keep a worker busy. What it has is in `running`; raises WorkerLost."""
        n_asked = 0
        while True:
            block = self._block(running)
            if not block and not running:
                self._changed.clear()
                await self._changed.wait()
                continue
            asked: list[Asked] = []
            for item in block:
                n_asked += 1
                running[n_asked] = item
                asked.append((n_asked, item.request.url, item.request.body))
            for number, status, body in await worker.exchange(asked):
                item = running.pop(number)
                item.settle(Outcome(item.request, status, body))

    def _block(self, running: dict[int, _Item]) -> list[_Item]:
        """The rows that a worker gets next: neighbours, whose prompts may begin alike."""
        if any(item.is_suspect for item in running.values()):
            return []
        if self._suspects and not running:
            return [self._suspects.popleft()]
        room = self.depth - len(running)
        if room < max(1, self.width // 4):
            return []
        share = -(-len(self._waiting) // max(1, len(self._serving)))
        return [self._waiting.popleft() for _ in range(min(room, share))]

    def _take_back(self, place: Place, running: dict[int, _Item], reason: str) -> None:
        """Have the rows of a lost worker done again, in front of all others."""
        again = f"; {len(running)} rows are done again" if running else ""
        self.remark(f"{place.name}: the worker is lost ({reason}){again}")
        for item in reversed(running.values()):
            item.lost_alone += item.is_suspect
            item.losses += 1
            if item.lost_alone >= LOST_ALONE:
                message = f"{item.losses} workers were lost while they answered this row, the last ones alone"
                item.settle(Outcome(item.request, 400, {"error": {"message": message}}))
            else:
                (self._suspects if item.is_suspect else self._waiting).appendleft(item)
        running.clear()
        self._changed.set()
