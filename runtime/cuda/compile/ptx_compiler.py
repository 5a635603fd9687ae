"""Compiles staged functions to PTX, by Numba."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import cuda, types
from numba.cuda import dispatcher
from numba.cuda.extending import intrinsic

from ..ptx import Instruction
from .quick_numba import quicken
from .stage import constants_for, parameter_types, stage

_TYPES = {"r": types.int32, "l": types.int64, "f": types.float32}
_SHARED = "dynamic_shared"

quicken()


def ptx_of(
    function: Callable[..., None],
    constants: Mapping[str, Any],
    capability: tuple[int, int],
    threads: int,
    resident: int,
) -> str:
    """The PTX of a kernel, whose parameters are those of `stage.parameter_types`.

    It is compiled for blocks of `threads` threads, so that `resident` blocks fit on a multiprocessor at once.
    The text has a single entry point.
    """
    numba_types = {int: types.int64, float: types.float32}
    signature = types.void(*(numba_types[t] for t in parameter_types(function)))
    with _stand_in(capability):
        text, _ = cuda.compile(
            stage(function, constants, partial(_resolve, capability)),
            signature,
            cc=capability,
            device=False,
            abi="numba",
            output="ptx",
            launch_bounds=(threads, resident),
            opt=True,
        )
    return text


def entry_point(ptx: str) -> str:
    """The name of the kernel in PTX."""
    start = ptx.index(".entry") + len(".entry")
    return ptx[start : ptx.index("(", start)].strip()


@contextmanager
def _stand_in(capability: tuple[int, int]) -> Iterator[None]:
    """A context in which Numba compiles device functions for `capability` without a card."""
    before = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = before


def _resolve(capability: tuple[int, int], used: Any, constants: Mapping[str, Any]) -> Any:
    """What Numba compiles for a global object that a staged function uses: see `stage`."""
    if isinstance(used, str) and used == "float32":
        return types.float32
    if isinstance(used, Instruction):
        return _intrinsic(used)
    if getattr(used, "on_device", False):
        return _device_function(used, tuple(sorted(constants_for(used, constants).items())), capability)
    return used


@cache
def _device_function(
    function: Callable[..., Any], constants: tuple[tuple[str, Any], ...], capability: tuple[int, int]
) -> Any:
    staged = stage(function, dict(constants), partial(_resolve, capability))
    jit: Any = cuda.jit
    return jit(device=True, forceinline=True)(staged)


@cache
def _intrinsic(instruction: Instruction) -> Any:
    """A PTX instruction as a Numba intrinsic: a call of it becomes inline assembly."""
    outputs = [_TYPES[t] for t in instruction.outputs]
    result: Any = types.void if not outputs else outputs[0] if len(outputs) == 1 else types.Tuple(outputs)
    inputs = [_TYPES[t] for t in instruction.inputs]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if instruction.name == "shared":
            return _shared_address(builder)
        kinds = [context.get_value_type(t) for t in outputs]
        value = ir.VoidType() if not kinds else kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds)
        operands = [context.get_value_type(t) for t in inputs]
        updated = [str(i) for i in range(instruction.updated)]
        constraints = ",".join(
            [*(f"={t}" for t in instruction.outputs), *updated, *instruction.inputs[instruction.updated :]]
        )
        if instruction.ordered:
            constraints += ",~{memory}" if constraints else "~{memory}"
        assembly = ir.InlineAsm(
            ir.FunctionType(value, operands), instruction.ptx, constraints, side_effect=instruction.ordered
        )
        call = builder.call(assembly, arguments, attrs=("convergent",) if instruction.ordered else ())
        if not outputs:
            return context.get_dummy_value()
        if len(outputs) == 1:
            return call
        return context.make_tuple(
            builder, signature.return_type, [builder.extract_value(call, i) for i in range(len(outputs))]
        )

    names = [f"a{i}" for i in range(len(inputs))]
    scope: dict[str, Any] = {"signature": result(*inputs), "generate": generate}
    exec(f"def {instruction.name}({', '.join(['context', *names])}):\n    return signature, generate", scope)
    make: Any = intrinsic
    return make(scope[instruction.name])


def _shared_address(builder: Any) -> Any:
    """The address of dynamic shared memory; its size is a parameter of the launch."""
    module = builder.module
    if _SHARED not in module.globals:
        array = ir.GlobalVariable(module, ir.ArrayType(ir.IntType(8), 0), _SHARED, addrspace=3)
        array.linkage, array.align = "external", 16
    return builder.ptrtoint(module.globals[_SHARED], ir.IntType(32))
