"""Calls of Command R and its successors.

<|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}
]<|END_ACTION|>

Action: ```json
[{"tool_name": "get_weather", "parameters": {"city": "Paris"}}]
```
"""

from __future__ import annotations

from ..stream import Steps, Stream
from .json_calls import json_calls

OPEN, CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"
OLD_OPEN, OLD_CLOSE = "Action:", "```"


def cohere_calls(stream: Stream) -> Steps[None]:
    """Read what follows <|START_ACTION|>, and the closing mark if it comes."""
    yield from json_calls(stream, (CLOSE,))


def old_cohere_calls(stream: Stream) -> Steps[None]:
    """Read what follows Action: in an answer of Command R, and the closing fence if it comes."""
    yield from stream.space()
    yield from stream.expect("```json")
    yield from json_calls(stream, (OLD_CLOSE,))
