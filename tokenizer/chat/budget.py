"""The budget of one rendering of a chat template: characters made, and processor time.

One character stands for at most four bytes of memory and for about ten nanoseconds. All that a template
makes or reads is counted in it: a text by its length, an item of a list by LIST_ITEM, a look at an item in
Python by ITEM. What an operator, a method or a filter can make at most is compared with the rest of the
budget before it runs, and what it did make is taken off afterwards.

Values cannot be changed once they exist (the sandbox is immutable), so each list is walked through once, when
it is made or given, and its size is remembered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import MethodType
from typing import Any, NamedTuple

from jinja2.sandbox import SecurityError

MAX_CHARACTERS = 1 << 24  # made by one rendering, intermediate texts included,
TIMES_GIVEN = 16  # and so many times what it was given,
MAX_MADE = 1 << 26  # but at most so many, and once more what it was given
MAX_GIVEN = 1 << 25  # characters of messages, tools and variables
MAX_SECONDS = 1.5  # of processor time for one prompt, however often its template is rendered
MAX_NUMBER = 1_000_000  # widths, counts and precisions given to filters and methods; parts of a value
MAX_BITS = 4096  # of a whole number
MAX_DEPTH = 200  # of lists inside lists, which C code hashes and compares by recursion
BUDGET = "the budget"  # its name in a context, which no template can spell

STEP = 0  # a turn of a loop: it keeps nothing, and for its time the clock is looked at
CALL = 32  # a call, with what Python needs for it
ITEM = 64  # an item or a character that a filter looks at in Python
LIST_ITEM = 8  # an item of a list
OBJECT = 16  # a text or a list of its own, besides its characters or items

_CLOCK_EVERY = 1 << 12  # characters spent before the clock is looked at again, where
_CLOCK_STEP = 64  # spending anything counts as so many more
_SMALL = 16  # parts of a value whose size is found again rather than remembered
_SCALAR = 8  # characters that are counted for null, a truth value or a number
_ESCAPED, _ESCAPED_WIDE = 6, 12  # the longest escape of a character in JSON or by repr: \u001f, \ud83d\ude00
_SHOWN = 100  # characters of what Python writes for anything else, as <built-in method …>

VIEWS: tuple[type[Any], ...] = (type({}.keys()), type({}.values()), type({}.items()))
CONTAINERS: tuple[type[Any], ...] = (list, tuple, dict, *VIEWS)
_NOT_PLAIN = (*CONTAINERS, str, int, MethodType)  # what has a size of its own


class Size(NamedTuple):
    """Of a value with all that is nested in it, which counts as often as it occurs."""

    parts: int
    characters: int  # of its texts and whole numbers
    written: int  # of its repr or JSON at most
    depth: int


def deadline() -> float:
    """The deadline of a prompt that begins now, in seconds of time.thread_time(), a clock that stands still
    while other programs have the processor and while the machine sleeps.
    """
    return time.thread_time() + MAX_SECONDS


class Budget:
    """The characters that one rendering may still make, and its deadline, which renderings may share.

    `given` are its inputs, of JSON's types.
    """

    def __init__(self, deadline: float, given: Iterable[Any] = ()) -> None:
        self._deadline = deadline
        self._until_clock = 0
        self._sizes: dict[int, tuple[Any, Size]] = {}  # by id, which stays theirs while they are kept here
        self._most = self._left = MAX_GIVEN * _ESCAPED_WIDE
        characters = sum(self.size(value).characters for value in given)
        self._most = self._left = min(MAX_CHARACTERS + TIMES_GIVEN * characters, MAX_MADE + characters)

    def spend(self, characters: int) -> None:
        """Take off what was made or read."""
        self._left -= characters
        self._until_clock -= characters + _CLOCK_STEP
        if self._left < 0:
            self.reserve(0)
        if self._until_clock < 0:
            self._until_clock = _CLOCK_EVERY
            if time.thread_time() > self._deadline:
                raise SecurityError(f"the template takes over {MAX_SECONDS:g} s")

    def reserve(self, characters: int) -> None:
        """SecurityError if so much is no longer left."""
        if characters > self._left:
            raise SecurityError(f"the template makes over {self._most} characters of text")

    def size(self, value: Any) -> Size:
        """SecurityError if it is more than a value may have."""
        if isinstance(value, str):
            return Size(1, len(value), written(value), 0)
        if isinstance(value, CONTAINERS):
            known = self._sizes.get(id(value))
            return known[1] if known else self._walk(value, MAX_DEPTH)
        return self._scalar(value)

    def _scalar(self, value: Any) -> Size:
        if isinstance(value, int):
            length = digits(value)
            return Size(1, max(length, _SCALAR), length + OBJECT, 0)
        if isinstance(value, MethodType):
            return self.size(value.__self__)  # which is a part of its repr
        return Size(1, _SCALAR, _SHOWN, 0)

    def _walk(self, value: Any, room: int) -> Size:
        """The size of a list that is not known yet; its items are counted as made."""
        if not room:
            raise SecurityError(f"a value nested over {MAX_DEPTH} deep")
        self.spend(OBJECT + len(value) * LIST_ITEM)
        parts, characters, length, depth = 1, 0, 2, 0
        for item in chain(value, value.values()) if isinstance(value, dict) else value:
            if type(item) is str:
                parts += 1
                characters += len(item)
                length += written(item)
            elif type(item) is int:
                parts += 1
                long = digits(item)
                characters += max(long, _SCALAR)
                length += long + OBJECT
            elif not isinstance(item, _NOT_PLAIN):
                parts += 1
                characters += _SCALAR
                length += _SHOWN
            else:
                known = self._sizes.get(id(item))
                if known:
                    size = known[1]
                else:
                    inner = isinstance(item, CONTAINERS)
                    size = self._walk(item, room - 1) if inner else self.size(item)
                parts += size.parts
                characters += size.characters
                length += size.written
                depth = max(depth, size.depth)
            if parts > MAX_NUMBER:
                raise SecurityError(f"a value of over {MAX_NUMBER} parts")
            if characters > self._most:
                raise SecurityError(f"a value of over {self._most} characters")
        if depth >= MAX_DEPTH:
            raise SecurityError(f"a value nested over {MAX_DEPTH} deep")
        found = Size(parts, characters, length + 4 * parts, depth + 1)
        if parts > _SMALL:
            self._sizes[id(value)] = (value, found)
        return found

    def text_length(self, value: Any) -> int:
        """The length of str(value) at most."""
        return len(value) if isinstance(value, str) else self.size(value).written

    def made(self, value: Any) -> None:
        """Count a value that a filter, a method or an operator gave back."""
        if isinstance(value, str):
            self.spend(len(value) + OBJECT)
        elif isinstance(value, CONTAINERS):
            self.size(value)
        elif isinstance(value, int):
            check_bits(value.bit_length())

    def look_at(self, value: Any) -> None:
        """Count what a comparison or a hash reads: all parts of a list, and 1/256 of a text's characters."""
        if isinstance(value, str):
            if len(value) > _CLOCK_EVERY:
                self.spend(len(value) >> 8)
        elif isinstance(value, CONTAINERS):
            size = self.size(value)
            self.spend(4 * size.parts + (size.characters >> 8))

    def each(self, items: Iterable[Any], cost: Callable[[Any], int]) -> Iterator[Any]:
        """The items, each counted before it is given on."""
        for item in items:
            self.spend(cost(item))
            yield item


def written(text: str) -> int:
    """The length of a text's repr or JSON at most."""
    return len(text) * (_ESCAPED if text.isascii() else _ESCAPED_WIDE) + 2


def digits(number: int) -> int:
    """The length of a whole number's decimal digits at most."""
    return number.bit_length() * 4 // 13 + 2


def check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise SecurityError(f"a number of over {MAX_BITS} bits")


def check_numbers(values: Iterable[Any]) -> None:
    """SecurityError for a width, count or precision above MAX_NUMBER."""
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values):
        raise SecurityError(f"a number over {MAX_NUMBER}")
