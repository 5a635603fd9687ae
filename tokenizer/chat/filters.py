"""Jinja's filters and tests for chat templates, each wrapped so that it is charged to the rendering's budget.

A wrapped filter reads the budget from the context; filters that take the context are never run while a
template is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context
from jinja2.sandbox import SecurityError

from .budget import BUDGET, ITEM_COST, Budget, check_numbers
from .methods import formatted, replaced, stripped

MAX_SEPARATOR = 64  # characters between the parts of JSON
# Made for web pages; their time can grow with the square of what they are given, or they are random.
LEFT_OUT = ("lipsum", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
# Filters that do not look at characters or items one by one in Python.
QUICK = frozenset(
    (
        *("abs", "capitalize", "count", "d", "default", "e", "escape", "first", "float", "forceescape"),
        *(
            "format",
            "indent",
            "int",
            "items",
            "last",
            "length",
            "lower",
            "replace",
            "reverse",
            "round",
            "safe",
        ),
        *("string", "tojson", "trim", "upper"),
    )
)
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


def guarded_filters(filters: dict[str, Any]) -> dict[str, Any]:
    kept = {**filters, "tojson": to_json}
    return {name: _guarded(name, kept[name]) for name in kept if name not in LEFT_OUT}


def guarded_tests(tests: dict[str, Any]) -> dict[str, Any]:
    return {name: test if name in _OF_TYPES else _guarded_test(test) for name, test in tests.items()}


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments checked and its result counted."""
    takes = _passed(function)

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        more = [*args, *kwargs.values()]
        if name not in QUICK:
            value = _looked_at(budget, value, sum(budget.measure(argument)[1] for argument in more))
        if name not in ("default", "d"):
            check_numbers(more)
            budget.spend(budget.measure([value, *more])[0])
            value = _check(budget, name, value, args, kwargs)
        result = function(*takes(context), value, *args, **kwargs)
        budget.spend_on(result, fresh=name == "list" and isinstance(value, str))
        return result

    return run


def _guarded_test(function: Callable[..., Any]) -> Callable[..., Any]:
    takes = _passed(function)

    @pass_context
    def run(context: Context, value: Any, *args: Any) -> Any:
        for looked_at in (value, *args):
            context.parent[BUDGET].look_at(looked_at)
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


def _looked_at(budget: Budget, value: Any, given: int) -> Any:
    """Count what a filter is going to look at one by one, with `given` characters of arguments for each; what
    has no length is counted as it comes."""
    each = ITEM_COST + given
    if isinstance(value, str | range):
        budget.spend(len(value) * each)
    elif isinstance(value, Iterator):
        return _counted(budget, value, each)
    else:
        budget.spend(budget.measure(value)[0] * each)
    return value


def _counted(budget: Budget, items: Iterator[Any], each: int) -> Iterator[Any]:
    for item in items:
        budget.spend(each)
        yield item


def _check(budget: Budget, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count what the filter is about to make; generators that had to be read for that come back as lists."""

    def argument(position: int, key: str, default: Any = "") -> Any:
        return args[position] if len(args) > position else kwargs.get(key, default)

    if name == "join":
        value = list(value)
        budget.spend(sum(budget.measure(item)[1] for item in value))
        budget.spend(len(str(argument(0, "d"))) * len(value))
    elif name == "replace":
        budget.spend(replaced(str(value), str(argument(0, "old")), str(argument(1, "new"))))
    elif name == "format":
        budget.spend(formatted(str(value), [*args, *kwargs.values()]))
    elif name == "indent":
        width = argument(0, "width", 4)
        lines = len(str(value).splitlines())
        budget.spend(len(str(value)) + lines * (width if isinstance(width, int) else len(str(width))))
    elif name == "trim":
        budget.spend(stripped(str(value), argument(0, "chars", None)))
    elif name == "sum" and not isinstance(argument(1, "start", 0), int | float):
        raise SecurityError("a sum of anything but numbers")
    elif name == "tojson":
        _check_json(budget, value, argument(1, "indent", None), argument(2, "separators", None))
    return value


def _check_json(budget: Budget, value: Any, indent: Any, separators: Any) -> None:
    width = indent if isinstance(indent, int) else len(indent or "")
    parts, characters = budget.measure(value)
    budget.spend(characters + parts * (width + ITEM_COST if width else 1))
    if separators is not None and sum(len(str(text)) for text in separators) > MAX_SEPARATOR:
        raise SecurityError(f"separators of over {MAX_SEPARATOR} characters")
