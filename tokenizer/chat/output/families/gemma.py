"""Calls of Gemma 4 and FunctionGemma, and the code blocks of Gemma 3.

<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>

```tool_code
get_weather(city="Paris")
```
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ..stream import Malformed, Steps, Stream
from ..tools import escaped
from .json_calls import DEEPEST, Give, is_number
from .python_calls import python_calls

OPEN, CLOSE = "<|tool_call>", "<tool_call|>"
FUNCTION_OPEN, FUNCTION_CLOSE = "<start_function_call>", "<end_function_call>"
CODE_OPEN, CODE_CLOSE = "```tool_code", "```"
_QUOTES = ('<|"|>', "<escape>")
_NAME = re.compile(r"[\w.\-]*")
_KEY = re.compile(r"[^:{}\[\],<\n]*")
_SCALAR = re.compile(r"[^,{}\[\]<\n]*")


def gemma_call(stream: Stream) -> Steps[None]:
    """Read what follows an opening mark, and the closing one if it comes."""
    yield from stream.space()
    yield from stream.expect("call:")
    call = stream.new_call()
    call.named((yield from stream.match(_NAME)))
    yield from stream.space()
    yield from stream.expect("{")
    yield from _object(stream, call.add, 0)
    call.end()
    yield from stream.space()
    yield from stream.skip(CLOSE, FUNCTION_CLOSE)


def code_block(stream: Stream) -> Steps[None]:
    """Read calls behind ```tool_code, and the closing fence if it comes."""
    yield from python_calls(stream, (CODE_CLOSE,))


def _object(stream: Stream, give: Give, depth: int) -> Steps[None]:
    """The members of an object, and its closing bracket."""

    def member() -> Steps[None]:
        yield from stream.space()
        quote = yield from stream.skip(*_QUOTES)
        if quote:
            give('"')
            yield from _text(stream, give, quote)
            give('"')
        else:
            key = yield from stream.match(_KEY)
            give(json.dumps(key.strip().strip('"'), ensure_ascii=False))
        yield from stream.space()
        yield from stream.expect(":")
        give(": ")
        yield from _value(stream, give, depth + 1)

    yield from _listed(stream, give, "{}", member)


def _array(stream: Stream, give: Give, depth: int) -> Steps[None]:
    """The items of an array, and its closing bracket."""
    yield from _listed(stream, give, "[]", lambda: _value(stream, give, depth + 1))


def _listed(stream: Stream, give: Give, brackets: str, item: Callable[[], Steps[None]]) -> Steps[None]:
    """Items with commas between them, and the closing one of two brackets."""
    give(brackets[0])
    first = True
    while True:
        yield from stream.space()
        if (yield from stream.skip(brackets[1])):
            break
        if not first:
            yield from stream.expect(",")
            give(", ")
        first = False
        yield from item()
    give(brackets[1])


def _value(stream: Stream, give: Give, depth: int) -> Steps[None]:
    if depth > DEEPEST:
        raise Malformed
    yield from stream.space()
    quote = yield from stream.skip(*_QUOTES)
    if quote:
        give('"')
        yield from _text(stream, give, quote)
        give('"')
    elif (yield from stream.skip("{")):
        yield from _object(stream, give, depth)
    elif (yield from stream.skip("[")):
        yield from _array(stream, give, depth)
    else:
        scalar = (yield from stream.match(_SCALAR, longest=1 << 16)).strip()
        if not scalar or (yield from stream.peek()) == "":
            raise Malformed
        plain = scalar in ("true", "false", "null") or is_number(scalar)
        give(scalar if plain else json.dumps(scalar.strip('"'), ensure_ascii=False))


def _text(stream: Stream, give: Give, quote: str) -> Steps[None]:
    """A text up to the closing quote."""
    if not (yield from stream.pass_until((quote,), lambda text: give(escaped(text)))):
        raise Malformed
