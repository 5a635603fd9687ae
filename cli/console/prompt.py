"""The prompt of `run` and `chat`: arguments of the command line, and text piped into stdin."""

from __future__ import annotations

import codecs
import os
import select
import sys
from collections.abc import Sequence

import typer

from . import terminal

LONGEST_INPUT = 16 << 20  # bytes; far beyond any context window
_HINT_SECONDS = 3.0


def read_prompt(words: Sequence[str], no_stdin: bool) -> str:
    """Arguments joined by spaces, then a blank line and the piped text; either may be missing.

    stdin is read if it is not a terminal, or if one of the words is `-`. One newline at its end is
    dropped. A usage error if nothing is left, if the text is not UTF-8, or if it is absurdly long.
    """
    explicit = "-" in words
    if explicit and no_stdin:
        raise typer.BadParameter("- asks for stdin and --no-stdin forbids it")
    argument = " ".join(word for word in words if word != "-")
    check_utf8("the prompt", argument)
    piped = ""
    if explicit or (not no_stdin and sys.stdin is not None and not terminal.is_terminal(sys.stdin)):
        piped = read_stdin(hint=bool(argument) and not explicit)
    text = "\n\n".join(part for part in (argument, piped) if part.strip())
    if not text:
        raise typer.BadParameter("no prompt: give one as an argument or on stdin")
    return text


def check_utf8(what: str, text: str) -> None:
    """A usage error for a flag or an argument whose bytes are not UTF-8."""
    if any("\udc80" <= c <= "\udcff" for c in text):
        raise typer.BadParameter(f"{what} is not UTF-8 text")


def read_stdin(hint: bool = False) -> str:
    """All of stdin as text. With `hint`, a line on stderr says what is awaited if nothing comes for a
    while.
    """
    if sys.stdin is None:
        return ""
    if hint:
        _hint_if_slow()
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces = []
    n_bytes = 0
    try:
        while block := os.read(sys.stdin.fileno(), 1 << 16):
            n_bytes += len(block)
            if n_bytes > LONGEST_INPUT:
                raise typer.BadParameter(
                    f"stdin holds more than {LONGEST_INPUT >> 20} MiB, too much for a prompt"
                )
            pieces.append(decoder.decode(block))
        pieces.append(decoder.decode(b"", final=True))
    except OSError as problem:
        raise typer.BadParameter(f"stdin cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError as problem:
        raise typer.BadParameter(
            f"stdin is not UTF-8 text ({problem.reason}); pipe text, not binary data"
        ) from None
    return "".join(pieces).removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")


def _hint_if_slow() -> None:
    try:
        ready = select.select([sys.stdin], [], [], _HINT_SECONDS)[0]
    except (OSError, ValueError):  # not something select knows, such as a file on Windows
        return
    if not ready:
        terminal.remark("waiting for stdin to close; --no-stdin leaves it alone")
