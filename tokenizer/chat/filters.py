"""Jinja's filters and tests for chat templates, each wrapped so that it is charged to the rendering's budget.

Filters that go through items are given them through a counter, one by one; what filters of texts can make at
most is compared with the budget before they run. A wrapped filter reads the budget from the context, so it
is never run while a template is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context
from jinja2.sandbox import SecurityError

from .budget import (
    BUDGET,
    CALL,
    ITEM,
    LIST_ITEM,
    MAX_BITS,
    OBJECT,
    Budget,
    check_numbers,
)
from .formats import ESCAPED_HTML, printf_length
from .methods import CASES, LINE_ENDS, count_of, padded, replaced, search

MAX_SEPARATOR = 64  # characters between the parts of JSON
MAX_PLACES = 400  # that a number is rounded to, before or behind its point; floats have no more
MAX_NAME = 1000  # characters of a filter's or test's name that is given as a text
_URL_ESCAPED = 12  # characters of %F0%9F%98%80
# Made for web pages; their time can grow with the square of what they are given, or they are random.
LEFT_OUT = ("lipsum", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
# Tests that look no further than at the type of a value.
_OF_TYPES = frozenset(
    (
        *("boolean", "callable", "defined", "escaped", "false", "filter", "float", "integer", "iterable"),
        *("mapping", "none", "number", "sequence", "string", "test", "true", "undefined"),
    )
)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, as chat templates expect it."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _Use:
    """One use of a filter: its budget, value and arguments."""

    def __init__(
        self, budget: Budget, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.budget, self.value, self.args, self.kwargs = budget, value, args, kwargs

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def text_length(self) -> int:
        return self.budget.text_length(self.value)

    def text(self) -> str:
        """The value as text, which is what most filters make of it first."""
        if not isinstance(self.value, str):
            self.budget.reserve(self.text_length())
            self.value = str(self.value)
        text: str = self.value
        return text

    def text_argument(self, place: int, name: str) -> str:
        value = self.argument(place, name, "")
        self.budget.reserve(self.budget.text_length(value))
        return str(value)


# Filters of texts and numbers: each rule gives the length of the result at most.


def _as_it_is(use: _Use) -> int:
    return use.text_length()


def _cased(use: _Use) -> int:
    length = use.text_length()
    use.budget.spend(2 * length if not (isinstance(use.value, str) and use.value.isascii()) else 0)
    return CASES * length


def _by_words(use: _Use) -> int:
    use.budget.spend(ITEM * use.text_length())
    return CASES * use.text_length()


def _escaped(use: _Use) -> int:
    return ESCAPED_HTML * use.text_length()


def _url_escaped(use: _Use) -> int:
    use.budget.spend(ITEM * use.text_length())
    return _URL_ESCAPED * use.text_length()


def _number(use: _Use) -> int:
    """Python's time for long decimal numbers grows with the square of their length."""
    if isinstance(use.value, str) and len(use.value) > MAX_BITS:
        raise SecurityError(f"a number of over {MAX_BITS} characters")
    return OBJECT


def _rounded(use: _Use) -> int:
    places = use.argument(0, "precision", 0)
    if isinstance(places, int) and abs(places) > MAX_PLACES:
        raise SecurityError(f"a number rounded to over {MAX_PLACES} places")
    return OBJECT


def _centered(use: _Use) -> int:
    return padded(use.text(), use.argument(0, "width", 80))


def _formatted(use: _Use) -> int:
    return printf_length(use.budget, use.text(), use.kwargs or use.args)


def _indented(use: _Use) -> int:
    width = use.argument(0, "width", 4)
    lines = count_of(LINE_ENDS, use.text()) + 1
    use.budget.spend(lines * ITEM + len(use.text()))
    return len(use.text()) + lines * (max(width, 0) if isinstance(width, int) else len(str(width)))


def _replaced(use: _Use) -> int:
    old, new = use.text_argument(0, "old"), use.text_argument(1, "new")
    return replaced(use.budget, use.text(), old, new, use.argument(2, "count"))


def _stripped(use: _Use) -> int:
    """Each character is looked for among those to strip."""
    sought = use.argument(0, "chars")
    use.budget.spend(len(use.text()) * (len(sought) if isinstance(sought, str) else 1) >> 4)
    return len(use.text())


def _cut(use: _Use) -> int:
    return len(use.text()) + len(use.text_argument(2, "end")) * ESCAPED_HTML


def _as_json(use: _Use) -> int:
    indent, separators = use.argument(1, "indent"), use.argument(2, "separators")
    width = indent if isinstance(indent, int) else len(indent or "")
    size = use.budget.size(use.value)
    length = size.written
    if indent is not None or use.argument(3, "sort_keys"):  # part by part in Python
        use.budget.spend(size.parts * ITEM)
        length += size.parts * (1 + max(width, 0) * (size.depth + 1))
    if separators is not None:
        use.budget.reserve(use.budget.text_length(separators))
        if sum(len(str(text)) for text in separators) > MAX_SEPARATOR:
            raise SecurityError(f"separators of over {MAX_SEPARATOR} characters")
        length += size.parts * MAX_SEPARATOR
    return length


_OF_TEXT: dict[str, Callable[[_Use], int]] = {
    **{"capitalize": _cased, "lower": _cased, "upper": _cased, "title": _by_words, "wordcount": _by_words},
    **{"e": _escaped, "escape": _escaped, "forceescape": _escaped, "urlencode": _url_escaped},
    **{"safe": _as_it_is, "string": _as_it_is, "trim": _stripped, "truncate": _cut, "center": _centered},
    **{"int": _number, "float": _number, "filesizeformat": _number, "round": _rounded, "abs": _rounded},
    **{"format": _formatted, "indent": _indented, "replace": _replaced, "tojson": _as_json},
}

# Filters of items: each rule gives what an item costs.


def _item(use: _Use) -> Callable[[Any], int]:
    """What is done with each item depends on the arguments."""
    size = use.budget.size([*use.args, *use.kwargs.values()])
    return lambda item: ITEM + size.parts + size.characters


def _sorted(use: _Use) -> Callable[[Any], int]:
    """Compared about as often as their number has bits, and texts are copied in lower case."""
    each, size_of = _item(use), use.budget.size

    def cost(item: Any) -> int:
        size = size_of(item)
        return 2 * each(item) + ITEM * size.parts + 4 * size.characters

    return cost


def _listed(use: _Use) -> Callable[[Any], int]:
    each = LIST_ITEM if not isinstance(use.value, str) or use.value.isascii() else ITEM
    return lambda item: each


def _joined(use: _Use) -> Callable[[Any], int]:
    each, length_of = _item(use), use.budget.text_length
    return lambda item: each(item) + length_of(item)


_OF_ITEMS: dict[str, Callable[[_Use], Callable[[Any], int]]] = {
    **dict.fromkeys(("batch", "map", "reject", "rejectattr", "select", "selectattr", "slice", "sum"), _item),
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), _sorted),
    **{"join": _joined, "list": _listed},
}
_NAMES_AT = {"map": 0, "select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}  # of filters and tests
# Filters that only take out what is there, and look at nothing else.
_OTHERS = frozenset(("attr", "count", "d", "default", "first", "items", "last", "length", "reverse"))


def guarded_filters(filters: dict[str, Any]) -> dict[str, Any]:
    kept = {**filters, "tojson": to_json}
    return {
        name: _guarded(name, kept[name])
        for name in kept
        if name in _OF_TEXT or name in _OF_ITEMS or name in _OTHERS
    }


def guarded_tests(tests: dict[str, Any]) -> dict[str, Any]:
    return {name: test if name in _OF_TYPES else _guarded_test(name, test) for name, test in tests.items()}


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments checked and its result counted."""
    takes = _passed(function)
    of_text, of_items = _OF_TEXT.get(name), _OF_ITEMS.get(name)

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        budget.spend(CALL)
        if of_text:
            check_numbers((*args, *kwargs.values()))
            use = _Use(budget, value, args, kwargs)
            budget.reserve(of_text(use))
            value = use.value
        elif of_items:
            check_numbers((*args, *kwargs.values()))
            value = _counted(budget, name, _Use(budget, value, args, kwargs), of_items)
        elif isinstance(value, str):
            budget.reserve(len(value))
        elif isinstance(value, Iterator):
            value = budget.each(value, lambda item: LIST_ITEM)
        result = function(*takes(context), value, *args, **kwargs)
        if name in ("batch", "slice"):
            return _made_one_by_one(budget, result)
        budget.made(result)
        return result

    return run


def _counted(
    budget: Budget, name: str, use: _Use, of_items: Callable[[_Use], Callable[[Any], int]]
) -> Any:
    """The value of a filter of items, which counts them as they are taken."""
    at = _NAMES_AT.get(name)
    if at is not None and len(use.args) > at and budget.text_length(use.args[at]) > MAX_NAME:
        raise SecurityError(f"a name of over {MAX_NAME} characters")
    if name == "sum" and not isinstance(use.argument(1, "start", 0), int | float):
        raise SecurityError("a sum of anything but numbers")
    if name == "batch" and isinstance(number := use.argument(0, "linecount"), int):
        budget.reserve(number * LIST_ITEM)  # the last is filled up
    cost = of_items(use)
    if name == "dictsort":  # which takes the whole dict
        budget.spend(cost(use.value))
        return use.value
    return budget.each(use.value, cost) if use.value else use.value


def _made_one_by_one(budget: Budget, lists: Iterator[Any]) -> Iterator[Any]:
    for made in lists:
        budget.made(made)
        yield made


def _guarded_test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    takes = _passed(function)

    @pass_context
    def run(context: Context, value: Any, *args: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        budget.spend(CALL)
        if name == "in" and args:
            search(budget, value, args[0])
        elif name in ("lower", "upper"):
            budget.reserve(budget.text_length(value))
            value = str(value)
            budget.spend(len(value))
        else:
            for looked_at in (value, *args):
                budget.look_at(looked_at)
        return function(*takes(context), value, *args)

    return run


def _passed(function: Callable[..., Any]) -> Callable[[Context], tuple[Any, ...]]:
    """What of a context the filter or test wants before its value."""
    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", "")
    first: dict[str, Callable[[Context], tuple[Any, ...]]] = {
        "context": lambda context: (context,),
        "eval_context": lambda context: (context.eval_ctx,),
        "environment": lambda context: (context.environment,),
    }
    return first.get(wanted, lambda context: ())
