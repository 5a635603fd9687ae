"""When the tokens of a generation are handed over in batches, and when one by one."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.scheduling import generation

from ..test_engine import greedy
from .test_many import new_engine

SECONDS = 0.1


def slow_engine(step: float) -> Engine:
    """An engine whose steps take so many seconds."""
    engine = new_engine(n_pages=128)
    engine.machine.before_step = lambda: time.sleep(step)
    return engine


async def read(engine: Engine, n: int, seconds: float, first: int = 1) -> tuple[list[list[int]], list[float]]:
    """The batches of an answer of `n` tokens, and when they came; they are the right tokens."""
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=n)
    batches, times = [], []
    async for batch in engine.submit([first, 2], params).batches(seconds):
        batches.append(batch)
        times.append(time.monotonic())
    assert [token for batch in batches for token in batch] == greedy([first, 2], n)
    return batches, times


@pytest.mark.parametrize("step", [0.001, 0.02])
def test_fast_tokens_are_gathered(step: float):
    """The first comes at once, and so does what is there at the end; between two batches is the time."""
    engine = slow_engine(step)
    batches, times = asyncio.run(read(engine, int(0.6 / step**0.9), SECONDS))
    assert len(batches[0]) == 1
    between = [after - before for before, after in pairwise(times)]
    for i, pause in enumerate(between[1:-1], 1):  # the second batch tells how fast they are
        assert pause > 0.9 * SECONDS
        assert len(batches[i + 1]) > 1
    assert between[-1] < 1.5 * SECONDS
    engine.close()


@pytest.mark.parametrize(("step", "seconds"), [(0.06, SECONDS), (0.005, 0.0), (0.005, 0.008)])
def test_slow_tokens_come_one_by_one(step: float, seconds: float):
    """Where fewer than two come in the time, and if there is no such time."""
    engine = slow_engine(step)
    batches, _ = asyncio.run(read(engine, 12, seconds))
    assert sum(len(batch) == 1 for batch in batches) >= 8  # but for what a busy machine holds up
    engine.close()


def test_many_generations_leave_the_event_loop_alone_for_longer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generation, "MOST_BATCHES", 3 / 0.3)
    engine = slow_engine(0.002)

    async def three() -> list[tuple[list[list[int]], list[float]]]:
        return await asyncio.gather(*(read(engine, 150, 0.05, first) for first in (1, 3, 5)))

    for _, times in asyncio.run(three()):
        between = [after - before for before, after in pairwise(times)]
        assert max(between) > 0.27
        assert sum(pause > 0.27 for pause in between) >= len(between) - 3  # the first two, and the last
    engine.close()


def test_nothing_wakes_the_event_loop_while_tokens_are_gathered(monkeypatch: pytest.MonkeyPatch):
    engine, wakes = slow_engine(0.001), []

    async def counted() -> None:
        loop = asyncio.get_running_loop()
        tell = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *a: (wakes.append(1), tell(*a))[1])
        batches, _ = await read(engine, 300, SECONDS)
        assert len(wakes) <= 4 < len(batches) + 2  # for the first tokens, and the end

    asyncio.run(counted())
    engine.close()
