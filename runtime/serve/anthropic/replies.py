"""Answers in the shape of Anthropic's messages: blocks, whole or as events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import msgspec

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
from ..call import Call
from ..http.sending import sse
from ..usage import more_usage

_REASONS = {
    "length": "max_tokens",
    "context": "model_context_window_exceeded",
    "stop_string": "stop_sequence",
    "tool_calls": "tool_use",
}  # others: "end_turn"


class Reply:
    """Writes one answer."""

    def __init__(self, call: Call, answer: Answer) -> None:
        self._call = call
        self._answer = answer
        self._id = f"msg_{uuid4().hex}"
        self._index = -1  # of the block that is open, or was last
        self._open = ""  # its type; "": none is open

    def whole(self) -> dict[str, Any]:
        answer = self._answer
        content: list[dict[str, Any]] = []
        if answer.thinking:
            content.append({"type": "thinking", "thinking": answer.thinking, "signature": ""})
        if answer.text or not answer.tool_calls:
            content.append({"type": "text", "text": answer.text})
        for each in answer.tool_calls:
            arguments = msgspec.json.decode(each.arguments or "{}")
            content.append({"type": "tool_use", "id": each.id, "name": each.name, "input": arguments})
        return self._message(content, **self._end(answer.finish_reason or ""), usage=self._usage())

    def _message(self, content: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._call.model_name}
        return {**head, "content": content, **more}

    def _end(self, reason: str) -> dict[str, Any]:
        return {
            "stop_reason": _REASONS.get(reason, "end_turn"),
            "stop_sequence": self._answer.stop_string if reason == "stop_string" else None,
        }

    def _usage(self) -> dict[str, Any]:
        stats = self._answer.stats
        return {
            "input_tokens": stats.prompt_tokens - stats.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": stats.cached_tokens,
            "output_tokens": stats.new_tokens,
            **more_usage(stats),
        }

    async def events(self) -> AsyncIterator[bytes]:
        begun = False
        async for batch in self._call.batches(self._answer):
            parts = []
            if not begun:  # what was cached is known now
                begun = True
                usage = {**self._usage(), "output_tokens": 0}
                message = self._message([], stop_reason=None, stop_sequence=None, usage=usage)
                parts.append(_event("message_start", message=message))
            parts += [part for event in batch for part in self._parts(event)]
            yield b"".join(parts)

    def _parts(self, event: AnswerEvent) -> list[bytes]:
        match event:
            case TextDelta() if event.text:
                opening = self._begin("text", {"type": "text", "text": ""})
                return [*opening, self._delta({"type": "text_delta", "text": event.text})]
            case ThinkingDelta() if event.text:
                opening = self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                return [*opening, self._delta({"type": "thinking_delta", "thinking": event.text})]
            case ToolCallStart():
                block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
                return self._begin("", block)
            case ToolCallDelta():
                return [self._delta({"type": "input_json_delta", "partial_json": event.arguments})]
            case ToolCallEnd():
                return self._close()
            case Finished():
                empty = self._begin("text", {"type": "text", "text": ""}) if self._index < 0 else []
                end = _event("message_delta", delta=self._end(event.reason), usage=self._usage())
                return [*empty, *self._close(), end, _event("message_stop")]
        return []

    def _begin(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        """Open a block, unless one of this kind is open; a tool call is always a new one."""
        if kind and self._open == kind:
            return []
        parts = self._close()
        self._index += 1
        self._open = kind or "tool_use"
        return [*parts, _event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> list[bytes]:
        if not self._open:
            return []
        self._open = ""
        return [_event("content_block_stop", index=self._index)]


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)
