"""Calls in a section of their own between special tokens, as DeepSeek and Kimi K2 write them.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
```json
{"city": "Paris"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>…

<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>
{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

from collections.abc import Sequence

from ..stream import Malformed, Steps, Stream
from .json_calls import json_arguments


def _mark(words: str) -> str:
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


OPEN, CLOSE = _mark("tool calls begin"), _mark("tool calls end")
CALL, SEPARATOR, CALL_END = _mark("tool call begin"), _mark("tool sep"), _mark("tool call end")
KIMI_OPEN, KIMI_CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALL, KIMI_ARGUMENTS, KIMI_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_FENCES = ("```json", "```")


def deepseek_calls(stream: Stream) -> Steps[None]:
    """Read what follows the beginning of a section, and its end if it comes."""
    while True:
        yield from stream.space()
        if not (yield from stream.skip(CALL)):
            break
        name = yield from _until(stream, (SEPARATOR,))
        if name.strip() == "function":  # V3 and R1 name the kind of tool in front
            name = yield from _until(stream, ("\n", *_FENCES, "{"), keep="{")
        call = stream.new_call()
        call.named(name)
        yield from stream.space()
        yield from stream.skip(*_FENCES)
        yield from json_arguments(stream, call)
        call.end()
        yield from stream.space()
        yield from stream.skip("```")
        yield from stream.space()
        yield from stream.skip(CALL_END)
    yield from stream.skip(CLOSE)


def kimi_calls(stream: Stream) -> Steps[None]:
    """Read what follows the beginning of a section of Kimi K2, and its end if it comes."""
    while True:
        yield from stream.space()
        if not (yield from stream.skip(KIMI_CALL)):
            break
        id_ = (yield from _until(stream, (KIMI_ARGUMENTS,))).strip()
        call = stream.new_call()
        call.id = id_
        call.named(id_.rpartition(":")[0] or id_)
        yield from json_arguments(stream, call)
        call.end()
        yield from stream.space()
        yield from stream.skip(KIMI_END)
    yield from stream.skip(KIMI_CLOSE)


def _until(stream: Stream, marks: Sequence[str], keep: str = "") -> Steps[str]:
    """Read up to one of `marks` and past it. Malformed if the text ends before."""
    pieces: list[str] = []
    mark = yield from stream.pass_until(marks, pieces.append)
    if not mark or mark == keep:
        raise Malformed
    return "".join(pieces)
