"""The line that says how far the loading of a model is."""

from __future__ import annotations

import io
import sys
import time

import pytest

from kukri.cli.console import progress
from kukri.cli.console.progress import Loading


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in place of stderr. No fixture: pytest puts its own there when a test begins."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "50")
    return terminal


def states(terminal: Terminal) -> list[str]:
    return terminal.getvalue().split("\r\x1b[2K")[1:]


def test_a_terminal_sees_stages_and_counts(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with Loading("smollm2") as loading:
        loading.at("compiling kernels", 0, 14)
        loading.at("compiling kernels", 14, 14)
        loading.at("repacking weights", 30_000, 60_000)
    assert states(terminal) == [
        "loading smollm2 …",
        "loading smollm2: compiling kernels, 0 of 14 …",
        "loading smollm2: compiling kernels, 14 of 14 …",
        "loading smollm2: repacking weights, 50 % …",
        "",  # no trace
    ]


def test_a_kernel_that_takes_long_does_not_look_like_a_standstill(monkeypatch):
    monkeypatch.setattr(progress, "TICK_SECONDS", 0.02)
    terminal = terminal_of(monkeypatch)
    with Loading("m") as loading:
        loading.at("compiling kernels", 3, 40)
        time.sleep(1.2)
        seen = states(terminal)
        loading.at("repacking weights", 1, 2)
        time.sleep(0.1)
        assert states(terminal)[len(seen) :][-1] == "loading m: repacking weights, 1 of 2 …"
    assert "loading m: compiling kernels, 3 of 40, 1 s …" in seen
    time.sleep(0.1)
    assert states(terminal)[-1] == ""


def test_kernels_that_a_step_waits_for_later_draw_nothing(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with Loading("m") as loading:
        pass
    loading.at("compiling kernels", 0, 3)
    assert states(terminal) == ["loading m …", ""]


def test_a_long_line_is_cut_to_the_terminal(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with Loading("m" * 100):
        pass
    assert [len(line) for line in states(terminal)] == [49, 0]


def test_states_that_nobody_could_read_are_left_out(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with Loading("m") as loading:
        for i in range(1000):
            loading.at("repacking weights", i, 1000)
        loading.at("repacking weights", 1000, 1000)
    assert len(states(terminal)) < 50
    assert states(terminal)[-2] == "loading m: repacking weights, 1000 of 1000 …"


def test_an_interrupt_leaves_no_trace_either(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with pytest.raises(KeyboardInterrupt), Loading("m"):
        raise KeyboardInterrupt
    assert states(terminal)[-1] == ""


def test_elsewhere_only_compiling_is_worth_a_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Loading("m") as loading:
        for i in range(3):
            loading.at("compiling kernels (only once)", i, 2)
        loading.at("repacking weights", 1, 2)
    assert sys.stderr.getvalue() == "compiling kernels (only once): 2\n"
