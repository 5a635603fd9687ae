"""A grammar in Lark under construction: rules, texts with marks in them, parts that are JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .....tokenizer import Tokenizer
from .....tokenizer.chat.output.call_style import LINE, NUMBER, SHORT_ID
from ..response_format import WHITE_SPACE
from ..schemas import closed
from ..vocabulary import mark_ids

ANYTHING = "(?s:.*)"
_PLACES = {NUMBER: "/[0-9]{1,2}/", SHORT_ID: "/[A-Za-z0-9]{9}/", LINE: '("\\n")?'}
_SPECIAL = re.compile(r"[^\w\s]|\n|\r|\t", re.ASCII)


class Rules:
    """The rules of a grammar for the vocabulary of `tokenizer`. Expressions are texts in Lark."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = mark_ids(tokenizer)
        marks = {token.content: token.id for token in tokenizer.added_tokens if token.id in ids}
        self._marks = {mark: f"<[{id_}]>" for mark, id_ in marks.items() if id_ not in tokenizer.end_ids}
        self._ends = {mark for mark, id_ in marks.items() if id_ in tokenizer.end_ids}
        wanted = sorted([*marks, *_PLACES], key=len, reverse=True)
        self._parts = re.compile(f"({'|'.join(map(re.escape, wanted))})")
        self._lines: list[str] = []

    def text(self, text: str) -> str:
        """The expression of a text: marks are tokens where the vocabulary has them; those that end an answer
        are left out, since they come anyway."""
        parts = [part for part in self._parts.split(text) if part and part not in self._ends]
        return " ".join(self._marks.get(part) or _PLACES.get(part) or json.dumps(part) for part in parts)

    def is_mark(self, text: str) -> bool:
        """Whether a text begins with a token that is no text."""
        return bool(self._parts.match(text))

    def rule(self, expression: str) -> str:
        """A new rule; its name."""
        self._lines.append(f"r{len(self._lines)}: {expression}")
        return f"r{len(self._lines) - 1}"

    def later(self) -> int:
        """The place of a rule that is yet to be made, for `fill`; its name is r and that number."""
        self._lines.append("")
        return len(self._lines) - 1

    def fill(self, place: int, expression: str) -> None:
        """Make the rule of a place."""
        self._lines[place] = f"r{place}: {expression}"

    def json(self, schema: Any, root: Mapping[str, Any]) -> str:
        """Text in JSON that fits a schema, which may refer to definitions of `root`."""
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        options = {"x-guidance": {"whitespace_pattern": WHITE_SPACE}}
        return self.rule(f"%json {json.dumps(closed({**shared, **schema}) | options)}")

    def text_up_to(
        self, end: str, patterns: Sequence[str] = (ANYTHING,), but: Sequence[str] = (), least: int = 0
    ) -> str:
        """Text that matches all of some patterns and none of `but`, up to `end`, which is read too. `least`:
        the characters that there are for sure."""
        closing = _SPECIAL.sub(lambda found: f"\\x{{{ord(found[0]):x}}}", end)
        name = f"T{len(self._lines)}"
        if not self.is_mark(end):
            # A lexeme that went on to the end would swallow the beginning of what closes it.
            whole = [f"/({each}){closing}/" for each in patterns] + [f"~/({each}){closing}/" for each in but]
            self._lines.append(f"{name}: {' & '.join([*whole, f'~/(?s:.*){closing}(?s:.+)/'])}")
            self._lines.append(f"{name.lower()}[lazy]: {name}")
            return name.lower()
        inside = [*(f"/{each}/" for each in patterns), *(f"~/{each}/" for each in but)]
        self._lines.append(f"{name}: {' & '.join([*inside, '/(?s:.+)/', f'~/(?s:.*){closing}(?s:.*)/'])}")
        return f"{name} {self.text(end)}" if least else f'({name} | "") {self.text(end)}'

    def grammar(self, start: str) -> str:
        """All of it, which begins with the expression `start`."""
        return "\n".join([f"start: {start}", *(line for line in self._lines if line)]) + "\n"


def listed(items: Iterable[str]) -> str:
    """One of some expressions."""
    return f"({' | '.join(items)})"
