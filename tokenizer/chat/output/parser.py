"""The parser of an answer: its text in pieces, in; its parts, out."""

from __future__ import annotations

from .families.harmony import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START, harmony_messages
from .families.llama import bare_calls
from .formats import PLAIN, WITHIN, OutputFormat
from .parts import Part, Text, Thinking
from .stream import Steps, Stream
from .tools import ToolSchemas

_HARMONY = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)


class OutputParser:
    """Takes an answer as it is written, in pieces of any size, and gives its parts.

        parser = OutputParser(output_format(template), ToolSchemas(tools))
        for piece in pieces:
            parts += parser.push(piece)
        parts += parser.finish()

    How the answer is cut into pieces makes no difference to the parts, joined. Special tokens come with
    `special`: they are marks or nothing. `begun`: the mark that begins thinking, if the prompt ends with it.
    Without `tools` nothing is a call.
    """

    def __init__(
        self, format: OutputFormat = PLAIN, tools: ToolSchemas | None = None, begun: str = ""
    ) -> None:
        self._stream = Stream(tools or ToolSchemas(), format.new_id)
        marks = [*format.thinking, *format.thinking.values(), *(_HARMONY if format.is_harmony else ())]
        if tools:
            marks += [*format.calls, *WITHIN]
        self._marks = marks
        self._reader = _answer(self._stream, format, bool(tools), begun, self._marks)
        next(self._reader, None)

    def push(self, text: str, special: bool = False) -> list[Part]:
        """The parts that are certain now that `text` was written, or a special token with that spelling."""
        if special and not any(text in mark for mark in self._marks):
            return []
        self._stream.add(text)
        return self._go_on()

    def finish(self) -> list[Part]:
        """The parts that are left, when no more text comes."""
        self._stream.ended = True
        return self._go_on()

    def _go_on(self) -> list[Part]:
        next(self._reader, None)
        parts, self._stream.parts = self._stream.parts, []
        return parts if len(parts) < 2 else _joined(parts)


def _joined(parts: list[Part]) -> list[Part]:
    """The same parts, texts and thoughts that follow one another as one."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + part.text)
        elif isinstance(part, Thinking) and isinstance(last, Thinking):
            joined[-1] = Thinking(last.text + part.text)
        else:
            joined.append(part)
    return joined


def _answer(stream: Stream, format: OutputFormat, calls: bool, begun: str, marks: list[str]) -> Steps[None]:
    """Read an answer to its end."""
    if format.is_harmony:
        yield from harmony_messages(stream, calls)
        return
    if begun:
        yield from stream.thinking_until((format.thinking[begun],))
    # Marks that are special tokens are no part of the text wherever they come; others that open thinking
    # count only in front of the text.
    strays = {mark for mark in marks if mark in format.special} | {*format.hidden}
    opening = [mark for mark in format.thinking if _is_special(mark, format)]
    wanted = tuple(dict.fromkeys([*(format.calls if calls else ()), *opening, *strays]))
    is_first = not begun
    while True:
        if (yield from _beginning(stream, format, calls, is_first)):
            is_first = False
            continue
        mark = yield from stream.text_until(wanted, trim=calls)
        while mark:
            if mark in format.thinking:
                yield from stream.thinking_until((format.thinking[mark],))
                break
            if mark in format.calls and (yield from stream.attempt(format.calls[mark](stream), mark)):
                break
            mark = yield from stream.text_until(wanted, trim=calls)
        else:
            return
        is_first = False


def _beginning(stream: Stream, format: OutputFormat, calls: bool, is_first: bool) -> Steps[bool]:
    """Read thinking, or calls without a mark, where an answer begins or goes on behind such; False if
    something else comes. White space in front counts only if it is the very first and text follows."""
    space = yield from stream.space()
    mark = yield from stream.skip(*format.thinking, *format.hidden)
    if mark in format.thinking:
        yield from stream.thinking_until((format.thinking[mark],))
        return True
    if mark:
        return True
    if calls and (yield from _is_bare(stream, format)):
        return (yield from stream.attempt(bare_calls(stream), space if is_first else ""))
    if space and is_first:
        stream.give_text(space)
    return False


def _is_bare(stream: Stream, format: OutputFormat) -> Steps[bool]:
    """Whether brackets come, and no mark that begins with one."""
    if (yield from stream.peek()) not in ("{", "["):
        return False
    for mark in format.calls:
        if (yield from stream.starts_with(mark)):
            return False
    return True


def _is_special(mark: str, format: OutputFormat) -> bool:
    return any(token in mark for token in format.special if token[:1] in "<[\u25c1")
