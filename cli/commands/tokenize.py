"""`llm tokenize`: what a model's tokenizer makes of a text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from ...runtime.hub.resolve import resolve
from ..console import terminal
from ..console.options import DEFAULT_MODEL, flag
from ..console.progress import Progress
from ..console.safe_text import as_json
from ..console.wording import count
from ..generation.prompt import check_utf8, read_stdin
from ..settings.model import Model_

_BANDS = ("48;5;24", "48;5;53")  # neighbouring tokens have different backgrounds


class Format(StrEnum):
    rich = "rich"
    json = "json"


def tokenize(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="The text; default: stdin.", show_default=False),
    ] = None,
    model: Model_ = None,
    output: Annotated[Format, flag("-o", "--output", help="A table for people, or JSON.")] = Format.rich,
) -> None:
    """Show the tokens of a text.

    Without BOS and EOS, and with special tokens in the text taken as plain text.
    """
    if text and text != ["-"]:
        content = " ".join(text)
        check_utf8("the text", content)
    elif text or not terminal.is_terminal(sys.stdin):
        content = read_stdin()
    else:
        raise typer.BadParameter("no text: give one as an argument or on stdin")
    path = resolve(model or DEFAULT_MODEL, Progress)
    from ...runtime.model.source import load_tokenizer

    tokenizer = load_tokenizer(path)
    for note in tokenizer.notes:
        terminal.note(note)
    ids = tokenizer.encode(content)
    tokens = [tokenizer.token_text(token) for token in ids]
    if output is Format.json:
        terminal.write(as_json({"ids": ids, "tokens": tokens}) + "\n")
    else:
        terminal.write_painted(_pieces(ids, tokens))
        told = ((len(ids), "token"), (len(content), "character"), (len(content.encode()), "byte"))
        terminal.note(", ".join(count(n, noun) for n, noun in told))


def _pieces(ids: list[int], tokens: list[str]) -> Iterator[tuple[str, str]]:
    """(text, colour) pieces of lines, one a token: its id, and its text with a visible end."""
    width = len(str(max(ids, default=0)))
    for i, (token, text) in enumerate(zip(ids, tokens, strict=True)):
        yield f"{token:>{width}}  ", ""
        yield as_json(text), _BANDS[i % 2]
        yield "\n", ""
