"""What a row's answer looks like in the output: OpenAI's batch format, or the row with its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .output import line_of, record_of
from .requests import Request
from .rows import BadRow, BatchError, Row

FINISH = "finish_reason"


@dataclass(frozen=True)
class Outcome:
    """What came of a request: the `status` of HTTP (200: an answer) and the `body` of the response."""

    request: Request
    status: int
    body: dict[str, Any]

    @property
    def n_tokens(self) -> int:
        """Tokens that were written."""
        return int((self.body.get("usage") or {}).get("completion_tokens", 0))

    @property
    def routing(self) -> dict[str, Any] | None:
        """Which of two models gave the answer, and why; None where there is one."""
        found = (self.body.get("usage") or {}).get("routing")
        return found[0] if found else None

    @property
    def n_cached(self) -> int:
        """Answers that were kept from earlier requests."""
        return int((self.body.get("usage") or {}).get("cached_answers", 0))


def taken(column: str) -> str:
    """Why a row has no place for an answer."""
    way_out = "it cannot be an input's" if column == FINISH else "--answer-column names another one"
    return f"has a column {column!r} already; {way_out}"


def check_columns(columns: Iterable[str], answer: str) -> None:
    """BatchError for an input whose columns have the name of one that is added: every row of it would be
    answered for nothing."""
    if both := {answer, FINISH}.intersection(columns):
        raise BatchError(f"the input {taken(min(both))}")


@dataclass(frozen=True)
class Lines:
    """Writes outcomes as lines of the output, and failed rows as lines of the file of errors.

    `answer` is the name of the column with the answer; `columns` the input's columns if the output is CSV.
    """

    answer: str = "answer"
    columns: Sequence[str] | None = None

    def head(self) -> bytes:
        """What stands in front of all rows."""
        return b"" if self.columns is None else record_of([*self.columns, self.answer, FINISH])

    def line(self, outcome: Outcome) -> bytes:
        """The line of an answered row. Raises BadRow for a row that has no place in the output."""
        request = outcome.request
        if request.custom_id is not None:
            if self.columns is not None:
                raise BadRow("a row of OpenAI's batch format has no place in a CSV file")
            return line_of(
                {
                    "id": f"batch_req_{request.row.number}",
                    "custom_id": request.custom_id,
                    "response": {
                        "status_code": outcome.status,
                        "request_id": f"req_{request.row.number}",
                        "body": outcome.body,
                    },
                    "error": None,
                }
            )
        fields = request.row.fields
        added = self._added(outcome)
        if both := fields.keys() & added.keys():
            raise BadRow(taken(min(both)))
        if self.columns is None:
            return line_of(fields | added)
        if lost := fields.keys() - set(self.columns):
            raise BadRow(f"has a column {min(lost)!r:.80} that the first row lacks, so that the CSV has none")
        return record_of(
            [
                *(fields.get(name, "") for name in self.columns),
                added.get(self.answer, ""),
                added.get(FINISH, ""),
            ]
        )

    def _added(self, outcome: Outcome) -> dict[str, Any]:
        body = outcome.body
        if body.get("object") == "list":  # embeddings
            return {self.answer: body["data"][0]["embedding"]}
        choice = body["choices"][0]
        message = choice.get("message") or {"content": choice.get("text")}
        added = {self.answer: message.get("content") or ""}
        for name in ("reasoning_content", "tool_calls"):
            if message.get(name):
                added[name] = message[name]
        if choice.get("logprobs"):
            added["logprobs"] = choice["logprobs"]
        if outcome.routing is not None:
            added["model"] = outcome.routing["model"]
        return added | {FINISH: choice.get(FINISH)}

    def failure(
        self, row: Row, reason: str, request: Request | None = None, status: int | None = None
    ) -> bytes:
        """The line of a row without an answer."""
        fields: dict[str, Any] = {"row": row.number}
        custom_id = request.custom_id if request else row.fields.get("custom_id")
        if custom_id is not None:
            fields["custom_id"] = custom_id
        fields["error"] = {"status_code": status, "message": reason}
        if row.fields and custom_id is None:
            fields["fields"] = row.fields
        return line_of(fields)


def sort_key(request: Request) -> tuple[str, int]:
    """Brings requests together that begin alike, whose beginning is then computed once; long ones first."""
    text = _text(request.body)
    return text[:256], -len(text)


def _text(body: Mapping[str, Any]) -> str:
    given = body.get("messages") or body.get("prompt") or body.get("input") or ""
    if isinstance(given, str):
        return given
    return "\0".join(str(each.get("content", "")) if isinstance(each, dict) else str(each) for each in given)
