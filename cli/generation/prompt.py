"""The prompt of `run` and `chat`: arguments of the command line, and text piped into stdin."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence

import typer

from ..console import terminal
from ..console.safe_text import one_line
from .input_files import decode_text, read_text_file

_HINT_SECONDS = 3.0


def read_prompt(words: Sequence[str], no_stdin: bool, files: Sequence[str] = ()) -> str:
    """The texts of `files`, the arguments joined by spaces, and the piped text, with blank lines in between.

    Any may be missing. stdin is read if it is not a terminal, or if one of the words or files is `-`; but
    beside other text not a file that somebody else has begun to read, which is the list of a shell's loop.
    One newline at its end is dropped. A usage error if nothing is left, or if a text cannot be read, is not
    UTF-8 or absurdly long.
    """
    explicit = "-" in words
    if (explicit or "-" in files) and no_stdin:
        raise typer.BadParameter("- asks for stdin and --no-stdin forbids it")
    if explicit + list(files).count("-") > 1:
        raise typer.BadParameter("- asks for stdin twice, and it can be read once")
    argument = " ".join(word for word in words if word != "-")
    check_utf8("the prompt", argument)
    piped = ""
    if explicit or (not no_stdin and "-" not in files and stdin_is_meant(bool(argument or files))):
        piped = read_stdin(hint=bool(argument or files) and not explicit)
        if piped and argument and not explicit and _is_parents_stdin():
            n = piped.count("\n") + 1
            terminal.remark(
                f"({n} lines of stdin joined the prompt; in a loop or a script, --no-stdin leaves them alone)"
            )
    texts = [text for text in (argument, piped) if text.strip()]
    text = "\n\n".join([*read_files(files, headings=len(files) > 1 or bool(texts)), *texts])
    if not text.strip():
        raise typer.BadParameter("no prompt: give one as an argument or on stdin")
    return text


def read_files(names: Sequence[str], headings: bool = True) -> list[str]:
    """The texts of files, each below a heading with its name; `-` is stdin. A usage error as in
    `read_prompt`."""
    texts = []
    for name in names:
        check_utf8("the name of a file", name)
        text = read_stdin() if name == "-" else read_text_file(name)
        title = "stdin" if name == "-" else one_line(name)
        texts.append(f"--- {title} ---\n{text}" if headings else text)
    return texts


def stdin_is_meant(beside_text: bool) -> bool:
    """Whether stdin belongs to the prompt though nobody named it."""
    if sys.stdin is None or terminal.is_terminal(sys.stdin):
        return False
    if not (beside_text and _is_begun_file(sys.stdin.fileno())):
        return True
    terminal.remark("(stdin is a file that is partly read already, as in a loop, and left alone; - reads it)")
    return False


def _is_begun_file(descriptor: int) -> bool:
    """Whether a part of this ordinary file has been read, and another part has not."""
    try:
        state = os.fstat(descriptor)
        return stat.S_ISREG(state.st_mode) and 0 < os.lseek(descriptor, 0, os.SEEK_CUR) < state.st_size
    except OSError:
        return False


def _is_parents_stdin() -> bool:
    """Whether the parent process has the same pipe or file as its stdin, as a script or a loop has; False
    where the system does not tell."""
    try:
        return os.path.samestat(os.stat(f"/proc/{os.getppid()}/fd/0"), os.fstat(sys.stdin.fileno()))
    except OSError:
        return False


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
    return decode_text("stdin", _blocks(sys.stdin.fileno()))


def _blocks(descriptor: int) -> Iterator[bytes]:
    while block := os.read(descriptor, 1 << 16):
        yield block


def _hint_if_slow() -> None:
    try:
        ready = select.select([sys.stdin], [], [], _HINT_SECONDS)[0]
    except (OSError, ValueError):  # not something select knows, such as a file on Windows
        return
    if not ready:
        terminal.remark("waiting for stdin to close; --no-stdin leaves it alone")
