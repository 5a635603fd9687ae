"""Patterns as tables that the compiled encoder walks, for texts of ASCII.

A pattern is a list of alternatives, of which the first that matches counts. An alternative is a sequence of
items, each a class of characters and how often it comes: as often as possible, less often where what follows
needs that. Some end only where no character but white space follows. Groups are multiplied out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ...pretokenize.patterns import ASCII_3_DIGITS, DIGIT, DIGITS, UP_TO_3_DIGITS, in_ascii, known
from ...pretokenize.pretokenize import Split, Step, spell_bytes
from .records import MAX_ITEMS

_UNLIMITED = 1 << 30
_MOST_CLASSES = 64
_WHITE = frozenset(range(9, 14)) | {32}
_TOKEN = re.compile(
    r"(?P<ahead>\(\?!\[\^\\t-\\r \]\))|(?P<open>\((?:\?i:|\?:)?)|(?P<close>\))|(?P<or>\|)"
    r"|(?P<atom>\[\^?(?:\\.|[^\\\]])+\]|\\x[0-9a-f]{2}|\\[^\W\d]|[^\\()\[\]{}?*+|^$.])",
    re.DOTALL,
)
_TIMES = re.compile(r"\?|\*|\+|\{(\d+)(?:,(\d+))?\}")
_OF_DIGITS = frozenset((DIGIT, DIGITS, UP_TO_3_DIGITS, ASCII_3_DIGITS))


@dataclass(frozen=True)
class Item:
    characters: frozenset[int]
    least: int
    most: int


@dataclass(frozen=True)
class Alternative:
    items: tuple[Item, ...] = ()
    before_space: bool = False  # or before the end

    def then(self, other: Alternative) -> Alternative:
        if self.before_space:
            raise ValueError("something behind a look ahead")
        return Alternative(self.items + other.items, other.before_space)


def alternatives(source: str) -> list[Alternative]:
    """A pattern of the `re` module as in `in_ascii`. ValueError for what cannot be said this way.

    Multiplying a group out is right where what stands before it need not match less for it to match, which
    holds for the patterns that `known` knows.
    """
    found, end = _alternatives(source, 0, False)
    if end < len(source):
        raise ValueError("a bracket too many")
    return found


def _alternatives(source: str, at: int, any_case: bool) -> tuple[list[Alternative], int]:
    done: list[Alternative] = []
    current = [Alternative()]
    while at < len(source):
        token = _TOKEN.match(source, at)
        if token is None:
            raise ValueError(f"{source[at : at + 20]!a} is not understood")
        at = token.end()
        if token["close"]:
            return [*done, *current], at - 1
        if token["or"]:
            done += current
            current = [Alternative()]
            continue
        if token["ahead"]:
            next_ = [Alternative(before_space=True)]
        elif token["open"]:
            next_, at = _alternatives(source, at, any_case or token["open"] == "(?i:")
            at += 1
            if source[at : at + 1] == "?":
                next_.append(Alternative())
                at += 1
        else:
            least, most, at = _times(source, at)
            next_ = [Alternative((Item(_characters(token["atom"], any_case), least, most),))]
        current = [before.then(after) for before in current for after in next_]
    return [*done, *current], at


def _times(source: str, at: int) -> tuple[int, int, int]:
    times = _TIMES.match(source, at)
    if times is None:
        return 1, 1, at
    at = times.end()
    if source[at : at + 1] in ("?", "*", "+"):
        raise ValueError("a lazy or possessive item")
    if times[1]:
        return int(times[1]), int(times[2] or times[1]), at
    return int(times[0] == "+"), 1 if times[0] == "?" else _UNLIMITED, at


@cache
def _characters(atom: str, any_case: bool) -> frozenset[int]:
    match = re.compile(atom, re.IGNORECASE if any_case else 0).fullmatch
    return frozenset(code for code in range(128) if match(chr(code)))


@dataclass(frozen=True)
class Program:
    """`classes` (uint64 [128]) are bits by character. `table` (int32) is the number of patterns; of each its
    number of alternatives; of each of these its number of items, whether only white space may follow, and the
    class, least and most of each item. Class 0 is white space."""

    classes: np.ndarray
    table: np.ndarray


def program(steps: Sequence[Step]) -> Program | None:
    """What cuts parts from `parts_at_spaces` as `steps` do; None where that cannot be had."""
    patterns = []
    spelled = False
    for step in steps:
        if step is spell_bytes:
            spelled = True
            continue
        if not isinstance(step, Split) or step.behavior != "Isolated" or not known(step.source):
            return None
        if spelled and step.source not in _OF_DIGITS:  # others may tell symbols of bytes from characters
            return None
        patterns.append(step.source)
    classes: dict[frozenset[int], int] = {_WHITE: 0}
    table = [len(patterns)]
    for source in patterns:
        try:
            found = alternatives(in_ascii(source))
        except ValueError:
            return None
        found = [a for a in found if all(item.characters for item in a.items if item.least)]
        if any(len(a.items) > MAX_ITEMS for a in found):
            return None
        table.append(len(found))
        for alternative in found:
            table += [len(alternative.items), alternative.before_space]
            for item in alternative.items:
                table += [classes.setdefault(item.characters, len(classes)), item.least, item.most]
    if len(classes) > _MOST_CLASSES:
        return None
    bits = np.zeros(128, np.uint64)
    for characters, bit in classes.items():
        bits[list(characters)] |= np.uint64(1 << bit)
    return Program(bits, np.array(table, np.int32))
