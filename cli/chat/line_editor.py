"""Reading a message at the prompt of a chat: line editing, a history, and messages of several lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ...quant.home import home
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
    path = home() / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        history = FileHistory(path)
    except OSError as problem:
        terminal.remark(f"(the history is not kept: {path}: {problem.strerror})")
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


def _plain_line(prompt: str) -> str:
    """Read a line where nothing can be edited: a dumb terminal, or one that shows neither stream."""
    terminal.ask(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
