"""Calls in JSON, {"name": …, "arguments": {…}}, the commonest form, behind marks of many families."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Generator
from typing import Any

from ..stream import Call, Malformed, Steps, Stream
from ..tools import escaped, is_double, strict_json

NAMES = ("name", "tool_name", "function_name")
ARGUMENTS = ("arguments", "parameters", "args", "params")
KNOWN = (*NAMES, *ARGUMENTS, "type", "id", "function", "tool_call_id", "call_id")
DEEPEST = 64  # levels of brackets
_SEPARATORS = ("", ";", "; ", ";\n", ",", ", ", ",\n")  # between two calls
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(r"[-+.\w]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_FOUR_DIGITS = re.compile(r"[0-9a-fA-F]{4}")
_SURROGATE = re.compile(r"[dD][89a-fA-F][0-9a-fA-F]{2}")
_HIGH = re.compile(r"[dD][89abAB][0-9a-fA-F]{2}")
_LOW_ESCAPE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")

Give = Callable[[str], Any]


def _ignore(text: str) -> None:
    """For values that nobody wants."""


def is_number(scalar: str) -> bool:
    """Whether a text is a number of JSON, and no larger than a double."""
    return bool(_NUMBER.fullmatch(scalar)) and is_double(scalar)


def json_value(stream: Stream, give: Give, depth: int = 0) -> Steps[None]:
    """Read a JSON value; its text goes to `give` as it comes, control characters in strings escaped.

    Raises Malformed for anything else, and at the end of the text.
    """
    opening = yield from stream.peek()
    if depth > DEEPEST:
        raise Malformed
    if opening == '"':
        yield from _string(stream, give)
    elif opening and opening in "{[":
        give(stream.take(1))
        yield from _items(stream, give, opening, depth)
    else:
        scalar = yield from stream.match(_SCALAR)
        if scalar not in ("true", "false", "null") and not is_number(scalar):
            raise Malformed
        give(scalar)


def _items(stream: Stream, give: Give, opening: str, depth: int) -> Steps[None]:
    """What stands in the brackets of an object or an array, and the closing one."""
    closing = "}" if opening == "{" else "]"
    give((yield from stream.space()))
    if (yield from stream.skip(closing)):
        give(closing)
        return
    while True:
        if opening == "{":
            yield from _string(stream, give)
            give((yield from stream.space()))
            yield from stream.expect(":")
            give(":")
            give((yield from stream.space()))
        yield from json_value(stream, give, depth + 1)
        give((yield from stream.space()))
        mark = yield from stream.skip(",", closing)
        give(mark)
        if mark != ",":
            if not mark:
                raise Malformed
            return
        give((yield from stream.space()))


def _string(stream: Stream, give: Give) -> Steps[None]:
    """A string with its quotes."""
    yield from stream.expect('"')
    give('"')
    while True:
        char = yield from stream.peek()
        if not char:
            raise Malformed
        if char == '"':
            give(stream.take(1))
            return
        if char == "\\":
            yield from _escape(stream, give)
        elif char < " ":
            give(escaped(stream.take(1)))  # models write line ends as they are
        else:
            give(stream.take_matching(_PLAIN))


def _escape(stream: Stream, give: Give) -> Steps[None]:
    if not (yield from stream.need(2)):
        raise Malformed
    escape = stream.take(2)
    if escape[1] == "u":
        if not (yield from stream.need(4)):
            raise Malformed
        digits = stream.take(4)
        if not _FOUR_DIGITS.fullmatch(digits):
            raise Malformed
        escape = (yield from whole_pair(stream, digits)) or r"\ufffd"
    elif escape[1] == "'":  # no escape of JSON's, and a common slip
        escape = "'"
    elif escape[1] not in '"\\/bfnrt':
        raise Malformed
    give(escape)


def whole_pair(stream: Stream, digits: str) -> Steps[str]:
    """The escape of the UTF-16 unit `digits`, which is read, with the second one of a pair, which is read as
    well; "" for half a pair."""
    if _HIGH.fullmatch(digits) and (yield from stream.need(6)) and _LOW_ESCAPE.fullmatch(stream.ahead(6)):
        return rf"\u{digits}{stream.take(6)}"
    return "" if _SURROGATE.fullmatch(digits) else rf"\u{digits}"


def json_text(stream: Stream) -> Steps[Any]:
    """Read a whole JSON value, and return what it means."""
    pieces: list[str] = []
    yield from json_value(stream, pieces.append)
    return json.loads("".join(pieces))


def json_arguments(stream: Stream, call: Call) -> Steps[None]:
    """Read the arguments of a call: an object, the text of one in a string, or null for none."""
    opening = yield from stream.peek_after_space()
    if opening == "{":
        yield from json_value(stream, call.add)
        return
    value = yield from json_text(stream)
    try:
        if isinstance(value, str):
            value = json.loads(value) if value.strip() else {}
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise Malformed
        call.add(strict_json(value))
    except (ValueError, RecursionError):
        raise Malformed from None


def json_call(stream: Stream, known_only: bool = False) -> Steps[None]:
    """Read a call: an object with a name and arguments, in either order.

    With `known_only` its name must be one of the tools', and it has no keys but those of calls.
    """
    call = stream.new_call()
    yield from _fields(stream, call, known_only)
    call.end()


def _fields(stream: Stream, call: Call, known_only: bool, within: bool = False) -> Steps[None]:
    """The members of a call's object, or of the one `within` it that stands under "function"."""
    yield from stream.space()
    yield from stream.expect("{")
    while True:
        if (yield from stream.peek_after_space()) != '"':
            raise Malformed
        key = yield from json_text(stream)
        yield from stream.space()
        yield from stream.expect(":")
        value = yield from stream.peek_after_space()
        if key in NAMES or (key == "function" and value == '"'):
            name = yield from json_text(stream)
            if known_only and name not in stream.tools:
                raise Malformed
            call.named(name)
        elif key == "function" and value == "{" and not within:
            yield from _fields(stream, call, known_only, within=True)
        elif key in ARGUMENTS:
            if call.has_arguments:
                raise Malformed
            yield from json_arguments(stream, call)
        elif known_only and key not in KNOWN:
            raise Malformed
        else:
            yield from json_value(stream, _ignore)
        yield from stream.space()
        if (yield from stream.skip("}")):
            return
        yield from stream.expect(",")


def json_calls(
    stream: Stream, closers: Collection[str] = (), known_only: bool = False
) -> Generator[None, None, None]:
    """Read calls: one, several behind one another, or an array of them, and one of `closers` if one comes."""
    if (yield from stream.peek_after_space()) == "[":
        yield from _array_of_calls(stream, known_only)
    else:
        yield from json_call(stream, known_only)
        while (yield from _another(stream)):
            yield from json_call(stream, known_only)
    yield from stream.space()
    yield from stream.skip(*closers)


def _another(stream: Stream) -> Steps[bool]:
    """Whether another call follows; what separates them is read then."""
    yield from stream.space()
    for mark in _SEPARATORS:
        if (yield from stream.starts_with(mark + "{")):
            stream.take(len(mark))
            return True
    return False


def _array_of_calls(stream: Stream, known_only: bool) -> Steps[None]:
    yield from stream.expect("[")
    if (yield from stream.peek_after_space()) == "]" and not known_only:
        stream.take(1)
        return
    while True:
        yield from json_call(stream, known_only)
        yield from stream.space()
        if (yield from stream.skip("]")):
            return
        yield from stream.expect(",")
