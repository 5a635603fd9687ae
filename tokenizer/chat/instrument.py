"""Bounds what compiling a template may take, and inserts into it the steps that count what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import TemplateSyntaxError
from jinja2.runtime import Context
from jinja2.sandbox import SecurityError
from jinja2.visitor import NodeTransformer

from .budget import BUDGET, CONTAINERS, LIST_ITEM, STEP, Budget, check_bits
from .methods import pairs, search, spread

# Of a template's syntax tree. The largest of well-known models (Gemma 4) has 1244 nodes, 19 deep, 106
# statements and 56 names, and becomes 61,000 characters of Python code.
MAX_NODES = 10_000
MAX_TREE_DEPTH = 150
MAX_STATEMENTS = 1000  # besides assignments and output
MAX_NAMES = 1 << 17  # names times statements: Jinja copies the table of names at each of them
MAX_CODE = 1 << 19
MAX_DISPLAY = 64  # items of a list or dict of constants that are not counted each time
MAX_NAME = 1000  # characters of an argument's name that comes in a dict


class BoundedCode(CodeGenerator):
    """Jinja's code generator, which writes all names in sight at each block, include and import."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._room = MAX_CODE

    def write(self, x: str) -> None:
        self._room -= len(x)
        if self._room < 0:
            raise TemplateSyntaxError(f"over {MAX_CODE} characters of code", 1)
        super().write(x)


def check_tree(tree: nodes.Template) -> None:
    """SecurityError for a template whose compilation could take long."""
    level: list[nodes.Node] = [tree]
    count = depth = statements = 0
    names = set()
    while level:
        count, depth = count + len(level), depth + 1
        if count > MAX_NODES:
            raise SecurityError(f"over {MAX_NODES} parts of statements and expressions")
        if depth > MAX_TREE_DEPTH:
            raise SecurityError(f"statements or expressions nested over {MAX_TREE_DEPTH} deep")
        for node in level:
            if isinstance(node, nodes.Name):
                names.add(node.name)
            elif isinstance(node, nodes.Stmt) and not isinstance(node, nodes.Output | nodes.Assign):
                statements += 1
        level = [child for node in level for child in node.iter_child_nodes()]
    if statements > MAX_STATEMENTS or statements * len(names) > MAX_NAMES:
        raise SecurityError(f"too many statements: {statements}, with {len(names)} names")


class Instrument(NodeTransformer):
    """Inserts steps into a template's syntax tree: a count of each loop, turn of a loop, macro and constant
    text; of slices; of what comparisons and look-ups read and list displays make; of what is spread into
    arguments; and `join` in place of a ~ b. A step is a filter whose name no template can spell."""

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, int):
            check_bits(node.value.bit_length())
        return node

    def visit_Compare(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        first, last = node.expr, node.ops[-1]
        if len(node.ops) > 1:
            for part in (node, *node.ops):
                part.expr = _step("searched", part.expr)
        elif last.op in ("in", "notin"):
            if not (_is_constant(last.expr) and not isinstance(last.expr, nodes.Const)):
                found = _step("contains", first, last.expr)
                return found if last.op == "in" else nodes.Not(found).set_lineno(node.lineno)
        elif not isinstance(first, nodes.Const) and not isinstance(last.expr, nodes.Const):
            node.expr, last.expr = _step("read", first), _step("read", last.expr)
        return cast(nodes.Node, node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _step("join", *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            ends = (node.arg.start, node.arg.stop, node.arg.step)
            return _step("slice", node.node, *(end or nodes.Const(None, lineno=node.lineno) for end in ends))
        if not isinstance(node.arg, nodes.Const):
            node.arg = _step("read", node.arg)
        return node

    def _visit_display(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        stored = getattr(node, "ctx", "load") != "load"  # the targets of an assignment
        return cast(nodes.Node, node) if stored or _is_constant(node) else _step("made", node)

    visit_List = visit_Tuple = _visit_display

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        if len(node.items) <= MAX_DISPLAY:
            return self._visit_display(node)
        self.generic_visit(node)
        items: list[nodes.Expr] = [nodes.Tuple([pair.key, pair.value], "load") for pair in node.items]
        return _step("dict", nodes.List(items, lineno=node.lineno))

    def _visit_call(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _step("spread", node.dyn_args)
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = _step("spread names", node.dyn_kwargs)
        return cast(nodes.Node, node)

    visit_Call = visit_Filter = visit_Test = _visit_call

    def visit_Output(self, node: nodes.Output) -> nodes.Node | list[nodes.Node]:
        self.generic_visit(node)
        constant = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
        return [_count(constant, node.lineno), node] if constant else node

    def visit_Macro(self, node: Any) -> list[nodes.Node]:
        self.generic_visit(node)
        node.body.insert(0, _count(STEP, node.lineno))
        return [_count(STEP, node.lineno), node]

    visit_CallBlock = visit_Macro

    def visit_For(self, node: nodes.For) -> list[nodes.Node]:
        if node.test is not None:
            node.test = _step("turn", cast(nodes.Expr, node.test))
        return self.visit_Macro(node)

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Node:
        if any(option.value != nodes.Const(False) for option in node.options):
            raise SecurityError("autoescape")
        return cast(nodes.Node, self.generic_visit(node))


def _step(name: str, *operands: nodes.Expr) -> nodes.Expr:
    step = nodes.Filter(operands[0], _spelled(name), list(operands[1:]), [], None, None)
    return cast(nodes.Expr, step.set_lineno(operands[0].lineno))


def _count(characters: int, lineno: int) -> nodes.Node:
    return nodes.ExprStmt(_step("count", nodes.Const(characters, lineno=lineno))).set_lineno(lineno)


def _spelled(name: str) -> str:
    return f"the step {name}"


def _is_constant(node: nodes.Node) -> bool:
    """Whether it is written out in the template, in a few items, so that its size is bounded by that."""
    if isinstance(node, nodes.List | nodes.Tuple):
        return len(node.items) <= MAX_DISPLAY and all(map(_is_constant, node.items))
    if isinstance(node, nodes.Dict):
        pairs = node.items
        return len(pairs) <= MAX_DISPLAY and all(_is_constant(p.key) and _is_constant(p.value) for p in pairs)
    return isinstance(node, nodes.Const)


# The steps. Templates could call them only by names that they cannot know, and would only spend by them.


@pass_context
def _spend(context: Context, characters: int) -> None:
    context.parent[BUDGET].spend(characters)


@pass_context
def _turn(context: Context, taken: Any) -> Any:
    context.parent[BUDGET].spend(STEP)
    return taken


@pass_context
def _made(context: Context, value: Any) -> Any:
    context.parent[BUDGET].made(value)
    return value


@pass_context
def _dict(context: Context, items: Any) -> dict[Any, Any]:
    made = pairs(context.parent[BUDGET], items)
    context.parent[BUDGET].made(made)
    return made


@pass_context
def _slice(context: Context, value: Any, start: Any, stop: Any, step: Any) -> Any:
    budget: Budget = context.parent[BUDGET]
    wanted = slice(start, stop, step)
    if isinstance(value, str | list | tuple):
        length = len(range(*wanted.indices(len(value))))
        budget.reserve(length if isinstance(value, str) else length * LIST_ITEM)
    found = context.environment.getitem(value, wanted)
    budget.made(found)
    return found


@pass_context
def _read(context: Context, value: Any) -> Any:
    context.parent[BUDGET].look_at(value)
    return value


@pass_context
def _searched(context: Context, value: Any) -> Any:
    search(context.parent[BUDGET], value, value)
    return value


@pass_context
def _contains(context: Context, sought: Any, place: Any) -> bool:
    search(context.parent[BUDGET], sought, place)
    return sought in place


@pass_context
def _join(context: Context, *parts: Any) -> str:
    budget: Budget = context.parent[BUDGET]
    budget.reserve(sum(map(budget.text_length, parts)))
    text = "".join(map(str, parts))
    budget.made(text)
    return text


@pass_context
def _spread(context: Context, items: Any) -> Any:
    return spread(context.parent[BUDGET], items)


@pass_context
def _spread_names(context: Context, items: Any) -> Any:
    if isinstance(items, CONTAINERS) and any(
        isinstance(name, str) and len(name) > MAX_NAME for name in items
    ):
        raise SecurityError(f"an argument whose name has over {MAX_NAME} characters")
    return spread(context.parent[BUDGET], items)


STEPS: dict[str, Callable[..., Any]] = {
    _spelled(name): step
    for name, step in (
        ("count", _spend),
        ("turn", _turn),
        ("made", _made),
        ("dict", _dict),
        ("slice", _slice),
        ("read", _read),
        ("searched", _searched),
        ("contains", _contains),
        ("join", _join),
        ("spread", _spread),
        ("spread names", _spread_names),
    )
}
