"""Harmony, the format of gpt-oss: an answer is a sequence of messages, each with a header.

    <|channel|>analysis<|message|>Let me see …<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": …}
    <|call|>
    <|start|>assistant<|channel|>final<|message|>It is 21 °C.<|return|>

What is in the channel analysis is thinking; a message to=functions.… is a call; all others are text. Source:
https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re

from ..parts import Thinking
from ..stream import Malformed, Steps, Stream
from .json_calls import json_arguments

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"  # what begins thinking
_ENDS = (END, CALL, RETURN, START)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
BETWEEN = "\n\n"  # two messages of the same kind


def harmony_messages(stream: Stream, calls: bool) -> Steps[None]:
    """Read an answer; `calls`: messages to functions are calls, else they are text."""
    n_thoughts = 0
    mark = ""  # that ended the message before
    while True:
        if mark != START and not (yield from _begins_with_header(stream)):
            mark = yield from stream.text_until(_ENDS, trim=False)
            if not mark:
                return
            continue
        header: list[str] = []
        mark = yield from stream.pass_until((MESSAGE, *_ENDS), header.append)
        if mark == MESSAGE:
            is_thought, mark = yield from _message(stream, "".join(header), calls, n_thoughts)
            n_thoughts += is_thought
        if not mark:
            return


def _begins_with_header(stream: Stream) -> Steps[bool]:
    """Whether a header comes, or text without one, as behind the beginning of an answer that was given."""
    for mark in (*_ENDS, CHANNEL, MESSAGE, CONSTRAIN, " to=", "to="):
        if (yield from stream.starts_with(mark)):
            return True
    return not (yield from stream.peek())


def _message(stream: Stream, header: str, calls: bool, n_thoughts: int) -> Steps[tuple[bool, str]]:
    """Read the content of a message and the mark that ends it. Whether it is thinking, and the mark."""
    recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
    if recipient and calls:
        is_call = yield from stream.attempt(_call(stream, recipient[1]), header + MESSAGE)
        mark = yield from stream.skip(*_ENDS)
        if not mark and not is_call:
            mark = yield from stream.text_until(_ENDS, trim=False)
        return False, mark
    if channel and channel[1] == "analysis":
        if n_thoughts:
            stream.parts.append(Thinking(BETWEEN))
        return True, (yield from stream.thinking_until(_ENDS))
    if stream.n_text:
        stream.give_text(BETWEEN)
    return False, (yield from stream.text_until(_ENDS, trim=False))


def _call(stream: Stream, recipient: str) -> Steps[None]:
    call = stream.new_call()
    call.named(recipient)
    yield from json_arguments(stream, call)
    yield from stream.space()
    for mark in _ENDS:
        if (yield from stream.starts_with(mark)):
            break
    else:
        if (yield from stream.peek()):
            raise Malformed
    call.end()
