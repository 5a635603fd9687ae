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

from .budget import BUDGET, CALL, LIST_ITEM, Budget, check_numbers
from .filter_costs import OF_ITEMS, OF_TEXT, Use
from .methods import search

MAX_NAME = 1000  # characters of a filter's or test's name that is given as a text
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


_NAMES_AT = {"map": 0, "select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}  # of filters and tests
# Filters that only take out what is there, and look at nothing else. Left out are those made for web pages,
# whose time can grow with the square of what they are given, and `random`.
_OTHERS = frozenset(("attr", "count", "d", "default", "first", "items", "last", "length", "reverse"))


def guarded_filters(filters: dict[str, Any]) -> dict[str, Any]:
    kept = {**filters, "tojson": to_json}
    return {
        name: _guarded(name, kept[name])
        for name in kept
        if name in OF_TEXT or name in OF_ITEMS or name in _OTHERS
    }


def guarded_tests(tests: dict[str, Any]) -> dict[str, Any]:
    return {name: test if name in _OF_TYPES else _guarded_test(name, test) for name, test in tests.items()}


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments checked and its result counted."""
    takes = _passed(function)
    of_text, of_items = OF_TEXT.get(name), OF_ITEMS.get(name)

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        budget.spend(CALL)
        if of_text:
            check_numbers((*args, *kwargs.values()))
            use = Use(budget, value, args, kwargs)
            budget.reserve(of_text(use))
            value = use.value
        elif of_items:
            check_numbers((*args, *kwargs.values()))
            value = _counted(budget, name, Use(budget, value, args, kwargs), of_items)
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


def _counted(budget: Budget, name: str, use: Use, of_items: Callable[[Use], Callable[[Any], int]]) -> Any:
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
