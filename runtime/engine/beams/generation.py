"""A beam generation: the answers of one beam search, when it ends."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..sampling.beam_search import Beam
from ..scheduling.driver import Driver
from ..scheduling.generation import listening
from ..stats import FinishReason, GenerationStats
from .group import BeamGroup


class BeamGeneration:
    """A beam search that runs beside other requests, to be waited for by one thread or one coroutine.

    `result()` runs the engine's steps in this thread where no other thread does; `await generation` leaves
    them to the engine's own thread. One that is closed, or forgotten, frees its part of the cache within a
    step.
    """

    def __init__(self, driver: Driver, group: BeamGroup) -> None:
        self._driver = driver
        self._group = group
        self._leader = group.leader

    @property
    def stats(self) -> GenerationStats:
        """Token counts and times. `new_tokens` are those of the best answer, and a decode step is one of all
        beams."""
        return self._leader.stats

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the best answer ended, or "interrupted"; None while the search runs."""
        return self._leader.stats.finish_reason

    @property
    def beams(self) -> list[Beam]:
        """The answers, the best first. Before the end, or if it did not come to that: the complete ones, and
        behind them the beams as far as they are."""
        return self._group.beams

    def result(self) -> list[Beam]:
        """The answers, the best first, once the search has ended. Raises what ended it: BadLogits,
        ModelClosed, or an error of the machine."""
        while not self._leader.finished:
            self._driver.advance(self._leader)
        return self._result()

    def _result(self) -> list[Beam]:
        if self._leader.error is not None:
            raise self._leader.error
        return self.beams

    def __await__(self) -> Generator[Any, None, list[Beam]]:
        """The result, without blocking the event loop."""
        return self._wait().__await__()

    async def _wait(self) -> list[Beam]:
        self._driver.start()
        try:
            with listening(self._leader) as there:
                while not self._leader.finished:
                    self._driver.check()
                    await there.wait()
        finally:
            self.close()
        return self._result()

    def close(self) -> None:
        """End the search."""
        self._driver.cancel(self._leader)

    cancel = close

    def __del__(self) -> None:
        self.close()
