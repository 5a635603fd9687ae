"""The two streams of a command: stdout for results, stderr for everything else.

Both are UTF-8 whatever the locale. Escape codes go only to a stream that is a terminal, and
colours only where NO_COLOR allows them.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

from .word_wrap import WordWrap

# Everything that moves a cursor or starts an escape sequence, but not tab and newline.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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


def write(text: str) -> None:
    """Write to stdout at once. When its reader is gone (`| head`) the command ends quietly."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
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


def tell(text: str) -> None:
    """Write to stderr as it is. If that fails (closed, no room left), the command goes on without stderr."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        silence(sys.stderr)


def note(text: str) -> None:
    """A line on stderr, or several, without control characters."""
    tell(_CONTROL.sub("", text) + "\n")


def remark(text: str) -> None:
    """One dim line on stderr, for information; `note` is for warnings."""
    tell(paint(_CONTROL.sub("", text), "2", sys.stderr) + "\n")


def error(text: str) -> None:
    """An error as one line on stderr."""
    tell(paint("error:", "1;31", sys.stderr) + " " + one_line(text) + "\n")


def one_line(text: str) -> str:
    return _CONTROL.sub("", " ".join(text.split()))


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON that a terminal can be shown: readable, but every control character is escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return re.sub(r"[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text)


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show `text` on stderr while the block runs; only a terminal sees it, and it leaves no trace."""
    shown = takes_escapes(sys.stderr)
    if shown:
        tell(paint(one_line(text), "2", sys.stderr))
    try:
        yield
    finally:
        if shown:
            tell("\r\x1b[2K")


def _columns() -> int:
    return shutil.get_terminal_size().columns


class ModelText:
    """Writes a reply to stdout as it comes, and ends it with exactly one newline.

    A terminal gets no control characters from a model, and with `wrap` its lines are broken between words; a
    file or a pipe gets every character.
    """

    def __init__(self, wrap: bool = False) -> None:
        self.text = ""
        self._wrap = WordWrap(_columns) if wrap and takes_escapes(sys.stdout) else None
        self._held = ""  # newlines that are written only if more text follows

    def write(self, piece: str) -> None:
        self.text += piece
        piece = self._held + piece
        body = piece.rstrip("\n")
        self._held = piece[len(body) :]
        if body:
            shown = _CONTROL.sub("\ufffd", body) if is_terminal(sys.stdout) else body
            write(self._wrap.push(shown) if self._wrap else shown)

    def begin_line(self) -> None:
        """Something else has been written to the terminal, and the cursor is at the beginning of a line."""
        if self._wrap:
            self._wrap.begin_line()

    def finish(self) -> None:
        self._held = ""
        write("\n")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns two spaces apart, never wrapped or cut; the columns numbered in `right` align right.

    Cells may come out of a file: each is made one line without control characters.
    """
    lines = [[one_line(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "".join(
        "  ".join(
            c.rjust(w) if i in right else c.ljust(w)
            for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in lines
    )


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, one pair a line; values may come out of a file, as in `table`."""
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name.ljust(width)}  {one_line(value)}\n" for name, value in rows)
