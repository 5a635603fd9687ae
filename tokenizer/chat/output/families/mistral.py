"""Calls of Mistral's models, old and new.

[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "aBcDeFgH1"}]
[TOOL_CALLS]get_weather[CALL_ID]aBcDeFgH1[ARGS]{"city": "Paris"}
"""

from __future__ import annotations

from ..stream import Malformed, Steps, Stream
from .json_calls import json_arguments, json_calls

OPEN, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def mistral_calls(stream: Stream) -> Steps[None]:
    """Read what follows [TOOL_CALLS]."""
    beginning = yield from stream.peek_after_space()
    if not beginning or beginning in "[{":
        yield from json_calls(stream)
        return
    name: list[str] = []
    mark = yield from stream.pass_until((ID, ARGUMENTS, "{", "\n"), name.append)
    call = stream.new_call()
    if mark == ID:
        id_: list[str] = []
        mark = yield from stream.pass_until((ARGUMENTS, "\n"), id_.append)
        call.id = "".join(id_).strip()
    if mark != ARGUMENTS:
        raise Malformed
    call.named("".join(name))
    yield from json_arguments(stream, call)
    call.end()
