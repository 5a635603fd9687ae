"""The Jinja environment for chat templates, which come with a model and are not to be trusted.

Jinja's immutable sandbox keeps a template away from Python's internals. What it leaves open is time and
memory. The template's size, its syntax tree and its code are bounded before Python compiles it, nothing in it
is worked out at that time, and a `Budget` counts what each rendering makes and reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from jinja2 import Template, UndefinedError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace, missing

from .budget import BUDGET, CALL, CONTAINERS, ITEM, OBJECT, VIEWS, Budget
from .filters import guarded_filters, guarded_tests
from .formats import format_length
from .instrument import STEPS, BoundedCode, Instrument, check_tree
from .methods import check_method, operate, pairs

MAX_TEMPLATE = 1 << 16  # characters of a source; the longest of well-known models has two fifths of that
MAX_NAME = 200  # characters of a name in an error
_OF_DICTS = frozenset(dir(dict))
_OF_JINJA = ("_loop_vars", "_block_vars")  # arguments with the variables of a loop or block, which change


@pass_context
def _shown(context: Context, value: Any) -> str:
    """Count a value that is written into the prompt."""
    budget: Budget = context.parent[BUDGET]
    if isinstance(value, str):
        budget.spend(len(value) + OBJECT)
        return value
    budget.reserve(budget.text_length(value))
    text = str(value)
    budget.spend(len(text) + OBJECT)
    return text


class _Undefined(Undefined):
    """What is missing; the error of its use shows the beginning of its name."""

    __slots__ = ()

    def __init__(
        self, hint: str | None = None, obj: Any = missing, name: Any = None, exc: type = UndefinedError
    ) -> None:
        if isinstance(name, str):
            name = name[:MAX_NAME]
        elif not isinstance(name, int | None):
            name = type(name).__name__
        super().__init__(hint, obj, name, exc)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it: trimmed blocks, loop controls, `generation`, plain `tojson`."""

    intercepted_binops = frozenset(["*", "**", "%", "+", "-"])
    code_generator_class = BoundedCode

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, GenerationTag],
            finalize=_shown,
            undefined=_Undefined,
            optimized=False,  # which would work out constant expressions while compiling
        )
        filters: dict[str, Any] = self.filters
        tests: dict[str, Any] = self.tests
        self.filters = {**guarded_filters(filters), **STEPS}
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
        tree = super()._parse(source, name, filename)
        check_tree(tree)
        instrumented: nodes.Template = Instrument().visit(tree)
        return instrumented

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        operate(budget, operator, left, right)
        result = super().call_binop(context, operator, left, right)
        budget.made(result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget: Budget = __context.parent[BUDGET]
        budget.spend(CALL + ITEM * isinstance(__obj, type))  # a namespace and the like keep more
        take = budget.size if isinstance(__obj, Macro) else budget.look_at
        for value in args:
            if isinstance(value, CONTAINERS):
                take(value)
        for name, value in kwargs.items():
            if isinstance(value, CONTAINERS) and name not in _OF_JINJA:
                take(value)
        owner = getattr(__obj, "__self__", None)
        if owner is not None and (isinstance(owner, str) or type(owner).__module__ == "builtins"):
            args = check_method(budget, owner, getattr(__obj, "__name__", ""), args, kwargs)
        elif args and (__obj is _make_dict or __obj is _PlainNamespace):
            args = (pairs(budget, args[0]), *args[1:])
        result = super().call(__context, __obj, *args, **kwargs)
        budget.made(result)
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox does it, without its long way to a key of a dict or of a namespace."""
        if type(obj) is dict and attribute in obj and attribute not in _OF_DICTS:
            return obj[attribute]
        if type(obj) is _PlainNamespace:
            kept = _kept(obj)
            return kept[attribute] if attribute in kept else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr == "mapping" and isinstance(obj, VIEWS):
            return False  # a view of the whole dict, of a type of its own
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format and str.format_map, which the sandbox replaces, with a look at widths."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None

        @pass_context
        def run(context: Context, *args: Any, **kwargs: Any) -> str:
            budget: Budget = context.parent[BUDGET]
            budget.reserve(format_length(budget, value.__self__, (*args, *kwargs.values())))
            return safe(*args, **kwargs)

        return run

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to {attribute[:MAX_NAME]!r} of a {type(obj).__name__}")


class GenerationTag(Extension):
    """{% generation %} … {% endgeneration %} marks what the model wrote; rendering only needs its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


class _PlainNamespace(Namespace):
    """A namespace whose attributes cannot shadow Python's own, and that is never written out."""

    __slots__ = ("kept",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "kept", {})
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return _PlainNamespace
        try:
            return _kept(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name)[:1] == "_":
            raise SecurityError(f"a namespace has no attribute {name[:MAX_NAME]!r}")
        _kept(self)[name] = value

    def __repr__(self) -> str:
        return "<namespace>"


def _kept(namespace: _PlainNamespace) -> dict[str, Any]:
    kept: dict[str, Any] = object.__getattribute__(namespace, "kept")
    return kept


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
