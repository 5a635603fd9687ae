"""From a row to a request: OpenAI's batch lines as they are, others by a template or their own columns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .rows import BadRow, Row

CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
URLS = (CHAT, COMPLETION, EMBEDDING, "/v1/responses")
_COLUMN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True)
class Request:
    """What is asked of the model: the `body` of a POST to `url`.

    `custom_id`: the name that a line of OpenAI's batch format gives it; None for a plain row, whose own
    fields go into its line of output.
    """

    row: Row
    url: str
    body: dict[str, Any]
    custom_id: str | None = None


@dataclass(frozen=True)
class Template:
    """The text of a prompt with columns in it: "Translate {text}"; `{{` and `}}` are braces."""

    text: str

    def __post_init__(self) -> None:
        for found in _COLUMN.finditer(self.text):
            if found[0] in ("{", "}") or found[1] == "":
                raise ValueError(
                    f"the template has a lone brace at character {found.start() + 1}; "
                    "{column} takes a column, {{ and }} are braces"
                )

    @property
    def columns(self) -> list[str]:
        """The columns that it reads."""
        return [found[1] for found in _COLUMN.finditer(self.text) if found[1]]

    def fill(self, fields: Mapping[str, Any]) -> str:
        """The prompt of a row. BadRow if the row lacks a column."""

        def value(found: re.Match[str]) -> str:
            name = found[1]
            if not name:
                return found[0][0]
            if name not in fields:
                raise BadRow(f"there is no column {name!r:.80}; there are {', '.join(map(str, fields)):.200}")
            given = fields[name]
            return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)

        return _COLUMN.sub(value, self.text)


@dataclass(frozen=True)
class Asking:
    """How plain rows become requests.

    - `template`: the prompt; None: the row's `messages`, or its text in `prompt` (or `text`, of embeddings).
    - `raw`: continue the text instead of answering it. `embed`: the vector of the text.
    - `system`: a system prompt. `parameters`: fields of every body, such as {"temperature": 0}.
    """

    template: Template | None = None
    raw: bool = False
    embed: bool = False
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def request(self, row: Row) -> Request:
        """The request of a row. Raises BadRow."""
        if row.error is not None:
            raise BadRow(row.error)
        if self.template is None and "body" in row.fields:
            return _openai(row, self.parameters)
        if self.template is None and not self.raw and not self.embed and "messages" in row.fields:
            messages = row.fields["messages"]
            if isinstance(messages, str):
                messages = _parsed(messages)
            return Request(row, CHAT, {**self.parameters, "messages": messages})
        text = self._text(row)
        if self.embed:
            return Request(row, EMBEDDING, {**self.parameters, "input": text})
        if self.raw:
            return Request(row, COMPLETION, {**self.parameters, "prompt": text})
        messages = [{"role": "user", "content": text}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return Request(row, CHAT, {**self.parameters, "messages": messages})

    def _text(self, row: Row) -> str:
        if self.template is not None:
            return self.template.fill(row.fields)
        for name in ("prompt", "text", "input"):
            if isinstance(text := row.fields.get(name), str):
                return text
        columns = ", ".join(map(str, row.fields))
        raise BadRow(
            f"has no text in `prompt`, and no `messages` or `body`; its columns are {columns:.200} "
            "(--prompt-template makes a prompt of them)"
        )


def _parsed(text: str) -> Any:
    """A conversation that a CSV file has as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadRow("`messages` is a text that is not JSON") from None


def _openai(row: Row, parameters: Mapping[str, Any]) -> Request:
    """A line of OpenAI's batch format: custom_id, method, url, body."""
    fields = row.fields
    custom_id, body = fields.get("custom_id"), fields["body"]
    url, method = fields.get("url", CHAT), fields.get("method", "POST")
    if not isinstance(custom_id, str) or not custom_id:
        raise BadRow("a row with a `body` needs a `custom_id`, which is a text")
    if not isinstance(body, dict):
        raise BadRow("`body` is no JSON object")
    if method != "POST" or url not in URLS:
        raise BadRow(f"asks for {method!s:.10} {url!s:.80}; a batch takes POST to {', '.join(URLS)}")
    if body.get("stream"):
        raise BadRow("`stream` has no place in a batch")
    return Request(row, url, {**parameters, **body}, custom_id)
