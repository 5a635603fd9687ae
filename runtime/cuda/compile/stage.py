"""Staging: kernels are written once in Python, and specialised for their constants before they are compiled.

A GPU cannot index registers at run time, so a kernel that keeps a tile in registers must name each of them.
`stage` takes a function and the values of its constants, and returns a function in which

- names of constants are replaced by their values, and `if` statements that depend on constants only by the
  branch that is taken;
- `for i in static(n):` is unrolled: its body is repeated n times with the value of i in place;
- `x = registers(n, 0.0)` or `x = registers((m, n), 0.0)` is as many variables. x[1] and x[i, j] are single
  variables, where the indices follow from constants; x[i] of two dimensions stands for all variables of a
  row, and x[()] for all of x, to be assigned a tuple or passed on with a star. Without a value,
  `registers(n)` only declares the names. A parameter of a device function that is annotated
  `registers(shape)` is as many parameters;
- a parameter that is annotated with an argument record (see `arguments.py`) is one parameter for each number
  of the record: `args.q.stride` becomes the name of one of these. `args.q` may be passed on to a device
  function whose parameter is annotated with the class of `q`;
- float literals are float32: Numba would take them, and all results of them, as float64.

Device functions that it calls, marked `device`, are staged for the same constants. The result is compiled by
`ptx_compiler.py`, or run as it is by the simulator of the tests.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any

from ..abi.arguments import is_record, leaves

Function = Callable[..., Any]
MANY_ARGUMENTS = 25  # that Python's compiler takes as they are, in a call or a tuple


def device(function: Function) -> Function:
    """Mark a function that kernels may call: calls are inlined."""
    function.on_device = True  # type: ignore[attr-defined]
    return function


def second(function: Function) -> Function:
    """The same device function, staged for the constants whose names end in _SECOND."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__annotations__ = function.__annotations__
    copy.second = True  # type: ignore[attr-defined]
    return device(copy)


def constants_for(function: Function, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The constants that a device function is staged for, where its caller is staged for `constants`: those
    that it depends on, so that callers which differ in others share it."""
    found = dict(constants)
    if getattr(function, "second", False):
        found |= {k.removesuffix("_SECOND"): v for k, v in found.items() if k.endswith("_SECOND")}
    names = _names(function)
    return {name: value for name, value in found.items() if name in names}


@cache
def _names(function: Function) -> frozenset[str]:
    """The names in the source of a device function, and in those of the device functions that it names."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    visible = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for name in sorted(names):
        called = visible.get(name)
        if called is not function and getattr(called, "on_device", False):
            below = _names(called)
            names |= below
            if getattr(called, "second", False):
                names |= {f"{each}_SECOND" for each in below}
    return frozenset(names)


def static(*bounds: int) -> range:
    """`range` of constants, for loops that are unrolled."""
    return range(*bounds)


def registers(shape: int | tuple[int, ...], value: Any = None) -> Any:
    """An array of registers, declared; only staging gives the call a meaning."""
    raise TypeError("registers() outside of a staged function")


def stage(
    function: Function, constants: Mapping[str, Any], resolve: Callable[[Any, Mapping[str, Any]], Any]
) -> Function:
    """`function` specialised for `constants`.

    `resolve(object, constants)` returns what stands for a global object that the function uses, such as an
    instruction or a device function.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list, definition.returns = [], None
    closure = inspect.getclosurevars(function).nonlocals
    visible = {**function.__globals__, **closure}
    known = {k: v for k, v in visible.items() if isinstance(v, int | float)} | dict(constants)
    stager = _Stager(known)
    definition.args.args = [
        a
        for argument in definition.args.args
        for a in stager.parameters(argument, _annotation(function, argument.arg))
    ]
    stager.check_names(definition)
    definition.body = stager.block(definition.body)
    ast.fix_missing_locations(tree)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    scope = visible | dict(constants)
    namespace = {name: resolve(scope[name], constants) for name in used if name in scope}
    namespace["float32"] = resolve("float32", constants)
    exec(compile(tree, f"<staged {function.__name__}>", "exec"), namespace)
    return namespace[function.__name__]


def parameter_types(function: Function) -> list[type]:
    """Of each parameter of a kernel, int (a 64-bit integer or an address) or float (a float32)."""
    found: list[type] = []
    for name in inspect.signature(function).parameters:
        annotation = _annotation(function, name)
        if is_record(annotation):
            found += [leaf for _, leaf in leaves(annotation)]
        else:
            found.append(float if annotation in (float, "float") else int)
    return found


def _annotation(function: Function, parameter: str) -> Any:
    """A parameter's annotation: a record's class, otherwise the text that is written there."""
    annotation = function.__annotations__.get(parameter)
    found = function.__globals__.get(annotation) if isinstance(annotation, str) else annotation
    return found if is_record(found) else annotation


class _Stager(ast.NodeTransformer):
    def __init__(self, constants: Mapping[str, Any]) -> None:
        self._constants = dict(constants)
        self._registers: dict[str, tuple[int, ...]] = {}
        self._records: dict[str, list[tuple[str, ...]]] = {}  # of a parameter, the paths of its numbers

    def parameters(self, argument: ast.arg, annotation: Any) -> list[ast.arg]:
        """The parameters that one stands for which is annotated `registers(shape)` or with a record."""
        call, argument.annotation = argument.annotation, None
        if is_record(annotation):
            self._records[argument.arg] = [path for path, _ in leaves(annotation)]
            return [ast.arg(_field(argument.arg, path)) for path in self._records[argument.arg]]
        if not isinstance(call, ast.Call):
            return [argument]
        shape = self._value(call.args[0])
        shape = shape if isinstance(shape, tuple) else (shape,)
        self._registers[argument.arg] = shape
        return [ast.arg(_register(argument.arg, index)) for index in _indices(shape)]

    def check_names(self, definition: ast.FunctionDef) -> None:
        """A variable that is called like a field of a record would change it unseen."""
        names = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
        clash = names & {_field(name, path) for name, paths in self._records.items() for path in paths}
        assert not clash, f"{definition.name} has variables that are called like fields: {sorted(clash)}"

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            out += result if isinstance(result, list) else [result] if result is not None else []
        return out

    def visit_For(self, node: ast.For) -> Any:
        call = node.iter
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "static":
            bounds = [self._value(argument) for argument in call.args]
            assert isinstance(node.target, ast.Name)
            assert all(isinstance(b, int) for b in bounds), ast.unparse(call)
            name, out, before = node.target.id, [], dict(self._constants)
            for i in range(*bounds):
                self._constants = before | {name: i}
                out += self.block([_copy(statement) for statement in node.body])
            self._constants = before
            return out or [ast.Pass()]
        node.iter = self.visit(node.iter)
        node.body = self.block(node.body)
        return node

    def visit_While(self, node: ast.While) -> Any:
        node.test = self.visit(node.test)
        node.body = self.block(node.body)
        return node

    def visit_If(self, node: ast.If) -> Any:
        decided = self._value(node.test)
        if isinstance(node.test, ast.BoolOp):
            node.test = self.visit(node.test)
            decided = self._value(node.test)
        if decided is not _UNKNOWN:
            return self.block(node.body if decided else node.orelse) or [ast.Pass()]
        node.test = self.visit(node.test)
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """`and`: constant operands at its start are dropped if they are true; a false one is the result."""
        while isinstance(node.op, ast.And) and len(node.values) > 1:
            decided = self._value(node.values[0])
            if decided is _UNKNOWN:
                break
            if not decided:
                return ast.Constant(False)
            node.values = node.values[1:]
        return self.visit(node.values[0]) if len(node.values) == 1 else self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        decided = self._value(node.test)
        if decided is not _UNKNOWN:
            return self.visit(node.body if decided else node.orelse)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        target, value = node.targets[0], node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "registers":
            assert isinstance(target, ast.Name)
            shape = self._value(value.args[0])
            shape = shape if isinstance(shape, tuple) else (shape,)
            self._registers[target.id] = shape
            if len(value.args) == 1:
                return []
            out: list[ast.stmt] = []
            for index in _indices(shape):
                name = ast.Name(_register(target.id, index), ast.Store())
                out.append(ast.Assign([name], self.visit(_copy(value.args[1]))))
            return out
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id in self._registers:
            index = self._value(node.slice)
            index = index if isinstance(index, tuple) else (index,)
            shape = self._registers[node.value.id]
            if len(index) > len(shape) or not all(
                isinstance(i, int) and 0 <= i < n for i, n in zip(index, shape, strict=False)
            ):
                raise IndexError(f"{ast.unparse(node)} is none of the registers {node.value.id}{list(shape)}")
            names = [_register(node.value.id, (*index, *rest)) for rest in _indices(shape[len(index) :])]
            found: list[ast.expr] = [ast.Name(name, node.ctx) for name in names]
            return found[0] if len(index) == len(shape) else ast.Tuple(found, node.ctx)
        return self.generic_visit(node)

    def _numbers(self, node: ast.expr) -> list[ast.expr] | None:
        """The parameters that a record, or a field of one, stands for; None if it is something else."""
        path: list[str] = []
        base = node
        while isinstance(base, ast.Attribute):
            path.insert(0, base.attr)
            base = base.value
        if not isinstance(base, ast.Name) or base.id not in self._records:
            return None
        found = [p for p in self._records[base.id] if list(p[: len(path)]) == path]
        if not found:
            raise AttributeError(f"{ast.unparse(node)} is no field of the record")
        return [ast.Name(_field(base.id, p), ast.Load()) for p in found]

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        numbers = self._numbers(node)
        if numbers is None:
            return self.generic_visit(node)
        assert len(numbers) == 1, f"{ast.unparse(node)} is several numbers"
        return numbers[0]

    def visit_Call(self, node: ast.Call) -> Any:
        node.args = [n for argument in node.args for n in self._numbers(argument) or [argument]]
        self.generic_visit(node)
        arguments: list[ast.expr] = []
        for argument in node.args:
            starred = isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple)
            arguments += argument.value.elts if starred else [argument]  # type: ignore[attr-defined]
        node.args = arguments if len(arguments) <= MANY_ARGUMENTS else [_in_parts(arguments)]
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Load) and node.id in self._constants:
            value = self._constants[node.id]
            if isinstance(value, int | float):
                return self.visit_Constant(ast.Constant(value))
        return node

    def visit_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, float):
            return ast.Call(ast.Name("float32", ast.Load()), [node], [])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        value = self._value(node)
        if isinstance(value, int | float):
            return self.visit_Constant(ast.Constant(value))
        return self.generic_visit(node)

    def _value(self, node: ast.expr) -> Any:
        """The value of an expression of constants; _UNKNOWN if it depends on anything else."""
        if not self._is_constant(node):
            return _UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._constants[node.id]
        expression = ast.fix_missing_locations(ast.Expression(node))
        return eval(compile(expression, "<constant>", "eval"), {}, self._constants)

    def _is_constant(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._constants
        if isinstance(node, ast.Call | ast.Subscript):
            return False
        return all(self._is_constant(child) for child in ast.iter_child_nodes(node))


def _in_parts(arguments: list[ast.expr]) -> ast.expr:
    """Many arguments of a call as a sum of tuples. Python's compiler would append them to a list one by one,
    each of which makes another type for Numba."""
    parts = [
        ast.Tuple(arguments[i : i + MANY_ARGUMENTS], ast.Load())
        for i in range(0, len(arguments), MANY_ARGUMENTS)
    ]
    whole: ast.expr = parts[0]
    for part in parts[1:]:
        whole = ast.BinOp(whole, ast.Add(), part)
    return ast.Starred(whole, ast.Load())


_UNKNOWN = object()


def _copy(node: Any) -> Any:
    """A node with all below it, to be changed by itself; `copy.deepcopy` takes four times as long."""
    copied = type(node)()
    copied.__dict__.update(node.__dict__)
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            setattr(copied, name, [_copy(each) if isinstance(each, ast.AST) else each for each in value])
        elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
            setattr(copied, name, _copy(value))
    return copied


def _register(name: str, index: tuple[int, ...]) -> str:
    return "_".join([name, *map(str, index)])


def _field(name: str, path: tuple[str, ...]) -> str:
    return "_".join([name, *path])


def _indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for n in shape:
        found = [(*index, i) for index in found for i in range(n)]
    return found
