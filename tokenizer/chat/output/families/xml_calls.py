"""Calls in tags, a tag for each argument, as Qwen3-Coder, Seed-OSS and MiniMax-M2 write them.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Values are written without quotes; the schemas of the tools say which of them are texts. Where they do not,
what is JSON counts as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..stream import Call, Malformed, Steps, Stream
from ..tools import escaped, json_of


@dataclass(frozen=True)
class Style:
    """The tags of a family: what stands in front of a function's name and behind it, and so on. `padded`: see
    `bare_value`."""

    function: tuple[str, str]
    function_end: str
    parameter: tuple[str, str]
    parameter_end: str
    padded: bool = True


FUNCTION_STYLE = Style(("<function=", ">"), "</function>", ("<parameter=", ">"), "</parameter>")
INVOKE_STYLE = Style(('<invoke name="', '">'), "</invoke>", ('<parameter name="', '">'), "</parameter>")


def xml_calls(stream: Stream, style: Style, closer: str) -> Steps[None]:
    """Read calls, and the tag `closer` if it comes."""
    yield from xml_call(stream, style)
    while True:
        yield from stream.space()
        if not (yield from stream.starts_with(style.function[0])):
            break
        yield from xml_call(stream, style)
    yield from stream.skip(closer)


def xml_call(stream: Stream, style: Style) -> Steps[None]:
    """Read a call."""
    yield from stream.space()
    yield from stream.expect(style.function[0])
    call = stream.new_call()
    call.named((yield from tag_name(stream, style.function[1])))
    yield from xml_arguments(stream, style, call)


def xml_arguments(stream: Stream, style: Style, call: Call) -> Steps[None]:
    """Read the arguments of a call and the tag that closes it."""
    call.add("{")
    n = 0
    while True:
        yield from stream.space()
        if (yield from stream.skip(style.function_end)):
            break
        yield from stream.expect(style.parameter[0])
        key = yield from tag_name(stream, style.parameter[1])
        call.add((", " if n else "") + json.dumps(key, ensure_ascii=False) + ": ")
        yield from bare_value(stream, call, key, style.parameter_end, style.padded)
        n += 1
    call.add("}")
    call.end()


def tag_name(stream: Stream, end: str) -> Steps[str]:
    """Read a name up to `end`, which is read too."""
    pieces: list[str] = []
    if not (yield from stream.pass_until((end, "\n", "<"), pieces.append)).startswith(end):
        raise Malformed
    return "".join(pieces).strip()


def bare_value(stream: Stream, call: Call, key: str, end: str, padded: bool = False) -> Steps[None]:
    """Read a value without quotes up to `end` and past it, and give it as JSON: texts as they come.

    With `padded` a line end at its beginning and one at its end do not count.
    """
    assert call.name is not None
    if padded:
        yield from stream.skip("\n", "\r\n")
    takes_text = stream.tools.takes_text(call.name, key)
    if takes_text:
        call.add('"')
        writer = _WithoutLastLineEnd(call) if padded else None
        give = writer.write if writer else lambda text: call.add(escaped(text))
        mark = yield from stream.pass_until((end,), give)
        call.add('"')
    else:
        pieces: list[str] = []
        mark = yield from stream.pass_until((end,), pieces.append)
        value = "".join(pieces)
        call.add(json_of(value.removesuffix("\n") if padded else value))
    if not mark:
        raise Malformed


class _WithoutLastLineEnd:
    """Gives the inside of a JSON string, without a line end at its end."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._held = ""

    def write(self, text: str) -> None:
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        if text := text.removesuffix("\n"):
            self._call.add(escaped(text))
