"""The input of the responses API, items of several kinds, as messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..http.problems import Problem
from .messages import checked_messages, text_of


def input_messages(instructions: str | None, given: str | Sequence[Any]) -> list[dict[str, Any]]:
    """The conversation. Calls that stand in a row are one message of the assistant. Problem 400 for items
    that are no text."""
    found: list[dict[str, Any]] = []
    if instructions:
        found.append({"role": "system", "content": instructions})
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for i, item in enumerate(items):
        _add(found, item, f"input[{i}]")
    return checked_messages(found, "input")


def _add(found: list[dict[str, Any]], item: Any, where: str) -> None:
    """Add an item to the messages."""
    if not isinstance(item, dict):
        raise Problem(400, f"{where} must be an object", where, "invalid_value")
    match item.get("type", "message"):
        case "message":
            found.append({"role": item.get("role"), "content": item.get("content")})
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            called = {"id": item.get("call_id") or "", "type": "function", "function": function}
            last = found[-1] if found else {}
            if last.get("role") == "assistant":
                last.setdefault("tool_calls", []).append(called)
            else:
                found.append({"role": "assistant", "content": "", "tool_calls": [called]})
        case "function_call_output":
            content = text_of(item.get("output"), where)
            found.append({"role": "tool", "tool_call_id": item.get("call_id") or "", "content": content})
        case "reasoning":
            pass  # of an earlier turn, which templates leave out
        case kind:
            raise Problem(400, f"{where}: there is no item {kind!r:.60} here", where, "unsupported_content")
