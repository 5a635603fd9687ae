"""The Jinja environment for chat templates, which come with a model and are not to be trusted.

Jinja's immutable sandbox keeps a template away from Python's internals. What it leaves open is time and
memory; a `Budget` bounds these: every loop turn and every text that is made is counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

from jinja2 import Template, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from .budget import BUDGET, LIST_ITEM, Budget, check_bits
from .filters import guarded_filters, guarded_tests
from .methods import check_method, formatted, size_of_result

MAX_TEMPLATE = 1 << 16  # characters of a source; the longest of well-known models has two fifths of that


class _Step:
    """A function that the environment inserts into templates; the type distinguishes it from the template's
    own callables.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run


class _Instrument(NodeTransformer):
    """Inserts calls of an environment's steps into a template's syntax tree: `count` for each loop,
    iteration, macro call and constant text; `counted` around slices; `weighed` around operands of
    comparisons and look-ups and around list displays; and `join_texts` in place of a ~ b.
    """

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, int):
            check_bits(node.value.bit_length())
        return node

    def visit_Compare(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        for part in (node, *node.ops):
            part.expr = _weighed(part.expr)
        return cast(nodes.Node, node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("join_texts", node.nodes, node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _call("counted", [node], node.lineno)
        node.arg = _weighed(node.arg)
        return node

    def _visit_literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        stored = getattr(node, "ctx", "load") != "load"  # the targets of an assignment
        return cast(nodes.Node, node) if stored else _weighed(node)

    visit_List = visit_Tuple = visit_Dict = _visit_literal

    def visit_Output(self, node: nodes.Output) -> nodes.Node | list[nodes.Node]:
        self.generic_visit(node)
        constant = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
        return [_count(constant, node.lineno), node] if constant else node

    def visit_Macro(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _count(1, node.lineno))
        return cast(nodes.Node, node)

    def visit_For(self, node: Any) -> list[nodes.Node]:
        return [_count(1, node.lineno), self.visit_Macro(node)]


def _call(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Expr:
    call = nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)
    return cast(nodes.Expr, call.set_lineno(lineno))


def _count(characters: int, lineno: int) -> nodes.Node:
    call = _call("count", [nodes.Const(characters)], lineno)
    return nodes.ExprStmt(call).set_lineno(lineno)


def _weighed(node: nodes.Expr) -> nodes.Expr:
    return node if _is_constant(node) else _call("weighed", [node], node.lineno)


def _is_constant(node: nodes.Node) -> bool:
    """Whether it is written out in the template, so that its size is bounded by that."""
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(_is_constant, node.items))
    if isinstance(node, nodes.Dict):
        return all(_is_constant(pair.key) and _is_constant(pair.value) for pair in node.items)
    return isinstance(node, nodes.Const)


@pass_context
def _shown(context: Context, value: Any) -> Any:
    """Count a value that is written into the prompt, a list by the length of its text."""
    budget: Budget = context.parent[BUDGET]
    parts, characters = budget.measure(value)
    budget.spend(characters + parts)
    return value


def _count_characters(context: Context, characters: int) -> None:
    context.parent[BUDGET].spend(characters)


def _counted(context: Context, value: Any) -> Any:
    if isinstance(value, str):
        context.parent[BUDGET].spend(len(value))
    elif isinstance(value, list | tuple):
        context.parent[BUDGET].spend(len(value) * LIST_ITEM)
    return value


def _weigh(context: Context, value: Any) -> Any:
    context.parent[BUDGET].look_at(value)
    return value


def _join_texts(context: Context, *parts: Any) -> str:
    budget: Budget = context.parent[BUDGET]
    budget.spend(sum(budget.measure(part)[1] for part in parts))
    text = "".join(map(str, parts))
    budget.spend(len(parts))
    return text


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it: trimmed blocks, loop controls, `generation`, plain `tojson`."""

    intercepted_binops = frozenset(["*", "**", "%", "+"])
    count = _Step(_count_characters)
    counted = _Step(_counted)
    weighed = _Step(_weigh)
    join_texts = _Step(_join_texts)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag], finalize=_shown
        )
        filters: dict[str, Any] = self.filters
        tests: dict[str, Any] = self.tests
        self.filters = guarded_filters(filters)
        self.tests = guarded_tests(tests)
        del self.globals["lipsum"]
        self.globals.update(namespace=_PlainNamespace, dict=_make_dict)

    def from_string(self, *args: Any, **kwargs: Any) -> Template:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of a template's code is no news for people
            try:
                return super().from_string(*args, **kwargs)
            except MemoryError:  # so Python's parser says that its own stack is full
                raise RecursionError from None

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Instrument().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        budget.spend(size_of_result(budget, operator, left, right))
        result = super().call_binop(context, operator, left, right)
        budget.measure(result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if type(__obj) is _Step:
            return __obj.run(__context, *args)
        budget: Budget = __context.parent[BUDGET]
        owner = getattr(__obj, "__self__", None)
        budget.spend(budget.measure([*args, *kwargs.values()])[0])
        if isinstance(owner, list | tuple) and getattr(__obj, "__name__", "") in ("count", "index"):
            budget.look_at(owner)
        text = isinstance(owner, str)
        if text or isinstance(owner, int | float | type):
            args = check_method(budget, owner, getattr(__obj, "__name__", ""), args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        budget.spend_on(result, fresh=text)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format and str.format_map, which the sandbox replaces, with a look at widths."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None

        @pass_context
        def run(context: Context, *args: Any, **kwargs: Any) -> str:
            given = [*args, *kwargs.values()]
            context.parent[BUDGET].measure(given)
            context.parent[BUDGET].spend(formatted(value.__self__, given))
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
    """A namespace whose attributes cannot shadow Python's own, and that is never written out."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace has no attribute {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
