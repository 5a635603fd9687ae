"""Completion by Tab at the prompt of a chat: /commands and their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from ..console.safe_text import one_line

# The /commands, and for each the words that its argument may be; None: the name of a file.
Completions: TypeAlias = Mapping[str, Sequence[str] | None]


class ChatCompleter(Completer):
    """Completes the names of `commands`, and behind one what its argument may be."""

    def __init__(self, commands: Completions) -> None:
        self._commands = commands
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, rest = text.partition(" ")
        if not space:
            yield from _beginning_with(name, sorted(self._commands))
            return
        words = self._commands.get(name, ())
        if words is None:
            yield from map(_shown_safely, self._files.get_completions(Document(rest), event))
        else:
            yield from _beginning_with(rest, words)


def _shown_safely(file: Completion) -> Completion:
    return Completion(file.text, file.start_position, display=one_line(file.display_text))


def _beginning_with(begun: str, words: Sequence[str]) -> Iterable[Completion]:
    return (Completion(word, start_position=-len(begun)) for word in words if word.startswith(begun))
