"""Running the functions that a model calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from .events import ToolCall
from .functions import Tool

LONGEST_RESULT = 1 << 16  # characters; a model's context holds no more
DEFAULT_SECONDS = 60.0


def run_call(call: ToolCall, tool: Tool | None, seconds: float = DEFAULT_SECONDS) -> str:
    """The result of a call, as text for the model: that of the function, or what went wrong.

    A function that takes longer than `seconds` is left behind: its thread cannot be stopped.
    """
    if tool is None or tool.function is None:
        return f"error: there is no function {call.name}"
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError as problem:
        return f"error: the arguments are no JSON: {problem}"
    done: list[str] = []
    function = tool.function

    def work() -> None:
        done.append(_result(function, arguments))

    thread = threading.Thread(target=work, name=f"tool {call.name}", daemon=True)
    thread.start()
    thread.join(seconds)
    return done[0] if done else f"error: {call.name} took longer than {seconds:g} seconds"


def _result(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    try:
        result = function(**arguments)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the model is told, and may do better
        return f"error: {type(problem).__name__}: {problem}"[:LONGEST_RESULT]
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_RESULT else text[:LONGEST_RESULT] + " … (cut)"


def result_message(call: ToolCall, result: str) -> dict[str, Any]:
    """The message that gives a call's result to the model."""
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result}
