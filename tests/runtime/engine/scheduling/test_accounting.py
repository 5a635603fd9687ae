"""How many prefill rows go into a step that decodes as well, found from how long such steps take."""

from __future__ import annotations

from typing import Any

import pytest

from kukri.runtime.engine.scheduling.accounting import EVEN_SECONDS, LEAST_MIXED_ROWS, StepTimes


def measured(times: StepTimes, n_decode: int, n_prefill: int, seconds: float) -> None:
    times.measure(n_decode + n_prefill, n_prefill, seconds)


def settled(times: StepTimes, seconds_of: Any, n_decode: int = 64, steps: int = 40) -> list[int]:
    """The prefill rows of so many mixed steps, which take `seconds_of(prefill rows)`."""
    taken = []
    for _ in range(steps):
        taken.append(times.mixed_rows)
        measured(times, n_decode, taken[-1], seconds_of(taken[-1]))
    return taken


def test_first_guess():
    """From a prompt alone and a step of decoding, before there was a step of both."""
    times = StepTimes()
    assert times.mixed_rows == 4 * LEAST_MIXED_ROWS
    measured(times, 0, 200, 0.2)
    measured(times, 1, 0, 0.05)
    assert times.mixed_rows == 100


@pytest.mark.parametrize("stall", [1.0, 40.0])
def test_stairs(stall):
    """Rows that cost little in small and in large steps, much in between, as tiles of many rows have it. A
    first step that took long for something else does not matter for long.
    """
    times = StepTimes()
    measured(times, 0, 128, 0.0055 * stall)
    for _ in range(4):
        measured(times, 64, 0, 0.005)

    def seconds(n: int) -> float:
        return 0.0065 if n <= 64 else 0.0122 if n <= 192 else 0.009 + 2.2e-5 * (n + 64)

    most = int((EVEN_SECONDS - 0.009) / 2.2e-5) - 64
    taken = settled(times, seconds)
    assert all(most / 1.3 <= n <= most * 1.3 for n in taken[-10:])


def test_slow_rows():
    """As few rows as keep the time between tokens even; a step that few rows were left for says nothing."""
    times = StepTimes()
    measured(times, 16, 0, 0.03)
    taken = settled(times, lambda n: 0.03 + 0.001 * n, 16)
    assert all(48 <= n <= 75 for n in taken[-10:])
    before = times.mixed_rows
    measured(times, 16, 5, 0.5)
    measured(times, 16, 5, 0.031)
    assert times.mixed_rows == before
    assert min(settled(times, lambda n: 1.0, 16)) == LEAST_MIXED_ROWS
