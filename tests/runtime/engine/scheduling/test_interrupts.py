"""Signals that raise an exception at any place of the main thread, as Ctrl-C does: nothing stays taken."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import kukri
from kukri import SamplingParams
from kukri.runtime.model.model import Model

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers of POSIX")

LONG = SamplingParams(temperature=0, max_tokens=400)
PATIENCE = 30.0  # seconds
INTERRUPTS = 400


@contextmanager
def interrupts(draw: random.Random) -> Iterator[None]:
    """An interrupt comes within the block, or never."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, 3e-3))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def others_can_read(model: Model) -> bool:
    """Whether another thread gets its answer."""
    got: list[int] = []

    def read() -> None:
        with model.engine._driver.exclusive():
            pass
        got.extend(model.generate([7, 8], SamplingParams(temperature=0, max_tokens=2)))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return len(got) == 2


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside the engine's own thread"])
def test_an_interrupt_anywhere(tiny: Path, beside: bool) -> None:
    draw = random.Random(beside)
    n = 0
    with kukri.load(tiny) as model:
        answer = list(model.generate([1, 2, 3], LONG))
        if beside:
            model.engine._driver.start()
        while n < INTERRUPTS:
            got: list[int] = []
            generation = model.engine.submit([1, 2, 3], LONG)
            try:
                got.append(next(generation))
                with interrupts(draw):
                    got.extend(generation)
            except KeyboardInterrupt:
                n += 1
            generation.close()
            assert got == answer[: len(got)]
            if n % 20 == 0:
                assert others_can_read(model)
