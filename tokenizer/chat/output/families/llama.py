"""Calls that begin an answer without any mark, as Llama 3 writes them, in JSON or like Python.

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    [get_weather(city="Paris"), get_time(zone="CET")]

They count only where the name is one of a tool, so that an answer in JSON stays an answer. A <|python_tag|>
in front, which Llama 3.1 writes at times, is a mark.
"""

from __future__ import annotations

from ..stream import Malformed, Steps, Stream
from .json_calls import json_arguments, json_calls
from .python_calls import python_calls
from .xml_calls import FUNCTION_STYLE, tag_name, xml_arguments

TAG = "<|python_tag|>"
PYTHON_OPEN, PYTHON_CLOSE = "<|python_start|>", "<|python_end|>"  # Llama 4
FUNCTION, FUNCTION_END = "<function=", "</function>"


def bare_calls(stream: Stream) -> Steps[None]:
    """Read calls at the beginning of an answer. Raises Malformed as soon as it is none."""
    beginning = yield from stream.peek_after_space()
    if beginning == "{":
        yield from json_calls(stream, known_only=True)
    elif beginning == "[":
        if (yield from _is_json_array(stream)):
            yield from json_calls(stream, known_only=True)
        else:
            yield from python_calls(stream, known_only=True)
    else:
        raise Malformed


def tagged_calls(stream: Stream, closers: tuple[str, ...] = ()) -> Steps[None]:
    """Read calls behind a mark, in JSON or like Python, and one of `closers` if one comes."""
    beginning = yield from stream.peek_after_space()
    if beginning == "{" or (beginning == "[" and (yield from _is_json_array(stream))):
        yield from json_calls(stream, closers)
    else:
        yield from python_calls(stream, closers)


def function_tag(stream: Stream) -> Steps[None]:
    """Read what follows <function= in <function=get_weather>{"city": "Paris"}</function>, or in a call of
    Qwen3-Coder, which forgets the tag in front of that at times."""
    call = stream.new_call()
    call.named((yield from tag_name(stream, ">")))
    if (yield from stream.peek_after_space()) != "{":
        yield from xml_arguments(stream, FUNCTION_STYLE, call)
        return
    yield from json_arguments(stream, call)
    call.end()
    yield from stream.space()
    yield from stream.skip(FUNCTION_END)


def _is_json_array(stream: Stream) -> Steps[bool]:
    """Whether the array that comes is one of objects."""
    for n in range(2, 32):
        if not (yield from stream.need(n)):
            return False
        char = stream.ahead(n)[-1]
        if not char.isspace():
            return char == "{"
    return False
