"""Calls that look like Python: [get_weather(city="Paris", days=3), …], as Llama, LFM2 and Gemma write them.

Arguments become JSON as they come. The values are Python's literals: texts, numbers, constants, lists, tuples
and dictionaries; JSON's constants are taken as well.
"""

from __future__ import annotations

import json
import re

from ..stream import Call, Malformed, Steps, Stream
from ..tools import escaped, is_double
from .json_calls import DEEPEST, Give, whole_pair

_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_KEY = re.compile(r"[A-Za-z_]\w*")
_SCALAR = re.compile(r"[-+.\w]*")
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_CONSTANTS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_PLAIN = re.compile(r"[^\"'\\\n]+")
_QUOTES = ('"""', "'''", '"', "'")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_HEX = {"x": 2, "u": 4, "U": 8}


def python_calls(stream: Stream, closers: tuple[str, ...] = (), known_only: bool = False) -> Steps[None]:
    """Read calls: one, several on lines of their own, or a list of them, and one of `closers` if one comes.

    With `known_only` their names must be those of tools.
    """
    if (yield from stream.peek_after_space()) == "[":
        stream.take(1)
        while True:
            yield from python_call(stream, known_only)
            yield from stream.space()
            mark = yield from stream.skip("]", ",")
            if not mark:
                raise Malformed
            yield from stream.space()
            if mark == "]" or (yield from stream.skip("]")):
                break
    else:
        yield from python_call(stream, known_only)
        while not known_only and _NAME.match((yield from stream.peek_after_space())):
            yield from python_call(stream, known_only)
    yield from stream.space()
    yield from stream.skip(*closers)


def python_call(stream: Stream, known_only: bool = False) -> Steps[None]:
    """Read a call, get_weather(city="Paris")."""
    yield from stream.space()
    name = yield from stream.match(_NAME)
    if not name or (known_only and name not in stream.tools):
        raise Malformed
    yield from stream.expect("(")
    call = stream.new_call()
    call.named(name)
    yield from _arguments(stream, call, stream.tools.parameters(name))
    call.end()


def _arguments(stream: Stream, call: Call, parameters: list[str]) -> Steps[None]:
    """The arguments and the closing bracket. Those without a key are the parameters in their order."""
    call.add("{")
    n = 0
    while True:
        yield from stream.space()
        if (yield from stream.skip(")")):
            break
        if n:
            call.add(", ")
        key = yield from _key(stream)
        if key is None:
            if n >= len(parameters):
                raise Malformed
            key = parameters[n]
        call.add(json.dumps(key, ensure_ascii=False) + ": ")
        yield from python_value(stream, call.add)
        n += 1
        yield from stream.space()
        if not (yield from stream.skip(",")):
            yield from stream.expect(")")
            break
    call.add("}")


def _key(stream: Stream) -> Steps[str | None]:
    """The key and the equals sign in front of a value, or None where there is none."""
    return (yield from stream.skip_matching(_KEY, "="))


def python_value(stream: Stream, give: Give, depth: int = 0) -> Steps[None]:
    """Read a literal of Python's; its JSON goes to `give` as it comes. Raises Malformed for anything else."""
    opening = yield from stream.peek_after_space()
    if depth > DEEPEST:
        raise Malformed
    quote = yield from stream.skip(*_QUOTES)
    if quote:
        give('"')
        yield from _text(stream, give, quote)
        while True:  # texts behind one another are one text
            yield from stream.space()
            quote = yield from stream.skip(*_QUOTES)
            if not quote:
                break
            yield from _text(stream, give, quote)
        give('"')
    elif opening and opening in "[({":
        stream.take(1)
        yield from _items(stream, give, opening, depth)
    else:
        scalar = yield from stream.match(_SCALAR)
        if scalar in _CONSTANTS:
            give(_CONSTANTS[scalar])
        elif _NUMBER.fullmatch(scalar) and is_double(scalar):
            number = float(scalar) if re.search(r"[.eE]", scalar) else int(scalar)
            give(json.dumps(number))
        else:
            raise Malformed


def _items(stream: Stream, give: Give, opening: str, depth: int) -> Steps[None]:
    """What stands in brackets, and the closing one."""
    closing = {"[": "]", "(": ")", "{": "}"}[opening]
    give("{" if opening == "{" else "[")
    first = True
    while True:
        yield from stream.space()
        if (yield from stream.skip(closing)):
            break
        if not first:
            give(", ")
        first = False
        if opening == "{":
            if (yield from stream.peek()) not in ('"', "'"):
                raise Malformed
            yield from python_value(stream, give, depth + 1)
            yield from stream.space()
            yield from stream.expect(":")
            give(": ")
        yield from python_value(stream, give, depth + 1)
        yield from stream.space()
        if not (yield from stream.skip(",")):
            yield from stream.expect(closing)
            break
    give("}" if opening == "{" else "]")


def _text(stream: Stream, give: Give, quote: str) -> Steps[None]:
    """A text behind its opening quote, and the closing one, as the inside of a JSON string."""
    while True:
        char = yield from stream.peek()
        if not char:
            raise Malformed
        if (yield from stream.skip(quote)):
            return
        if char == "\\":
            yield from _escape(stream, give)
        elif char in "\"'\n":
            give(escaped(stream.take(1)))
        else:
            give(escaped(stream.take_matching(_PLAIN)))


def _escape(stream: Stream, give: Give) -> Steps[None]:
    if not (yield from stream.need(2)):
        raise Malformed
    escape = stream.take(2)
    kind = escape[1]
    if kind in _HEX:
        if not (yield from stream.need(_HEX[kind])):
            raise Malformed
        digits = stream.take(_HEX[kind])
        if not re.fullmatch(r"[0-9a-fA-F]+", digits) or int(digits, 16) > 0x10FFFF:
            raise Malformed
        give((yield from _character(stream, digits)))
    else:  # Python leaves a backslash that escapes nothing where it is
        give(escaped(_ESCAPES.get(kind, kind if kind in "\\'\"" else escape)))


def _character(stream: Stream, digits: str) -> Steps[str]:
    """A character by its number, in hexadecimal, as it stands in a JSON string. A second escape that makes a
    pair of surrogates with it is read, which is none to Python, but to those who write it."""
    code = int(digits, 16)
    if not 0xD800 <= code <= 0xDFFF:
        return escaped(chr(code))
    return (yield from whole_pair(stream, f"{code:04x}")) or "\ufffd"
