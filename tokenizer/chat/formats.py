"""How long what a format makes can be, read as Python itself reads formats.

str.format takes any Unicode decimal digit in a width, printf's `%` only those of ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from string import Formatter
from typing import Any

from jinja2.sandbox import SecurityError
from markupsafe import Markup

from .budget import ITEM, MAX_NUMBER, Budget

ESCAPED_HTML = 5  # characters of &#34;, which Markup makes of a quotation mark
MAX_TIME_FORMAT = 1000  # characters
FIELD = 4 * ITEM  # a field of str.format, which Jinja's sandbox looks up in Python
NUMBER = 400  # characters of a float in any notation: 309 digits before its point, six behind it

# What follows a "%" and a mapping key: flags, width, precision, length, conversion.
_DIRECTIVE = re.compile(r"[-+ #0]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?[hlL]?(.?)", re.DOTALL)
_DIGITS = re.compile(r"\d+")
_WIDE_TIME = re.compile(r"%[^a-zA-Z%]*[0-9]{3}")


def printf_length(budget: Budget, pattern: str, values: Any) -> int:
    """The length of `pattern % values` at most."""
    mapping = isinstance(values, Mapping)
    given = list(values.values()) if mapping else list(values) if isinstance(values, tuple) else [values]
    budget.spend(pattern.count("%") * ITEM + len(given) * ITEM)
    directives, widths, escaping = _printf(pattern)
    lengths = [_shown(budget, value, escaping) for value in given]
    # Without a mapping each value is shown once; the whole of a dict may be shown by a lone %s.
    shown = directives * max([*lengths, budget.text_length(values)]) if mapping else sum(lengths)
    return _markup(pattern, given, len(pattern) + widths + shown)


def _printf(pattern: str) -> tuple[int, int, bool]:
    """(directives, the sum of their widths and precisions, whether one shows a repr)"""
    directives = widths = at = 0
    escaping = False
    while (at := pattern.find("%", at)) >= 0:
        at += 1
        if pattern[at : at + 1] == "(":  # a key, in which parentheses are paired
            depth = 1
            while depth:
                at += 1
                if at >= len(pattern):
                    return directives, widths, escaping  # which Python refuses
                depth += (pattern[at] == "(") - (pattern[at] == ")")
            at += 1
        found = _DIRECTIVE.match(pattern, at)
        assert found is not None  # every part of it may be empty
        widths += _width(found[1]) + _width(found[2] or "")
        escaping = escaping or found[3] in ("r", "a")
        directives += 1
        at = found.end()
    return directives, widths, escaping


def format_length(budget: Budget, pattern: str, values: Iterable[Any]) -> int:
    """The length of what str.format makes at most."""
    given = list(values)
    budget.spend(pattern.count("{") * FIELD + len(pattern) + len(given) * ITEM)
    fields = widths = 0
    escaping = False
    for _, name, spec, conversion in Formatter().parse(pattern):
        if name is None:
            continue
        budget.spend(len(name) * ITEM)
        if spec and "{" in spec:
            raise SecurityError("a format with a width from its arguments")
        fields += 1
        widths += sum(_width(number[0]) for number in _DIGITS.finditer(spec or ""))
        escaping = escaping or conversion in ("r", "a")
    longest = max((_shown(budget, value, escaping) for value in given), default=0)
    return _markup(pattern, given, len(pattern) + widths + fields * longest)


def _shown(budget: Budget, value: Any, escaping: bool) -> int:
    """The length of a value in a format at most, without its width."""
    if isinstance(value, str):
        return budget.size(value).written if escaping else len(value)
    if isinstance(value, int):
        return NUMBER + 2 * value.bit_length()  # binary digits with separators
    return max(NUMBER, budget.size(value).written)


def _markup(pattern: str, given: list[Any], length: int) -> int:
    """Markup escapes what is put into it; and a Markup among the values, what is around it."""
    return length * ESCAPED_HTML if any(isinstance(text, Markup) for text in (pattern, *given)) else length


def _width(number: str) -> int:
    if number == "*":
        raise SecurityError("a format with a width from its arguments")
    if len(number) > len(str(MAX_NUMBER)):
        raise SecurityError("a format with a width")
    return int(number or 0)


def format_time(now: datetime, pattern: str) -> str:
    if len(pattern) > MAX_TIME_FORMAT or _WIDE_TIME.search(pattern):
        raise SecurityError("a time format with a width, or a long one")
    return now.strftime(pattern)
