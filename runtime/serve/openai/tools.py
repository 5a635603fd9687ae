"""Tools and their choice as OpenAI's clients send them, and how much reasoning is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..http.problems import Problem

MOST_TOOLS = 256
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)


def checked_tools(tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The tools in the shape of chat completions, whichever of OpenAI's two they came in; None for none.
    Problem 400 for others than functions, since this server runs nothing itself."""
    if not tools:
        return None
    if len(tools) > MOST_TOOLS:
        raise Problem(400, f"there are more than {MOST_TOOLS} tools", "tools", "invalid_value")
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise Problem(
            400, f"{where}: a tool must be a function, not {tool.get('type')!r:.60}", where, "invalid_value"
        )
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Problem(400, f"{where} must have a name of letters, digits, _ and -", where, "invalid_value")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise Problem(400, f"{where}: parameters must be a JSON schema", where, "invalid_value")
    found: dict[str, Any] = {"name": name}
    if isinstance(function.get("description"), str):
        found["description"] = function["description"]
    found["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": found}


def tool_choice(choice: str | dict[str, Any] | None) -> str | None:
    """The choice: "auto", "none", "required", the name of a function, or None if nothing is said."""
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    if isinstance(choice, dict):
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, dict) else None
        if choice.get("type") == "function" and isinstance(name, str):
            return name
    raise Problem(
        400, 'tool_choice must be "auto", "none", "required" or a function', "tool_choice", "invalid_value"
    )


def thinks(effort: str | None) -> bool | None:
    """Whether the model may think first: levels of effort are all the same to it, but for none."""
    levels = {"none": False, "minimal": False, "low": True, "medium": True, "high": True, "xhigh": True}
    if effort is None:
        return None
    if effort not in levels:
        raise Problem(
            400, f"reasoning_effort must be one of {', '.join(levels)}", "reasoning_effort", "invalid_value"
        )
    return levels[effort]
