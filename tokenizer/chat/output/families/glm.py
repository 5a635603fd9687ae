"""Calls of GLM-4.5 and its successors, and those of GLM-4.

<tool_call>get_weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
</tool_call>
"""

from __future__ import annotations

import json

from ..stream import Malformed, Steps, Stream
from .xml_calls import bare_value

CLOSE = "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"


def glm_call(stream: Stream) -> Steps[None]:
    """Read a call behind <tool_call>, and the closing tag."""
    name: list[str] = []
    mark = yield from stream.pass_until(("\n", KEY, CLOSE), name.append)
    if not mark or "<" in "".join(name):
        raise Malformed
    call = stream.new_call()
    call.named("".join(name))
    n = 0
    while mark != CLOSE:
        if mark != KEY:
            yield from stream.space()
            mark = yield from stream.skip(KEY, CLOSE)
            if not mark:
                raise Malformed
            continue
        key: list[str] = []
        if not (yield from stream.pass_until((KEY_END,), key.append)):
            raise Malformed
        yield from stream.space()
        yield from stream.expect(VALUE)
        name_of_key = "".join(key).strip()
        call.add(("{" if n == 0 else ", ") + json.dumps(name_of_key, ensure_ascii=False) + ": ")
        yield from bare_value(stream, call, name_of_key, VALUE_END)
        n += 1
        mark = "\n"
    if n:
        call.add("}")
    call.end()
