"""A text that arrives in pieces, to be read by generators that wait for more wherever they need it.

A reader is a generator that yields whenever it has to wait, so that the format of a family is written down
from top to bottom, as a parser of a whole text is: `mark = yield from stream.text_until(marks)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from .... import KukriError
from .parts import Part, Text, Thinking, ToolCallDelta, ToolCallDropped, ToolCallEnd, ToolCallStart
from .tools import ToolSchemas

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]  # waits at each yield; its result is a T
_SPACE = " \t\r\n"
_SPACES = re.compile(r"[ \t\r\n]+")
_NAME = re.compile(r"[^\s<>{}\[\]()\"'`]+")


class Malformed(KukriError):
    """What was read is no call after all. It never leaves this folder."""


class Stream:
    """What was written and is not read yet, and the parts that were read.

    `tools`: the functions that may be called. `new_id`: makes the id of a call. `ended`: no more text will
    come.
    """

    def __init__(self, tools: ToolSchemas, new_id: Callable[[], str]) -> None:
        self.tools = tools
        self.new_id = new_id
        self.parts: list[Part] = []
        self.ended = False
        self.n_calls = 0
        self.n_text = 0  # characters of text, white space at its beginning apart
        self._buffer = ""
        self._at = 0  # what is in front of it was read
        self._raw: list[str] | None = None  # what was read since a call began
        self._call: Call | None = None

    # ---- what comes in

    def add(self, text: str) -> None:
        """More was written."""
        self._buffer = self._buffer[self._at :] + text
        self._at = 0

    # ---- reading

    @property
    def _n_there(self) -> int:
        return len(self._buffer) - self._at

    def take(self, n: int) -> str:
        """Read the next `n` characters, which are there."""
        text = self._buffer[self._at : self._at + n]
        self._at += n
        if self._raw is not None:
            self._raw.append(text)
        return text

    def need(self, n: int) -> Steps[bool]:
        """Wait until there are `n` characters; False if the text ends before."""
        while self._n_there < n:
            if self.ended:
                return False
            yield
        return True

    def ahead(self, n: int) -> str:
        """The next `n` characters, which are there; they stay unread."""
        return self._buffer[self._at : self._at + n]

    def peek(self) -> Steps[str]:
        """The next character, "" at the end."""
        yield from self.need(1)
        return self.ahead(1)

    def space(self) -> Steps[str]:
        """Read white space, and return it."""
        pieces: list[str] = []
        while (yield from self.need(1)):
            piece = self.take_matching(_SPACES)
            if not piece:
                break
            pieces.append(piece)
        return "".join(pieces)

    def peek_after_space(self) -> Steps[str]:
        """The next character after white space, which is read."""
        yield from self.space()
        return self.ahead(1)

    def starts_with(self, text: str) -> Steps[bool]:
        """Whether `text` comes next; waits no longer than that is open."""
        while self._n_there < len(text) and not self.ended and text.startswith(self._buffer[self._at :]):
            yield
        return self._buffer.startswith(text, self._at)

    def skip(self, *texts: str) -> Steps[str]:
        """Read the first of `texts` that comes next, and return it; "" if none does."""
        for text in texts:
            if (yield from self.starts_with(text)):
                return self.take(len(text))
        return ""

    def expect(self, text: str) -> Steps[None]:
        """Read `text`, or raise Malformed."""
        if not (yield from self.skip(text)):
            raise Malformed

    def match(self, pattern: re.Pattern[str], longest: int = 256) -> Steps[str]:
        """Read what matches, which is known when something else follows it. Malformed if it is longer."""
        while True:
            found = pattern.match(self._buffer, self._at)
            end = found.end() if found else self._at
            if end - self._at > longest:
                raise Malformed
            if end < len(self._buffer) or self.ended:
                return self.take(end - self._at)
            yield

    def take_matching(self, pattern: re.Pattern[str]) -> str:
        """Read what is there and matches, without waiting."""
        found = pattern.match(self._buffer, self._at)
        return self.take(found.end() - self._at) if found else ""

    def skip_matching(self, pattern: re.Pattern[str], mark: str) -> Steps[str | None]:
        """Read what matches, white space around it and `mark`, and return the match; None, and nothing is
        read, if that does not come next."""
        whole = re.compile(rf"\s*({pattern.pattern})\s*{re.escape(mark)}")
        begun = re.compile(rf"\s*(?:(?:{pattern.pattern})\s*)?")
        while True:
            found = whole.match(self._buffer, self._at)
            if found:
                self.take(found.end() - self._at)
                return found[1]
            start = begun.match(self._buffer, self._at)
            if self.ended or start is None or start.end() < len(self._buffer):
                return None
            yield

    def pass_until(self, marks: Sequence[str], give: Callable[[str], Any]) -> Steps[str]:
        """Read up to the first of `marks` and past it, and return it, or "" if the text ends before.

        What comes in front of it goes to `give` as it comes.
        """
        finder = _finder(tuple(marks))
        while True:
            found = finder.pattern.search(self._buffer, self._at)
            if found and not self._may_grow(found.group(), found.end(), marks):
                if found.start() > self._at:
                    give(self.take(found.start() - self._at))
                return self.take(len(found.group()))
            end = found.start() if found else len(self._buffer) - finder.held(self._buffer, self._at)
            if self.ended:
                end = len(self._buffer)
            if end > self._at:
                give(self.take(end - self._at))
            if self.ended:
                return ""
            yield

    def _may_grow(self, mark: str, end: int, marks: Sequence[str]) -> bool:
        """Whether the mark that ends with all there is may be the beginning of a longer one."""
        if end < len(self._buffer) or self.ended:
            return False
        return any(other != mark and other.startswith(mark) for other in marks)

    # ---- text and thinking

    def text_until(self, marks: Sequence[str], trim: bool = True) -> Steps[str]:
        """Give text up to the first of `marks`; white space in front of that is left out with `trim`."""
        writer = _Trimmed(self.give_text, trim_end=trim)
        mark = yield from self.pass_until(marks, writer.write)
        if not mark:
            writer.finish()
        return mark

    def thinking_until(self, marks: Sequence[str]) -> Steps[str]:
        """Give thinking up to the first of `marks`, without white space around it."""
        writer = _Trimmed(lambda text: self.parts.append(Thinking(text)), trim_end=True, trim_start=True)
        return (yield from self.pass_until(marks, writer.write))

    def give_text(self, text: str) -> None:
        """Give a text."""
        self.n_text += len(text) if self.n_text else len(text.lstrip())
        self.parts.append(Text(text))

    # ---- calls

    def begin(self, mark: str = "") -> None:
        """From here on, what is read belongs to a call, or to several, behind `mark`, which is read."""
        self._raw = [mark]

    def new_call(self) -> Call:
        """The next call."""
        self._call = Call(self)
        return self._call

    def call_is_over(self) -> None:
        """A call is complete: what is read from here on is no part of it."""
        self._call = None
        self._raw = []

    def attempt(self, reader: Generator[None, None, Any], mark: str = "") -> Steps[bool]:
        """Read calls behind `mark`. False if they are malformed: then they are given as text."""
        self.begin(mark)
        try:
            yield from reader
        except Malformed:
            self._drop()
            return False
        finally:
            self._raw = None
        return True

    def _drop(self) -> None:
        call, self._call = self._call, None
        if call is not None and call.name is not None:
            self.parts.append(ToolCallDropped(call.index))
        raw = "".join(self._raw or ())
        if raw:
            self.give_text(raw)


class Call:
    """A call while it is read. Arguments that come before the name are held back until that is known."""

    def __init__(self, stream: Stream) -> None:
        self.index = stream.n_calls
        self.name: str | None = None
        self.id = ""
        self._stream = stream
        self._held: list[str] = []
        self.has_arguments = False

    def named(self, name: object) -> None:
        """The name is known. Malformed if it cannot be one."""
        if not isinstance(name, str) or self.name is not None or not _NAME.fullmatch(name.strip()):
            raise Malformed
        self.name = name.strip().removeprefix("functions.")
        self.id = self.id or self._stream.new_id()
        self._stream.n_calls += 1
        self._stream.parts.append(ToolCallStart(self.index, self.id, self.name))
        held, self._held = "".join(self._held), []
        if held:
            self.add(held)

    def add(self, arguments: str) -> None:
        """More text of the JSON object that the arguments are."""
        self.has_arguments = True
        if self.name is None:
            self._held.append(arguments)
        elif arguments:
            self._stream.parts.append(ToolCallDelta(self.index, arguments))

    def end(self) -> None:
        """It is complete. Malformed if it has no name."""
        if self.name is None:
            raise Malformed
        if not self.has_arguments:
            self.add("{}")
        self._stream.parts.append(ToolCallEnd(self.index))
        self._stream.call_is_over()


class _Trimmed:
    """Passes text on, without white space at its beginning or at its end."""

    def __init__(self, give: Callable[[str], None], trim_end: bool, trim_start: bool = False) -> None:
        self._give = give
        self._trim_end = trim_end
        self._at_start = trim_start
        self._held: list[str] = []

    def write(self, text: str) -> None:
        if self._at_start:
            text = text.lstrip(_SPACE)
            self._at_start = not text
        body = text.rstrip(_SPACE) if self._trim_end else text
        if body:
            self._give("".join([*self._held, body]))
            self._held.clear()
        if len(body) < len(text):
            self._held.append(text[len(body) :])

    def finish(self) -> None:
        """Nothing that ends the text came: the white space counts."""
        if self._held:
            self._give("".join(self._held))


class _Finder:
    """Looks for marks in a text."""

    def __init__(self, marks: Iterable[str]) -> None:
        marks = sorted(marks, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")
        # The end of a text that may be the beginning of a mark: "<to" of "<tool_call>".
        starts = sorted({mark[:n] for mark in marks for n in range(1, len(mark))}, key=len, reverse=True)
        self._start = re.compile(f"(?:{'|'.join(map(re.escape, starts))})\\Z" if starts else r"(?!)")
        self._longest = max(map(len, marks), default=1) - 1

    def held(self, text: str, start: int) -> int:
        """The number of characters at the end of `text[start:]` that may be the beginning of a mark."""
        found = self._start.search(text, max(start, len(text) - self._longest))
        return len(found.group()) if found else 0


@lru_cache(maxsize=64)
def _finder(marks: tuple[str, ...]) -> _Finder:
    return _Finder(marks)
