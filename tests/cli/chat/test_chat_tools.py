"""`llm chat` in a terminal: functions that the model calls."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from .test_chat import Terminal, open_chat, terminals

__all__ = ["terminals"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")]

TOOL = '''
import time
from typing import Literal

def dry(wall: Literal["left", "right"]) -> str:
    """Wait until a wall is dry."""
    time.sleep(1000)
    return "dry"

def paint(colour: Literal["red", "blue"], coats: Literal[1, 2] = 1) -> str:
    """Paint the wall."""
    return f"it is {colour} now"
'''


def test_tools_run_when_the_user_says_so(
    terminals: list[Terminal], environment: dict[str, str], endless: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(TOOL)
    flags = ("--tool", f"{tmp_path / 'mine.py'}:paint", "--tool-choice", "paint", "-t", "0", "-n", "90")
    chat = open_chat(terminals, environment, endless, *flags)
    called, question = r"→ paint\(colour=\"(red|blue)\".*\)", r"run paint\? \[y\]es, \[n\]o, \[a\]lways: "
    chat.line("Paint it.")
    chat.expect(called)
    chat.expect(question)
    chat.line("perhaps")  # is asked again
    chat.expect(question)
    chat.line("n")
    chat.expect("← error: the user does not want this function to be called")
    chat.expect(">>>")
    chat.line("Again.")
    chat.expect(called)
    chat.expect(question)
    chat.line("y")
    chat.expect("← it is (red|blue) now")
    chat.expect(">>>")
    chat.line("Once more.")
    chat.expect(question)
    chat.line("a")
    chat.expect("← it is (red|blue) now")
    chat.expect(">>>")
    chat.line("And now?")
    chat.expect(called)
    assert "run paint?" not in chat.expect("← it is (red|blue) now")
    chat.expect(">>>")
    chat.send("\x04")
    assert chat.end() == 0
    assert b"Traceback" not in chat.raw


def test_a_tool_that_takes_too_long_is_left_behind(
    terminals: list[Terminal], environment: dict[str, str], endless: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(TOOL)
    flags = ("--tool", f"{tmp_path / 'mine.py'}:dry", "--tool-choice", "dry", "-t", "0", "-n", "90")
    chat = open_chat(terminals, environment, endless, *flags, "--tool-timeout", "0.5")
    for answer in ("a", ""):
        chat.line("Is it dry?")
        chat.expect(r"→ dry\(wall=\"(left|right)\"\)")
        if answer:
            chat.expect(r"run dry\? \[y\]es, \[n\]o, \[a\]lways: ")
            chat.line(answer)
        start = time.monotonic()
        shown = chat.expect("← error: dry took longer than 0.5 seconds")
        assert 0.3 < time.monotonic() - start < 20
        assert shown.count("\n") <= 3  # the line that was typed, and this one
        chat.expect(">>>")
    chat.ask("/stats", "ended by")
    chat.send("\x04")
    start = time.monotonic()
    assert chat.end() == 0
    assert time.monotonic() - start < 20  # it does not wait for the function
    assert b"Traceback" not in chat.raw
