"""Messages of Anthropic's API, whose contents are blocks, in the shape that chat templates read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..http.problems import Problem
from ..http.sending import encode

_OTHER_BLOCKS = {
    "image": "images",
    "document": "documents",
    "search_result": "search results",
    "container_upload": "uploads",
}


def conversation(system: Any, messages: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages in OpenAI's shape: results of tools are messages of their own. Problem 400 for what
    cannot be read, such as an image."""
    found: list[dict[str, Any]] = []
    if system:
        found.append({"role": "system", "content": _text(system, "system")})
    if not messages:
        raise Problem(400, "messages must not be empty", "messages")
    for i, message in enumerate(messages):
        where = f"messages.{i}"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise Problem(400, f"{where}: the role must be user or assistant, not {role!r:.40}", where)
        blocks = _blocks(message.get("content"), where)
        found += _assistant(blocks, where) if role == "assistant" else _user(role, blocks, where)
    return found


def _blocks(content: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise Problem(400, f"{where}: content must be a text or a list of blocks", where)
    for block in content:
        kind = block.get("type")
        if kind in _OTHER_BLOCKS:
            raise Problem(400, f"{where}: {_OTHER_BLOCKS[kind]} are not supported, only text", where)
    return content


def _text(content: Any, where: str) -> str:
    """The text of a content that has nothing else."""
    texts = []
    for block in _blocks(content, where):
        if block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise Problem(400, f"{where}: there must be blocks with a text only", where)
        texts.append(block["text"])
    return "".join(texts)


def _user(role: str, blocks: Sequence[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """A user's message; the results of tools in it come first, as Anthropic asks for."""
    results, texts = [], []
    for block in blocks:
        if block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str):
            text = _text(block.get("content") or "", where)
            results.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": text})
        else:
            texts.append(_text([block], where))
    return [*results, {"role": role, "content": "".join(texts)}] if texts or not results else results


def _assistant(blocks: Sequence[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use" and isinstance(block.get("name"), str):
            arguments = encode(block.get("input") or {}).decode()
            function = {"name": block["name"], "arguments": arguments}
            calls.append({"id": str(block.get("id", "")), "type": "function", "function": function})
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind != "redacted_thinking":
            texts.append(_text([block], where))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]
