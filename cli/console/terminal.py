"""The two streams of a command: stdout for results, stderr for everything else.

Both are UTF-8 whatever the locale. Escape codes go only to a stream that is a terminal, and
colours only where NO_COLOR allows them. Nothing else in `cli` writes to a stream (tests/cli/console/
test_safe_text.py looks), so that all text passes `safe_text` here: on a terminal and elsewhere, with the one
exception of a model's text, which a pipe or a file gets as it is.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TextIO

from .safe_text import lines, one_line
from .word_wrap import WordWrap

if TYPE_CHECKING:
    from rich.console import Console


def setup_streams() -> None:
    """Make all three streams UTF-8, and give closed ones (`>&-`) somewhere to write to."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # already closed
        return False


def takes_escapes(stream: TextIO) -> bool:
    """Whether the cursor of `stream` may be moved: a terminal, and not a dumb one."""
    return is_terminal(stream) and os.environ.get("TERM", "") != "dumb"


def takes_colour(stream: TextIO) -> bool:
    return takes_escapes(stream) and not os.environ.get("NO_COLOR")


def paint(text: str, code: str, stream: TextIO) -> str:
    """`text` in the SGR colour `code` ("2" is dim, "31" red) where the stream takes colours."""
    return f"\x1b[{code}m{text}\x1b[0m" if takes_colour(stream) else text


def width() -> int | None:
    """The columns of the terminal that stdout is, or None if it is none."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None


def console() -> Console:
    """Where rich draws a progress bar: stderr. Its text must be made safe before."""
    from rich.console import Console

    return Console(stderr=True)


def write(text: str) -> None:
    """Write to stdout at once. When its reader is gone (`| head`) the command ends quietly."""
    _write(lines(text))


def write_painted(pieces: Iterable[tuple[str, str]]) -> None:
    """Write texts to stdout, each in an SGR colour ("": in none), as `paint` does it."""
    _write("".join(paint(lines(text), code, sys.stdout) if code else lines(text) for text, code in pieces))


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _quiet_exit()
    except OSError as problem:
        silence(sys.stdout)
        raise RuntimeError(f"cannot write the output: {problem.strerror or problem}") from problem


def write_bytes(content: bytes) -> None:
    """Write to stdout, which must be no terminal, what is no text."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _quiet_exit()
    except OSError as problem:
        silence(sys.stdout)
        raise RuntimeError(f"cannot write the output: {problem.strerror or problem}") from problem


def _quiet_exit() -> NoReturn:
    silence(sys.stdout)
    raise SystemExit(0)


def silence(stream: TextIO) -> None:
    """Point the stream's file at the null device, so that flushing it at exit cannot fail either."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass


def _tell(text: str) -> None:
    """Write to stderr as it is. If that fails (closed, no room left), the command goes on without stderr."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        silence(sys.stderr)


def tell(text: str) -> None:
    """A text of one or several lines on stderr."""
    _tell(lines(text) + "\n")


def tell_painted(pieces: Iterable[tuple[str, str]]) -> None:
    """Write texts to stderr, each in an SGR colour ("": in none)."""
    _tell("".join(paint(lines(text), code, sys.stderr) if code else lines(text) for text, code in pieces))


def note(text: str) -> None:
    """One line on stderr, for warnings."""
    _tell(one_line(text) + "\n")


def remark(text: str) -> None:
    """One dim line on stderr, for information."""
    _tell(paint(one_line(text), "2", sys.stderr) + "\n")


def error(text: str) -> None:
    """An error as one line on stderr."""
    _tell(paint("error:", "1;31", sys.stderr) + " " + one_line(text) + "\n")


def ask(prompt: str) -> None:
    """The prompt of a line to be typed, on stderr."""
    _tell(lines(prompt))


def mark_pastes(on: bool) -> None:
    """Have the terminal mark the ends of what is pasted into it (bracketed paste), or stop that.

    One of the streams must be a terminal that takes escapes.
    """
    code = "\x1b[?2004h" if on else "\x1b[?2004l"
    if takes_escapes(sys.stderr):
        _tell(code)
    else:
        _write(code)


def overwrite(text: str) -> None:
    """Replace the line of stderr, a terminal that takes escapes, that the cursor is in; "" erases it."""
    _tell("\r\x1b[2K" + (paint(one_line(text), "2", sys.stderr) if text else ""))


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show `text` on stderr while the block runs; only a terminal sees it, and it leaves no trace."""
    shown = takes_escapes(sys.stderr)
    if shown:
        overwrite(text)
    try:
        yield
    finally:
        if shown:
            overwrite("")


def _columns() -> int:
    return shutil.get_terminal_size().columns


class ForeignText(io.TextIOBase):
    """Takes the place of stdout, which is for answers, while a library runs that prints: its lines go into
    `log`. `write_bytes` reaches stdout all the same."""

    def __init__(self, log: logging.Logger) -> None:
        self.buffer = sys.stdout.buffer
        self._log = log

    def write(self, text: str) -> int:
        if text.strip():
            self._log.debug("%s", text.rstrip())
        return len(text)


class ModelText:
    """Writes a reply to stdout as it comes, and ends it with exactly one newline.

    A terminal gets safe text from a model, and with `wrap` its lines are broken between words; a file or a
    pipe gets every character.
    """

    def __init__(self, wrap: bool = False) -> None:
        self.text = ""
        self._wrap = WordWrap(_columns) if wrap and takes_escapes(sys.stdout) else None
        self._held = ""  # line ends that are written only if more text follows

    def write(self, piece: str) -> None:
        self.text += piece
        piece = self._held + piece
        body = piece.rstrip("\r\n")
        self._held = piece[len(body) :]
        if body:
            shown = lines(body) if is_terminal(sys.stdout) else body
            _write(self._wrap.push(shown) if self._wrap else shown)

    def begin_line(self) -> None:
        """Something else has been written to the terminal, and the cursor is at the beginning of a line."""
        if self._wrap:
            self._wrap.begin_line()

    def finish(self) -> None:
        self._held = ""
        _write("\n")


class ThinkingText:
    """Shows on stderr what a model thinks, dim where colours are allowed. `hidden`: only that it does, in a
    line that goes away, on a terminal."""

    def __init__(self, hidden: bool = False) -> None:
        self._hidden = hidden
        self._open = False

    def write(self, piece: str) -> None:
        if self._hidden:
            if not self._open and takes_escapes(sys.stderr):
                overwrite("thinking …")
        else:
            _tell(paint(lines(piece), "2", sys.stderr))
        self._open = True

    def finish(self) -> None:
        """Something else comes."""
        if self._open and not self._hidden:
            _tell("\n\n")
        elif self._open and takes_escapes(sys.stderr):
            overwrite("")
        self._open = False


def close_streams() -> OSError | ValueError | None:
    """Flush both streams now, so that nothing is left to fail at interpreter exit.

    Returns what kept stdout from being written, unless its reader is gone.
    """
    failure: OSError | ValueError | None = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            silence(stream)
        except (OSError, ValueError) as problem:
            silence(stream)
            if stream is sys.stdout:
                failure = problem
    return failure
