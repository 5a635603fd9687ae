"""How much methods and operators that a chat template uses are about to make or to read.

All of these are estimates from above, made before the work is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from jinja2.sandbox import SecurityError

from .budget import LIST_ITEM, Budget, check_bits, check_numbers

MAX_TIME_FORMAT = 1000  # characters
# Bytes have methods of their own, and whole numbers made of them any size.
_REFUSED = ("encode", "from_bytes", "maketrans", "to_bytes", "translate")
_FROM_THE_RIGHT = ("rfind", "rindex", "rpartition", "rsplit")  # whose time is the product of both lengths
_WIDE_FORMAT = re.compile(r"\d{6}|\*|\{[^{}]*:[^{}]*\{")
_NUMBER = re.compile(r"\d+", re.ASCII)


def check_method(
    budget: Budget, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Count what a method of a text or number is about to make; generators that had to be read for that
    come back as lists."""
    check_numbers([*args, *kwargs.values()])
    if name in _REFUSED:
        raise SecurityError(f"the method {name}")
    if not isinstance(owner, str):
        return args
    budget.spend(len(owner) >> 4)
    if name == "join" and args:
        args = (list(args[0]),)
        budget.spend(budget.measure(args[0])[1] + len(owner) * len(args[0]))
    elif name == "replace" and len(args) > 1:
        budget.spend(replaced(owner, str(args[0]), str(args[1])))
    elif name == "expandtabs":
        width = next(iter([*args, *kwargs.values()]), 8)
        budget.spend(owner.count("\t") * (width if isinstance(width, int) else 1))
    elif name in _FROM_THE_RIGHT and args:
        budget.spend(len(owner) * len(str(args[0])) >> 4)
    elif name in ("strip", "lstrip", "rstrip") and args:
        budget.spend(stripped(owner, args[0]))
    return args


def replaced(text: str, old: str, new: str) -> int:
    return (text.count(old) if old else len(text) + 1) * len(new)


def stripped(text: str, characters: Any) -> int:
    """Each character is looked for among those to strip."""
    return len(text) * len(characters) >> 4 if isinstance(characters, str) else 0


def formatted(pattern: str, values: Iterable[Any]) -> int:
    """The length of what a format makes at most. The values must have been measured."""
    if _WIDE_FORMAT.search(pattern):
        raise SecurityError("a format with a width")
    widths = sum(int(number[0]) for number in _NUMBER.finditer(pattern))
    longest = max((len(str(value)) for value in values), default=0)
    return len(pattern) + widths + longest * (pattern.count("%") + pattern.count("{"))


def format_time(now: datetime, pattern: str) -> str:
    if len(pattern) > MAX_TIME_FORMAT or _WIDE_FORMAT.search(pattern):
        raise SecurityError("a time format with a width, or a long one")
    return now.strftime(pattern)


def size_of_result(budget: Budget, operator: str, left: Any, right: Any) -> int:
    """About how large the result of an operator is, before it is worked out."""
    if operator == "%" and isinstance(left, str):
        if isinstance(right, dict):
            right = tuple(right.values())
        values = right if isinstance(right, tuple) else (right,)
        budget.measure(values)
        return formatted(left, values)
    if operator == "*":
        for sized, times in ((left, right), (right, left)):
            if isinstance(sized, str | list | tuple) and isinstance(times, int):
                return _bytes(sized) * max(times, 0)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        check_bits(bits)
    if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        return _bytes(left) + _bytes(right)
    return 1


def _bytes(value: str | list[Any] | tuple[Any, ...]) -> int:
    return len(value) if isinstance(value, str) else len(value) * LIST_ITEM
