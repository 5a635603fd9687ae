"""SIMD types for Numba: vectors of 32-bit lanes that live in registers, their operators, and `instruction`.

There are two vector types, `F32` and `I32`, of `LANES` lanes each (`levels`). In the matmul kernels a lane is
a *row* of the weight matrix (`runtime/cpu/simd/dot8.py`), so that no sum crosses lanes. The intrinsics on
vectors are in `memory`, `arithmetic` and `threads`; addresses are plain int64 numbers, which kernels read
from their argument records.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.core.imputils import lower_constant
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic as _typed_intrinsic
from numba.extending import lower_builtin, models, register_model, typeof_impl

from ..levels import ARM64, LANES, cpu_features
from ..llvm_ir import F32V, I32V, splat

_config: Any = numba.config
if ARM64 and _config.CPU_FEATURES is None:
    # LLVM's own list may lack what the level needs: see `cpu_features`.
    _config.CPU_FEATURES = cpu_features().flatten()

# Numba's annotations describe the decorated Python function, not the calls in compiled code.
intrinsic: Any = _typed_intrinsic


class VectorType(types.Type):
    """The Numba type of a vector of `LANES` 32-bit lanes."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"{name}x{LANES}")


class FloatVector(VectorType):
    """The type of `F32`: float32 lanes."""


class IntVector(VectorType):
    """The type of `I32`: int32 lanes, also used as 32-bit fields without a sign."""


F32, I32 = FloatVector("f32"), IntVector("i32")


class ConstantType(types.Type):
    """The Numba type of a value that is known at compile time: each value has a type of its own."""

    def __init__(self, value: Any) -> None:
        super().__init__(name=repr(value))
        self.value = value


def compile_time(kind: type) -> type:
    """Class decorator: compiled code takes instances as compile-time constants (`ConstantType`).

    Two instances are the same constant if they have the same `repr`.
    """

    @typeof_impl.register(kind)
    def _typeof(value: Any, context: Any) -> ConstantType:
        return ConstantType(value)

    return kind


register_model(ConstantType)(models.OpaqueModel)


@lower_constant(ConstantType)
def _lower_constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@register_model(FloatVector)
class _FloatModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, F32V)


@register_model(IntVector)
class _IntModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, I32V)


def instruction(result: Any, *args: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator for `emit(builder, *values)`, which emits the LLVM code of an intrinsic with this signature.

    `result` and `args` are Numba types; `values` are the arguments as LLVM values.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        def definition(typingctx: Any, *given: Any) -> Any:
            def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
                return emit(builder, *values)

            return signature(result, *args), codegen

        # Numba matches a call against the Python signature, which must have no *args.
        names = ["typingctx", *(f"a{i}" for i in range(len(args)))]
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        definition.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        definition.__name__ = emit.__name__
        definition.__doc__ = emit.__doc__
        return intrinsic(definition)

    return decorate


def _operator(op: Any, kind: Any, right: Any, emit: Callable[..., Any]) -> None:
    """Define a Python operator on vectors; for I32, an integer on the right is broadcast to all lanes."""

    class Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and args[0] == kind:
                if args[1] == right:
                    return signature(kind, kind, right)
                if kind == I32 and isinstance(args[1], types.Integer):
                    return signature(kind, kind, types.int32)
            return None

    infer_global(op)(Template)

    @lower_builtin(op, kind, right)
    def _vector(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return emit(builder, *values)

    if kind == I32:

        @lower_builtin(op, kind, types.int32)
        def _scalar(context: Any, builder: Any, sig: Any, values: Any) -> Any:
            return emit(builder, values[0], splat(builder, values[1], I32V))


_operator(operator.add, F32, F32, lambda b, x, y: b.fadd(x, y))
_operator(operator.sub, F32, F32, lambda b, x, y: b.fsub(x, y))
_operator(operator.mul, F32, F32, lambda b, x, y: b.fmul(x, y))
_operator(operator.truediv, F32, F32, lambda b, x, y: b.fdiv(x, y))
_operator(operator.add, I32, I32, lambda b, x, y: b.add(x, y))
_operator(operator.sub, I32, I32, lambda b, x, y: b.sub(x, y))
_operator(operator.mul, I32, I32, lambda b, x, y: b.mul(x, y))
_operator(operator.and_, I32, I32, lambda b, x, y: b.and_(x, y))
_operator(operator.or_, I32, I32, lambda b, x, y: b.or_(x, y))
_operator(operator.xor, I32, I32, lambda b, x, y: b.xor(x, y))
_operator(operator.lshift, I32, I32, lambda b, x, y: b.shl(x, y))
_operator(operator.rshift, I32, I32, lambda b, x, y: b.lshr(x, y))  # logical shift: lanes hold bit fields
