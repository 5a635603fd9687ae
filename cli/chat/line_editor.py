"""Reading a message at the prompt of a chat: line editing, a history, and messages of several lines."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ...quant.home import home
from ...quant.ownership import private_folder
from ..console import terminal
from ..console.safe_text import utf8

FENCE = '"""'  # begins and ends a message of several lines


def read_message(prompt: Callable[[str], str]) -> str:
    """One message; several lines between FENCEs. EOFError on Ctrl-D, KeyboardInterrupt on Ctrl-C."""
    text = prompt(">>> ")
    if not text.startswith(FENCE):
        return text
    lines = [text.removeprefix(FENCE)]
    while FENCE not in lines[-1]:
        lines.append(prompt("... "))
    lines[-1] = lines[-1].split(FENCE)[0]
    return "\n".join(lines).strip("\n")


def line_editor(completions: Sequence[str]) -> Callable[[str], str]:
    """A function from a prompt to a line, with editing, and a history that outlives the session.

    The prompt is not model text, so it goes to stderr wherever that is a terminal.
    """
    stream = sys.stderr if terminal.is_terminal(sys.stderr) else sys.stdout
    if not terminal.takes_escapes(stream):
        return _plain_line
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.output import ColorDepth, create_output

    from .pasted_text import ShownSafely

    history: History
    try:
        history = FileHistory(_history_file())
    except OSError as problem:
        why = f"{problem.filename}: {problem.strerror}" if problem.strerror else str(problem)
        terminal.remark(f"(the history is not kept: {why})")
        history = InMemoryHistory()
    session: PromptSession[str] = PromptSession(
        history=history,
        output=create_output(stdout=stream),
        color_depth=None if terminal.takes_colour(stream) else ColorDepth.DEPTH_1_BIT,
        completer=WordCompleter([*completions], sentence=True),
        complete_while_typing=False,
        input_processors=[ShownSafely()],
    )

    def read(prompt: str) -> str:
        return utf8(session.prompt(prompt))  # bytes that are not UTF-8 come as lone surrogates

    return read


def _history_file() -> Path:
    """The file of what was typed in earlier sessions, which only this user can read.

    It is made if it is missing, and closed to others if an older version left it open. Raises NoHome where
    another user could put a link in its place, and OSError where it cannot be written.
    """
    path = private_folder(home()) / "chat_history"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        status = os.fstat(descriptor)
        # Not /dev/null, to which some people link histories.
        if os.name != "nt" and stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return path


def _plain_line(prompt: str) -> str:
    """Read a line where nothing can be edited: a dumb terminal, or one that shows neither stream."""
    terminal.ask(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
