"""Calls between <tool_call> tags: JSON, as Hermes, Qwen, SmolLM3 and Granite 4 write it. The same tags
enclose the calls of Qwen3-Coder and GLM-4.5, which are recognised by what follows.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>
"""

from __future__ import annotations

from ..stream import Steps, Stream
from .glm import glm_call
from .json_calls import json_calls
from .xml_calls import FUNCTION_STYLE, xml_calls

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def tool_call(stream: Stream) -> Steps[None]:
    """Read what follows <tool_call>, and the closing tag if it comes."""
    beginning = yield from stream.peek_after_space()
    if not beginning or beginning in "{[":
        yield from json_calls(stream, (CLOSE,))
    elif beginning == "<":
        yield from xml_calls(stream, FUNCTION_STYLE, CLOSE)
    else:
        yield from glm_call(stream)
