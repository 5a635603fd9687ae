"""What answers rows on a machine of a cluster: a loaded model in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .... import KukriError, __version__
from ...cpu.processors import default_threads
from ...model.loading import load_model
from ...model.model import Model
from ...model.options import LoadOptions
from ...serve.on_ray.model_file import ModelFile
from ..execute import Endpoints
from ..requests import Request
from ..rows import Row

GATHER_SECONDS = 0.02  # between two deliveries at least: each costs both sides a message
POLL_SECONDS = 0.25  # until a delivery that is empty, with which more rows may come

Asked = tuple[int, str, dict[str, Any]]  # a number, the URL and the body of a request
Done = tuple[int, int, dict[str, Any]]  # the same number, and the status and the body of the response


@dataclass(frozen=True)
class Order:
    """What every worker loads.

    - `file`: the model, as the driver has it. `options`: how it is loaded; `version`: of this package.
    """

    file: ModelFile
    options: LoadOptions
    version: str = __version__


@dataclass(frozen=True)
class Report:
    """What came of an order: why this machine takes no part (`refused`), or notes about the loaded model."""

    refused: str = ""
    notes: tuple[str, ...] = ()


class Worker:
    """A model, loaded as an order says, that answers the requests which are handed in. For one event loop."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._endpoints: Endpoints | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: list[Done] = []
        self._ready = asyncio.Event()

    async def load(self, order: Order, n_processors: int) -> Report:
        """Find the model on this machine, compare it with the order's, and load it for so many processors."""
        if order.version != __version__:
            return Report(f"it has kukri {__version__}, not {order.version}")
        notes: list[str] = []
        try:
            self._model = await asyncio.to_thread(_loaded, order, n_processors, notes)
        except (KukriError, OSError, ValueError) as problem:
            return Report(_said(problem))
        self._endpoints = Endpoints(self._model, order.file.name)
        return Report(notes=tuple(notes))

    async def exchange(self, asked: Sequence[Asked]) -> list[Done]:
        """Begin to answer these requests, and give what is done of them and of earlier ones.

        Waits until something is done, but not longer than POLL_SECONDS.
        """
        for each in asked:
            task = asyncio.create_task(self._answer(each))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not self._done:
            try:
                await asyncio.wait_for(self._ready.wait(), POLL_SECONDS)
                await asyncio.sleep(GATHER_SECONDS)
            except TimeoutError:
                pass
        self._ready.clear()
        done, self._done = self._done, []
        return done

    async def _answer(self, asked: Asked) -> None:
        assert self._endpoints is not None
        number, url, body = asked
        outcome = await self._endpoints(Request(Row(number, {}), url, body))
        self._done.append((number, outcome.status, outcome.body))
        self._ready.set()


def _loaded(order: Order, n_processors: int, notes: list[str]) -> Model:
    path = order.file.here()
    threads = order.options.threads or max(1, min(n_processors, default_threads()))
    return load_model(path, replace(order.options, threads=threads), warn=notes.append)


def _said(problem: Exception) -> str:
    """An error in one line, for another machine's user."""
    if isinstance(problem, OSError) and problem.strerror and problem.filename:
        return f"{problem.filename}: {problem.strerror}"
    return (str(problem).splitlines() or [type(problem).__name__])[0]
