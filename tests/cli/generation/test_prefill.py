"""The line that says how far prefill is."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from pathlib import Path

import pytest

from kukri.cli.generation import prefill
from kukri.cli.generation.prefill import PrefillProgress, state
from kukri.runtime.engine.stats import GenerationStats

from ..chat.test_chat import Terminal
from ..console.test_progress import states, terminal_of


def test_the_line() -> None:
    stats = GenerationStats(prompt_tokens=1000, cached_tokens=100)
    assert state(stats, 0, 0.0, 3.2) == f"reading the prompt ━━{'─' * 22} 100 of 1000 tokens, 3 s"
    stats.prefilled_tokens = 400
    half = f"reading the prompt {'━' * 12}{'─' * 12} 500 of 1000 tokens, 100 tokens/s, 5 s left"
    assert state(stats, 0, 100.0, 4) == half
    assert " 550 of " in state(stats, 50, 100.0, 4.5)
    assert " 1000 of 1000 tokens, 100 tokens/s, 0 s left" in state(stats, 9999, 100.0, 4.5)


def test_it_shows_after_a_while_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(prefill, "STEP_SECONDS", 0.01)
    terminal = terminal_of(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    current = GenerationStats(prompt_tokens=7)
    with PrefillProgress(lambda: current) as progress:
        time.sleep(0.2)
        assert terminal.getvalue() == ""  # the generation has not begun
        current = GenerationStats(prompt_tokens=1000)
        time.sleep(0.2)
        current.prefilled_tokens = 500
        time.sleep(0.2)
        progress.stop()
        shown = states(terminal)
        time.sleep(0.1)
        assert states(terminal) == shown
    assert " 0 of 1000 tokens, " in shown[0]
    counts = [int(match[1]) for text in shown if (match := re.search(r"(\d+) of", text))]
    assert counts == sorted(counts)
    assert len(set(counts)) > 3  # it goes on within a chunk
    assert shown[-1] == ""


@pytest.mark.parametrize("end", ["error", "first token"])
def test_other_ends(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(prefill, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(prefill, "STEP_SECONDS", 0.01)
    terminal = terminal_of(monkeypatch)
    current = GenerationStats()
    try:
        with PrefillProgress(lambda: current):
            current = GenerationStats(prompt_tokens=10)
            time.sleep(0.2)
            if end == "error":
                raise KeyboardInterrupt
            current.time_to_first_token = 0.1
            time.sleep(0.2)
            assert states(terminal)[-1] == ""
    except KeyboardInterrupt:
        pass
    assert len(states(terminal)) > 1
    assert states(terminal)[-1] == ""


def test_a_short_prefill_and_a_log_see_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    current = GenerationStats()
    with PrefillProgress(lambda: current):
        current = GenerationStats(prompt_tokens=10)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(prefill, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    current = GenerationStats()
    with PrefillProgress(lambda: current):
        current = GenerationStats(prompt_tokens=10)
        time.sleep(0.1)
    assert sys.stderr.getvalue() == ""


@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
def test_in_a_terminal(environment: dict[str, str], endless: Path) -> None:
    text = "word " * 8000  # 38,000 tokens, which take seconds on a fast machine too
    arguments = ("-m", str(endless), "-c", "60000", "--threads", "1", "-n", "4", "--no-stdin")
    terminal = Terminal(environment, "run", *arguments, text)
    assert terminal.end() == 0
    counts = [int(n) for n in re.findall(rb"reading the prompt \S+ (\d+) of \d+ tokens", terminal.raw)]
    assert len(set(counts)) >= 2
    assert counts == sorted(counts)
    assert b"reading" not in terminal.raw.split(b"\r\x1b[2K")[-1]
