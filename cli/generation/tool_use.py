"""Running what a model calls: asked first, shown, and given back to the model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..console import terminal
from ..console.safe_text import as_json, one_line

if TYPE_CHECKING:
    from ...runtime.answers.events import ToolCall
    from ...runtime.answers.functions import Tool

MOST_ROUNDS = 8  # answers with calls, one after the other
SHOWN = 400  # characters of a result
REFUSED = "error: the user does not want this function to be called"


class ToolUse:
    """The tools of a command, and which of them may run without a question. `yes`: all may. A function may
    take so many `seconds`."""

    def __init__(self, tools: Sequence[Tool], yes: bool, seconds: float) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._seconds = seconds
        self._yes = yes
        self._always: set[str] = set()

    def can_run(self, calls: Sequence[ToolCall]) -> bool:
        """Whether these calls are to be run: there are functions for all of them, and somebody agrees or can
        be asked."""
        known = all(call.name not in self._tools or self._tools[call.name].function for call in calls)
        return known and bool(self._tools) and (self._yes or _can_ask())

    def results(self, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        """The messages with the results of some calls, each shown and asked for."""
        from ...runtime.answers.running import result_message, run_call

        messages = []
        for call in calls:
            terminal.remark(f"→ {spelled(call)}")
            if call.name in self._tools and not self._allowed(call):
                result = REFUSED
            else:
                with terminal.status(f"running {call.name} …"):
                    result = run_call(call, self._tools.get(call.name), self._seconds)
            shown = one_line(result)
            terminal.remark(f"← {shown[:SHOWN]}{'…' if len(shown) > SHOWN else ''}")
            messages.append(result_message(call, result))
        return messages

    def _allowed(self, call: ToolCall) -> bool:
        if self._yes or call.name in self._always:
            return True
        while True:
            terminal.ask(f"run {call.name}? [y]es, [n]o, [a]lways: ")
            line = sys.stdin.readline()
            if not line:
                return False
            match line.strip().lower():
                case "y" | "yes":
                    return True
                case "n" | "no" | "":
                    return False
                case "a" | "always":
                    self._always.add(call.name)
                    return True


def _can_ask() -> bool:
    return terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stderr)


def spelled(call: ToolCall) -> str:
    """A call in one line, get_weather(city="Paris")."""
    arguments = json.loads(call.arguments)
    return one_line(
        f"{call.name}({', '.join(f'{key}={as_json(value)}' for key, value in arguments.items())})"
    )


def call_facts(call: ToolCall) -> dict[str, Any]:
    """A call as `-o json` and the lines of `run` have it."""
    return {"id": call.id, "name": call.name, "arguments": json.loads(call.arguments)}
