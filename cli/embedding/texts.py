"""The texts of `llm embed` and `llm rerank`: arguments, lines of a file or of stdin, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import typer

from ..console import terminal
from ..generation.prompt import check_utf8

LONGEST_LINE = 1 << 26  # bytes
JSONL_ENDINGS = (".jsonl", ".ndjson")
TEXT_KEYS = ("text", "input", "content")  # of an object in JSON lines, the first that is there


@dataclass(frozen=True)
class Item:
    """A text, and the `id` that its JSON object has, or None."""

    text: str
    id: Any = None


def read_items(words: Sequence[str], files: Sequence[str], jsonl: bool) -> Iterator[Item]:
    """The texts of the arguments, then those of the files, one a line; stdin for `-`, or without any of them.

    Lines are read as they are needed. Files that end in .jsonl, and with `jsonl` all of them, hold a JSON
    string or object a line, with its text as `text`, `input` or `content`. Raises a usage error.
    """
    for word in words:
        check_utf8("a text", word)
    names = [*files, *(["-"] if "-" in words and "-" not in files else [])]
    texts = [word for word in words if word != "-"]
    if not texts and not names:
        if sys.stdin is None or terminal.is_terminal(sys.stdin):
            raise typer.BadParameter("no text: give some as arguments, in a --file, or on stdin")
        names = ["-"]
    return _items(texts, names, jsonl)


def _items(texts: Iterable[str], names: Iterable[str], jsonl: bool) -> Iterator[Item]:
    yield from map(Item, texts)
    for name in names:
        with ExitStack() as stack:
            yield from _lines(name, _open(name, stack), jsonl or name.lower().endswith(JSONL_ENDINGS))


def _open(name: str, stack: ExitStack) -> BinaryIO:
    if name == "-":
        if sys.stdin is None:
            raise typer.BadParameter("stdin is closed")
        return sys.stdin.buffer
    try:
        return stack.enter_context(Path(name).expanduser().open("rb"))
    except OSError as problem:
        raise typer.BadParameter(f"{name} cannot be read: {problem.strerror or problem}") from None


def _lines(name: str, file: BinaryIO, jsonl: bool) -> Iterator[Item]:
    shown = "stdin" if name == "-" else name
    number = 0
    while True:
        try:
            line = file.readline(LONGEST_LINE + 1)
        except OSError as problem:
            raise typer.BadParameter(f"{shown} cannot be read: {problem.strerror or problem}") from None
        if not line:
            return
        number += 1
        where = f"line {number} of {shown}"
        if len(line) > LONGEST_LINE:
            raise typer.BadParameter(f"{where} has over {LONGEST_LINE >> 20} MiB")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as problem:
            raise typer.BadParameter(f"{where} is not UTF-8 text ({problem.reason})") from None
        if not jsonl:
            yield Item(text)
        elif text.strip():
            yield _parsed(where, text)


def _parsed(where: str, line: str) -> Item:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise typer.BadParameter(f"{where} is not JSON") from None
    if isinstance(value, str):
        return Item(value)
    if isinstance(value, dict):
        text = next((value[key] for key in TEXT_KEYS if key in value), None)
        if isinstance(text, str):
            return Item(text, value.get("id"))
    raise typer.BadParameter(f"{where} is no string, and no object with a text in {', '.join(TEXT_KEYS)}")
