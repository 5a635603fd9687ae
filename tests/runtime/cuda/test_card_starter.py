"""The thread that starts a step on several cards."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kukri.runtime.cuda.card_starter import CardStarter


class Card:
    def __init__(self, started: list[tuple[int, str]], number: int, other: Card | None = None) -> None:
        self.device = SimpleNamespace(use=lambda: None)
        self.entered = threading.Event()
        self._started, self._number, self._other = started, number, other

    def start(self, step: Any) -> None:
        self.entered.set()
        if step.fails == self._number:
            raise OSError("no such card")
        if self._other is not None and step.shape.n_rows > 16:
            assert self._other.entered.wait(10)  # as a driver that waits until the other card runs, too
        self._started.append((self._number, threading.current_thread().name))


def cards() -> tuple[list[Any], list[tuple[int, str]]]:
    started: list[tuple[int, str]] = []
    second = Card(started, 1)
    return [Card(started, 0, second), second], started


def steps(n_rows: int, fails: int = -1) -> list[Any]:
    return [SimpleNamespace(shape=SimpleNamespace(n_rows=n_rows), fails=fails) for _ in range(2)]


def test_few_rows_are_started_in_order_and_many_at_once():
    machines, started = cards()
    starter = CardStarter(2)
    starter.start(machines, steps(1))
    assert started == [(0, "starts cards"), (1, "starts cards")]
    started.clear()
    starter.start(machines, steps(100))
    assert sorted(number for number, _ in started) == [0, 1]
    starter.close()


@pytest.mark.parametrize("n_rows", [1, 100])
def test_errors_reach_the_caller(n_rows):
    machines, started = cards()
    starter = CardStarter(2)
    with pytest.raises(OSError, match="no such card"):
        starter.start(machines, steps(n_rows, fails=1))
    starter.start(machines, cast(Any, steps(n_rows)))
    assert (1, started[-1][1]) in started
    starter.close()
