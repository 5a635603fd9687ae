"""The Jinja environment for chat templates, which come with a model and are not to be trusted.

Jinja's immutable sandbox keeps a template away from Python's internals. What it leaves open is time and
memory; a `Budget` bounds these: every loop turn and every text that is made is counted.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_TEMPLATE = 1 << 17  # characters of a source; the longest of well-known models has a fifth of that
MAX_CHARACTERS = 1 << 24  # made by one rendering, intermediate texts included; a list item counts as 8
TIMES_GIVEN = 16  # and so many times what it was given
MAX_SECONDS = 1.5  # of processor time for one prompt, however often its template is rendered
MAX_NUMBER = 1_000_000  # widths, counts and precisions given to filters and methods
MAX_BITS = 4096  # of a product or power
MAX_WRAPPED = 1 << 14  # characters given to wordwrap, which may take the square of that
ITEM_COST = 16  # a character or an item that a filter looks at in Python, in characters copied
# Filters that do no such thing.
QUICK = frozenset(
    (
        *(
            "abs",
            "capitalize",
            "count",
            "d",
            "default",
            "e",
            "escape",
            "first",
            "float",
            "format",
            "forceescape",
        ),
        *("indent", "int", "items", "join", "last", "length", "lower", "replace", "reverse", "round", "safe"),
        *("string", "tojson", "trim", "upper"),
    )
)
BUDGET = "the budget"  # its name in a context, which no template can spell

_WIDE_FORMAT = re.compile(r"\d{6}|\*|\{[^{}]*:[^{}]*\{")


def deadline() -> float:
    """When a prompt that is begun now must be done, on the clock time.thread_time(): one that stands still
    while other programs have the processor, or the machine sleeps."""
    return time.thread_time() + MAX_SECONDS


class Budget:
    """What one rendering may still spend, until a deadline that it may share with others.

    `given` are the characters that it has to work with.
    """

    def __init__(self, deadline: float, given: int = 0) -> None:
        self._most = self._left = MAX_CHARACTERS + TIMES_GIVEN * given
        self._deadline = deadline

    def spend_on(self, value: Any) -> None:
        """Count a text or list that has been made."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, list | range):
            self.spend(len(value) * 8)

    def spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise SecurityError(f"the template makes over {self._most} characters of text")
        if time.thread_time() > self._deadline:
            raise SecurityError(f"the template takes over {MAX_SECONDS:g} s")


class _Instrument(NodeTransformer):
    """Puts a call of `count_turn` into each loop and macro and one of `bounded` around what is compared, and
    makes a ~ b a call of `join_texts`."""

    def visit_Compare(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        for part in (node, *node.ops):
            if not isinstance(part.expr, nodes.Const):
                part.expr = _call("bounded", [part.expr], node.lineno)
        return cast(nodes.Node, node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("join_texts", node.nodes, node.lineno)

    def _visit_body(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.ExprStmt(_call("count_turn", [], node.lineno)).set_lineno(node.lineno)
        node.body.insert(0, tick)
        return cast(nodes.Node, node)

    visit_For = visit_Macro = _visit_body


def _call(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Expr:
    call = nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)
    return cast(nodes.Expr, call.set_lineno(lineno))


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it: trimmed blocks, loop controls, `generation`, plain `tojson`."""

    intercepted_binops = frozenset(["*", "**", "%", "+"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag], finalize=_shown
        )
        self.filters["tojson"] = to_json
        self.filters = {name: _guarded(name, function) for name, function in self.filters.items()}
        tests: dict[str, Any] = self.tests
        self.tests = {name: _bounded_test(test) for name, test in tests.items()}
        del self.globals["lipsum"]
        self.globals.update(namespace=_PlainNamespace, dict=_make_dict)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Instrument().visit(super()._parse(source, name, filename))
        return tree

    @staticmethod
    @pass_context
    def count_turn(context: Context) -> None:
        context.parent[BUDGET].spend(1)

    @staticmethod
    @pass_context
    def join_texts(context: Context, *parts: Any) -> str:
        texts = [str(_shown(part)) for part in parts]
        context.parent[BUDGET].spend(sum(map(len, texts)))
        return "".join(texts)

    @staticmethod
    @pass_context
    def bounded(context: Context, value: Any) -> Any:
        """Lists inside lists can stand for more than any comparison would get through."""
        if isinstance(value, list | tuple | dict):
            context.parent[BUDGET].spend(_size(value))
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        context.parent[BUDGET].spend(_size_of_result(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, list | tuple) and getattr(__obj, "__name__", "") in ("count", "index"):
            __context.parent[BUDGET].spend(_size([owner, *args]))
        if isinstance(owner, str | bytes | int | float):
            _check_numbers([*args, *kwargs.values()])
            args = _check_method(__context.parent[BUDGET], owner, getattr(__obj, "__name__", ""), args)
        result = super().call(__context, __obj, *args, **kwargs)
        __context.parent[BUDGET].spend_on(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format and str.format_map, which the sandbox replaces, with a look at widths."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None

        @pass_context
        def run(context: Context, *args: Any, **kwargs: Any) -> str:
            _check_numbers([*args, *kwargs.values()])
            context.parent[BUDGET].spend(_formatted(value.__self__, [*args, *kwargs.values()]))
            return safe(*args, **kwargs)

        return run

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__}")


class GenerationTag(Extension):
    """{% generation %} … {% endgeneration %} marks what the model wrote; rendering only needs its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


class _PlainNamespace(Namespace):
    """A namespace whose attributes cannot shadow Python's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace has no attribute {name!r}")
        super().__setitem__(name, value)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


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


def format_time(now: datetime, pattern: str) -> str:
    if _WIDE_FORMAT.search(pattern):
        raise SecurityError("a time format with a width")
    return now.strftime(pattern)


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments checked and its result counted. Being given the context, it is never run
    while a template is compiled."""
    takes = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        if name not in QUICK:
            value = _looked_at(budget, value)
            budget.spend(_size([*args, *kwargs.values()]))
        if name not in ("default", "d"):
            _check_numbers([*args, *kwargs.values()])
            value = _check_filter(budget, name, _shown(value), args, kwargs)
        first: dict[str, list[Any]] = {
            "context": [context],
            "eval_context": [context.eval_ctx],
            "environment": [context.environment],
        }
        result = function(*first.get(takes, []), value, *args, **kwargs)
        budget.spend_on(result)
        return result

    return run


def _bounded_test(function: Callable[..., Any]) -> Callable[..., Any]:
    """The test, once it is known that its arguments are no more than can be looked at."""
    if hasattr(function, "jinja_pass_arg"):
        return function

    def run(value: Any, *args: Any) -> Any:
        if args and isinstance(value, list | tuple | dict):
            _size([value, *args])
        return function(value, *args)

    return run


def _looked_at(budget: Budget, value: Any) -> Any:
    """Count what a filter is going to look at one by one; what has no length is counted as it comes."""
    if isinstance(value, str):
        budget.spend(len(value) * ITEM_COST)
    elif isinstance(value, list | tuple | dict):
        budget.spend(_size(value) * ITEM_COST)
    elif isinstance(value, range):
        budget.spend(len(value) * ITEM_COST)
    elif isinstance(value, Iterator):
        return _counted(budget, value)
    return value


def _counted(budget: Budget, items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        budget.spend(ITEM_COST)
        yield item


def _check_numbers(values: Iterable[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values):
        raise SecurityError(f"a number over {MAX_NUMBER}")


def _check_filter(
    budget: Budget, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Count what the filter is about to make; generators that had to be read for that come back as lists."""
    if name == "join":
        value = list(value)
        glue = args[0] if args else kwargs.get("d", "")
        budget.spend(sum(len(str(item)) for item in value) + len(str(glue)) * len(value))
    elif name == "replace":
        old = args[0] if args else kwargs.get("old", "")
        new = args[1] if len(args) > 1 else kwargs.get("new", "")
        budget.spend(_replaced(str(value), str(old), str(new)))
    elif name == "format":
        budget.spend(_formatted(str(value), [*args, *kwargs.values()]))
    elif name == "indent":
        width = args[0] if args else kwargs.get("width", 4)
        budget.spend(str(value).count("\n") * (width if isinstance(width, int) else len(str(width))))
    elif name == "wordwrap" and len(str(value)) > MAX_WRAPPED:
        raise SecurityError(f"wordwrap of over {MAX_WRAPPED} characters")
    elif name == "sum" and not isinstance(kwargs.get("start", args[1] if len(args) > 1 else 0), int | float):
        raise SecurityError("a sum of anything but numbers")
    elif name == "tojson":
        indent = kwargs.get("indent", args[1] if len(args) > 1 else None)
        width = indent if isinstance(indent, int) else len(indent or "")
        budget.spend(_size(value) * (width + ITEM_COST if width else 1))
    return value


def _check_method(budget: Budget, owner: Any, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "translate":
        raise SecurityError("the method translate")
    if isinstance(owner, str) and args:
        if name == "join":
            args = (list(args[0]),)
            budget.spend(sum(len(str(item)) for item in args[0]) + len(owner) * len(args[0]))
        elif name == "replace" and len(args) > 1:
            budget.spend(_replaced(owner, str(args[0]), str(args[1])))
    return args


def _replaced(text: str, old: str, new: str) -> int:
    return (text.count(old) if old else len(text) + 1) * len(new)


def _formatted(pattern: str, values: Iterable[Any]) -> int:
    if _WIDE_FORMAT.search(pattern):
        raise SecurityError("a format with a width")
    longest = max((len(str(_shown(value))) for value in values), default=0)
    return len(pattern) + longest * (pattern.count("%") + pattern.count("{"))


def _size_of_result(operator: str, left: Any, right: Any) -> int:
    """About how large the result of an operator is, before it is worked out."""
    if operator == "%" and isinstance(left, str):
        if isinstance(right, dict):
            right = tuple(right.values())
        return _formatted(left, right if isinstance(right, tuple) else (right,))
    if operator == "*":
        for sized, times in ((left, right), (right, left)):
            if isinstance(sized, str | list | tuple) and isinstance(times, int):
                return _weight(sized) * max(times, 0)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise SecurityError(f"a number of over {MAX_BITS} bits")
    if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        return _weight(left) + _weight(right)
    return 1


def _weight(value: str | list[Any] | tuple[Any, ...]) -> int:
    return len(value) if isinstance(value, str) else len(value) * 8


def _shown(value: Any) -> Any:
    """The value, if it can be written out: lists inside lists can stand for more than memory holds."""
    if isinstance(value, list | tuple | dict):
        _size(value)
    return value


def _size(value: Any) -> int:
    """How many values there are in a nested one; SecurityError for more than a million."""
    count = 0
    pending = [value]
    while pending:
        item = pending.pop()
        count += 1
        if count > MAX_NUMBER:
            raise SecurityError(f"a value of over {MAX_NUMBER} parts")
        if isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
    return count
