"""Answers in the shape of the responses API: items, whole or as numbered events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import time
from typing import Any
from uuid import uuid4

from ...answers.answer import Answer
from ...answers.events import (
    AnswerEvent,
    Finished,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from ...answers.events import ToolCall as Called
from ..call import Call
from ..http.sending import sse
from ..usage import more_usage

_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class Writer:
    """Writes one answer; `head` is what its response says beside the output."""

    def __init__(self, call: Call, answer: Answer, head: dict[str, Any]) -> None:
        self._call = call
        self._answer = answer
        self._head = head
        self._number = -1  # of the latest event
        self._items: list[dict[str, Any]] = []  # the last one may be open
        self._open = False

    def whole(self) -> dict[str, Any]:
        answer = self._answer
        if answer.thinking:
            self._items.append(_item("reasoning", answer.thinking))
        if answer.text or not answer.tool_calls:
            self._items.append(_item("message", answer.text))
        self._items += [_call_item(each) for each in answer.tool_calls]
        for item in self._items:
            item["status"] = "completed"
        return self._ended()

    def _ended(self) -> dict[str, Any]:
        cut = self._answer.finish_reason in ("length", "context")
        return {
            **self._response("incomplete" if cut else "completed"),
            "completed_at": int(time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": self._usage(),
        }

    def _response(self, status: str) -> dict[str, Any]:
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": self._items,
            "usage": None,
        }

    def _usage(self) -> dict[str, Any]:
        stats = self._answer.stats
        return {
            "input_tokens": stats.prompt_tokens,
            "input_tokens_details": {"cached_tokens": stats.cached_tokens},
            "output_tokens": stats.new_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": stats.prompt_tokens + stats.new_tokens,
            **more_usage(stats),
        }

    async def events(self) -> AsyncIterator[bytes]:
        begun = self._response("in_progress")
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        async for batch in self._call.batches(self._answer):
            yield b"".join([part for event in batch for part in self._parts(event)])

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number, **fields}, kind)

    def _parts(self, event: AnswerEvent) -> list[bytes]:
        match event:
            case TextDelta() if event.text:
                return [*self._begin("message"), self._more("response.output_text.delta", event.text)]
            case ThinkingDelta() if event.text:
                return [*self._begin("reasoning"), self._more("response.reasoning_text.delta", event.text)]
            case ToolCallStart():
                item = _call_item(Called(event.id, event.name, ""))
                return [*self._close(), *self._add(item)]
            case ToolCallDelta():
                self._items[-1]["arguments"] += event.arguments
                where = self._where()
                return [self._event("response.function_call_arguments.delta", **where, delta=event.arguments)]
            case ToolCallEnd():
                return self._close()
            case Finished():
                empty = [] if self._items else self._begin("message")
                parts = [*empty, *self._close()]
                response = self._ended()
                return [*parts, self._event(f"response.{response['status']}", response=response)]
        return []

    def _begin(self, kind: str) -> list[bytes]:
        """Open an item with one part, unless one of this kind is open."""
        if self._open and self._items[-1]["type"] == kind:
            return []
        closing = self._close()
        item = _item(kind, "")
        part = item["content"].pop()
        opening = self._add(item)
        item["content"].append(part)
        added = self._event("response.content_part.added", **self._where(), content_index=0, part=part)
        return [*closing, *opening, added]

    def _add(self, item: dict[str, Any]) -> list[bytes]:
        self._items.append(item)
        self._open = True
        index = len(self._items) - 1
        return [self._event("response.output_item.added", output_index=index, item=item)]

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _more(self, kind: str, text: str) -> bytes:
        self._items[-1]["content"][0]["text"] += text
        more: dict[str, Any] = {"logprobs": []} if kind == "response.output_text.delta" else {}
        return self._event(kind, **self._where(), content_index=0, delta=text, **more)

    def _close(self) -> list[bytes]:
        """The events that complete the open item."""
        if not self._open:
            return []
        self._open = False
        item, where = self._items[-1], self._where()
        item["status"] = "completed"
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            parts = [self._event("response.function_call_arguments.done", **where, **done)]
        else:
            part = item["content"][0]
            message = item["type"] == "message"
            kind = "response.output_text.done" if message else "response.reasoning_text.done"
            more: dict[str, Any] = {"logprobs": []} if message else {}
            parts = [
                self._event(kind, **where, content_index=0, text=part["text"], **more),
                self._event("response.content_part.done", **where, content_index=0, part=part),
            ]
        index = where["output_index"]
        return [*parts, self._event("response.output_item.done", output_index=index, item=item)]


def _item(kind: str, text: str) -> dict[str, Any]:
    """A message or a reasoning item with one part."""
    head = {"id": f"{_PREFIX[kind]}_{uuid4().hex}", "type": kind, "status": "in_progress"}
    if kind == "reasoning":
        return {**head, "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {**head, "role": "assistant", "content": [part]}


def _call_item(called: Called) -> dict[str, Any]:
    return {
        "id": f"fc_{uuid4().hex}",
        "type": "function_call",
        "status": "in_progress",
        "call_id": called.id,
        "name": called.name,
        "arguments": called.arguments,
    }
