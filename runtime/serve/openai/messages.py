"""Messages as OpenAI's clients send them, checked and in the shape that chat templates read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..http.problems import Problem

ROLES = {"system", "developer", "user", "assistant", "tool"}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_OTHER_PARTS = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "input_audio": "audio",
    "file": "files",
    "input_file": "files",
    "video_url": "videos",
}
MOST_MESSAGES = 10_000


def checked_messages(messages: Sequence[Any], where: str = "messages") -> list[dict[str, Any]]:
    """The messages, contents as text. Problem 400 names what is wrong, such as an image: nothing here reads
    one, and no address in a message is ever fetched."""
    if not messages:
        raise Problem(400, f"{where} must not be empty", where, "invalid_value")
    if len(messages) > MOST_MESSAGES:
        raise Problem(400, f"{where} has more than {MOST_MESSAGES} messages", where, "invalid_value")
    return [_message(message, f"{where}[{i}]") for i, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise Problem(400, f"{where} must be an object with role and content", where, "invalid_value")
    role = message.get("role")
    if role not in ROLES:
        known = ", ".join(sorted(ROLES))
        raise Problem(400, f"{where}.role must be one of {known}, not {role!r:.40}", where, "invalid_value")
    calls = message.get("tool_calls")
    if message.get("content") is None and not (role == "assistant" and calls):
        raise Problem(400, f"{where} has no content", f"{where}.content", "invalid_value")
    found = {key: value for key, value in message.items() if value is not None}
    found["role"] = "system" if role == "developer" else role
    found["content"] = text_of(message.get("content"), f"{where}.content")
    if "tool_calls" in found:
        _check_calls(calls, f"{where}.tool_calls")
    return found


def text_of(content: Any, where: str) -> str:
    """The text of a content: null, a text, or a list of parts. Problem 400 for parts that are no text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Problem(400, f"{where} must be a text or a list of parts", where, "invalid_value")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _OTHER_PARTS:
            what = _OTHER_PARTS[kind]
            raise Problem(
                400, f"{where}[{i}]: {what} are not supported, only text", where, "unsupported_content"
            )
        text = part.get(_TEXT_PARTS[kind]) if kind in _TEXT_PARTS else None
        if not isinstance(text, str):
            raise Problem(400, f"{where}[{i}] must be a part with a text", where, "invalid_value")
        texts.append(text)
    return "".join(texts)


def _check_calls(calls: Any, where: str) -> None:
    if not isinstance(calls, list):
        raise Problem(400, f"{where} must be a list", where, "invalid_value")
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Problem(400, f"{where}[{i}] must have a function with a name", where, "invalid_value")
        if not isinstance(function.get("arguments", ""), str | dict):
            raise Problem(400, f"{where}[{i}]: arguments must be JSON text", where, "invalid_value")
