"""The budget of one rendering of a chat template: characters made, and processor time.

Every list and text is counted when it is made; a list inside a list counts with all its parts each time
that it occurs. So no value exists that could not be hashed, compared or written out in bounded time.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, ValuesView
from typing import Any

from jinja2.sandbox import SecurityError

MAX_CHARACTERS = 1 << 24  # made by one rendering, intermediate texts included; a list item counts as 8
TIMES_GIVEN = 16  # and so many times what it was given
MAX_SECONDS = 1.5  # of processor time for one prompt, however often its template is rendered
MAX_NUMBER = 1_000_000  # widths, counts and precisions given to filters and methods; parts of a value
MAX_BITS = 4096  # of a whole number
ITEM_COST = 16  # a character or an item that a filter looks at in Python, in characters copied
LIST_ITEM = 8  # bytes that a list takes for an item
BUDGET = "the budget"  # its name in a context, which no template can spell

_CONTAINERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)


def deadline() -> float:
    """The deadline of a prompt that begins now, in seconds of time.thread_time(), a clock that stands still
    while other programs have the processor and while the machine sleeps.
    """
    return time.thread_time() + MAX_SECONDS


class Budget:
    """The characters that one rendering may still make, and its deadline, which renderings may share.

    `given` is the number of characters in its inputs.
    """

    def __init__(self, deadline: float, given: int = 0) -> None:
        self._most = self._left = MAX_CHARACTERS + TIMES_GIVEN * given
        self._deadline = deadline

    def spend(self, characters: int) -> None:
        self._left -= max(0, characters)
        if self._left < 0:
            raise SecurityError(f"the template makes over {self._most} characters of text")
        if time.thread_time() > self._deadline:
            raise SecurityError(f"the template takes over {MAX_SECONDS:g} s")

    def measure(self, value: Any) -> tuple[int, int]:
        """(parts, characters) of a value, all that is nested in it counted as often as it occurs;
        SecurityError if that is more than a value may have."""
        if isinstance(value, str):
            return 1, len(value)
        if not isinstance(value, _CONTAINERS):
            return 1, 0
        parts = characters = 0
        pending: list[Any] = [value]
        while pending:
            item = pending.pop()
            parts += 1
            if isinstance(item, str):
                characters += len(item)
            elif isinstance(item, dict):
                parts += len(item)
                pending.extend(item)
                pending.extend(item.values())
            elif isinstance(item, _CONTAINERS):
                pending.extend(item)
            if parts > MAX_NUMBER:
                raise SecurityError(f"a value of over {MAX_NUMBER} parts")
            if characters > self._most:
                raise SecurityError(f"a value of over {self._most} characters")
        return parts, characters

    def spend_on(self, value: Any, fresh: bool = False) -> None:
        """Count a value that has been made. The parts of a list are not new, unless it is `fresh`."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, _CONTAINERS):
            characters = self.measure(value)[1]
            self.spend(len(value) * LIST_ITEM + characters * fresh)
        elif isinstance(value, range):
            self.spend(len(value) * LIST_ITEM)
        elif isinstance(value, int):
            check_bits(value.bit_length())

    def look_at(self, value: Any) -> None:
        """Count what an operator reads: all parts of a list; of a text, 1/256 of its characters."""
        if isinstance(value, str):
            if len(value) > 4096:
                self.spend(len(value) >> 8)
        elif isinstance(value, _CONTAINERS):
            self.spend(self.measure(value)[0])


def check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise SecurityError(f"a number of over {MAX_BITS} bits")


def check_numbers(values: Any) -> None:
    """SecurityError for a width, count or precision above MAX_NUMBER."""
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values):
        raise SecurityError(f"a number over {MAX_NUMBER}")
