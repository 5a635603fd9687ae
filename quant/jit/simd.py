"""SIMD for Numba: vectors of 32-bit lanes that live in registers, and the instructions on them.

Two vector types, `F32` and `I32`, with `LANES` lanes each (`levels`). A lane is a *row* of a weight matrix in
the matmul kernels (`dot8`), and no sum ever crosses lanes. Addresses are plain int64 numbers: kernels get
them from their argument records.
"""

from __future__ import annotations

import inspect
import operator
import platform
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_constant
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic as _typed_intrinsic
from numba.extending import lower_builtin, models, register_model, typeof_impl

from .levels import LANES, LEVEL, cpu_features
from .llvm_ir import (
    F32V,
    FLOAT,
    HALF,
    I8,
    I16,
    I32_,
    I32V,
    I64,
    all_lanes,
    call,
    fetch,
    fold,
    larger,
    load,
    multiply_add,
    splat,
    store,
)

_config: Any = numba.config
if LEVEL == "neon" and _config.CPU_FEATURES is None:
    _config.CPU_FEATURES = cpu_features().flatten()  # where LLVM's list lacks one that the level needs

intrinsic: Any = _typed_intrinsic  # its annotations describe the Python side, not the compiled calls


class VectorType(types.Type):
    """The Numba type of a vector of `LANES` 32-bit lanes."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"{name}x{LANES}")


class FloatVector(VectorType):
    pass


class IntVector(VectorType):
    pass


F32, I32 = FloatVector("f32"), IntVector("i32")


class ConstantType(types.Type):
    """The Numba type of a value that code generation needs to know: each value is a type of its own."""

    def __init__(self, value: Any) -> None:
        super().__init__(name=repr(value))
        self.value = value


def compile_time(kind: type) -> type:
    """Decorator: instances of a class, whose repr tells them apart, are constants for compiled code."""

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
    """Decorator: an intrinsic of fixed types; the function writes its LLVM instructions."""

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


# --- memory ----------------------------------------------------------------------------------------------


@instruction(types.int32, types.int64)
def load_i32(builder: Any, address: Any) -> Any:
    """The int32 at an address."""
    return load(builder, address, I32_, 4)


@instruction(types.float32, types.int64)
def load_f32(builder: Any, address: Any) -> Any:
    """The float32 at an address."""
    return load(builder, address, FLOAT, 4)


@instruction(types.none, types.int64, types.float32)
def store_f32(builder: Any, address: Any, value: Any) -> None:
    """Write a float32."""
    store(builder, value, address, 4)


@instruction(types.none, types.int64, types.int32)
def store_i32(builder: Any, address: Any, value: Any) -> None:
    """Write an int32."""
    store(builder, value, address, 4)


@instruction(types.none, types.int64, types.int64)
def store_i64(builder: Any, address: Any, value: Any) -> None:
    """Write an int64."""
    store(builder, value, address, 8)


@instruction(types.none, types.int64, types.float32)
def store_f16(builder: Any, address: Any, value: Any) -> None:
    """Write a float32 rounded to fp16."""
    half = builder.fptrunc(value, HALF)
    store(builder, half, address, 2)


@instruction(F32, types.int64)
def loadv_f32(builder: Any, address: Any) -> Any:
    """`LANES` consecutive float32; vmovups."""
    return load(builder, address, F32V, 4)


@instruction(types.none, types.int64, F32)
def storev_f32(builder: Any, address: Any, value: Any) -> None:
    """Write `LANES` float32; vmovups."""
    store(builder, value, address, 4)


@instruction(I32, types.int64)
def loadv_i32(builder: Any, address: Any) -> Any:
    """`LANES` consecutive int32; vmovdqu."""
    return load(builder, address, I32V, 4)


@instruction(I32, types.int64)
def loadv_u16(builder: Any, address: Any) -> Any:
    """`LANES` consecutive uint16, widened; vpmovzxwd."""
    return builder.zext(load(builder, address, ir.VectorType(I16, LANES), 2), I32V)


@instruction(I32, types.int64)
def loadv_u8(builder: Any, address: Any) -> Any:
    """`LANES` consecutive uint8, widened; vpmovzxbd."""
    return builder.zext(load(builder, address, ir.VectorType(I8, LANES), 1), I32V)


@instruction(F32, types.int64)
def loadv_f16(builder: Any, address: Any) -> Any:
    """`LANES` consecutive fp16, widened; vcvtph2ps."""
    return builder.fpext(load(builder, address, ir.VectorType(HALF, LANES), 2), F32V)


@instruction(F32, types.int64)
def loadv_bf16(builder: Any, address: Any) -> Any:
    """`LANES` consecutive bfloat16, widened; vpmovzxwd + vpslld."""
    wide = builder.zext(load(builder, address, ir.VectorType(I16, LANES), 2), I32V)
    return builder.bitcast(builder.shl(wide, all_lanes(I32V, 16)), F32V)


@instruction(types.none, types.int64, I32)
def storev_i32(builder: Any, address: Any, value: Any) -> None:
    """Write `LANES` int32; vmovdqu."""
    store(builder, value, address, 4)


@instruction(types.none, types.int64, I32)
def storev_i8(builder: Any, address: Any, value: Any) -> None:
    """Write the low byte of each lane."""
    kind = ir.VectorType(I8, LANES)
    store(builder, builder.trunc(value, kind), address, 1)


@instruction(types.none, types.int64)
def prefetch(builder: Any, address: Any) -> None:
    """Ask for the cache line at an address, which need not exist; prefetcht0."""
    fetch(builder, address)


# --- arithmetic ------------------------------------------------------------------------------------------


@instruction(F32, types.float32)
def splat_f32(builder: Any, value: Any) -> Any:
    """The same float32 in every lane; vbroadcastss."""
    return splat(builder, value, F32V)


@instruction(I32, types.int32)
def splat_i32(builder: Any, value: Any) -> Any:
    """The same int32 in every lane; vpbroadcastd."""
    return splat(builder, value, I32V)


@instruction(F32, F32, F32, F32)
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, fused where the CPU can; vfmadd231ps."""
    return multiply_add(builder, a, b, c)


@instruction(F32, F32, F32)
def maximum(builder: Any, a: Any, b: Any) -> Any:
    """The larger of two in each lane; vmaxps."""
    return larger(builder, a, b)


@instruction(F32, F32, F32)
def minimum(builder: Any, a: Any, b: Any) -> Any:
    """The smaller of two in each lane; vminps."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


@instruction(F32, F32)
def absolute(builder: Any, a: Any) -> Any:
    """|a|; vandps."""
    return call(builder, f"llvm.fabs.v{LANES}f32", F32V, a)


@instruction(F32, F32)
def round_even(builder: Any, a: Any) -> Any:
    """To the nearest integer, ties to even; vroundps."""
    return call(builder, f"llvm.rint.v{LANES}f32", F32V, a)


@instruction(F32, I32)
def to_f32(builder: Any, a: Any) -> Any:
    """int32 → float32; vcvtdq2ps."""
    return builder.sitofp(a, F32V)


@instruction(I32, F32)
def to_i32(builder: Any, a: Any) -> Any:
    """float32 → int32, towards zero; vcvttps2dq."""
    return builder.fptosi(a, I32V)


@instruction(F32, I32)
def bits_to_f32(builder: Any, a: Any) -> Any:
    """The same bits read as float32."""
    return builder.bitcast(a, F32V)


@instruction(types.float32, F32)
def lane_sum(builder: Any, a: Any) -> Any:
    """The sum of all lanes."""
    return fold(builder, a, builder.fadd)


@instruction(types.float32, F32)
def lane_max(builder: Any, a: Any) -> Any:
    """The largest lane."""
    return fold(builder, a, lambda x, y: larger(builder, x, y))


@instruction(types.int32, I32)
def lane_sum_i32(builder: Any, a: Any) -> Any:
    """The sum of all lanes."""
    return fold(builder, a, builder.add)


def _operator(op: Any, kind: Any, right: Any, emit: Callable[..., Any]) -> None:
    """Give vectors a Python operator; an int on the right is a constant for all lanes."""

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
_operator(operator.rshift, I32, I32, lambda b, x, y: b.lshr(x, y))  # logical: lanes are bit fields


# --- threads ---------------------------------------------------------------------------------------------


@instruction(types.int64, types.int64, types.int64)
def atomic_add(builder: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at an address and return what was there; lock xadd."""
    return builder.atomic_rmw("add", builder.inttoptr(address, I64.as_pointer()), value, "seq_cst")


@instruction(types.int64, types.int64)
def atomic_load(builder: Any, address: Any) -> Any:
    """Read the int64 at an address, seeing everything written before it was stored."""
    return builder.load_atomic(builder.inttoptr(address, I64.as_pointer()), "acquire", 8)


@instruction(types.none)
def pause(builder: Any) -> None:
    """Tell the core that this is a spin loop; pause, yield."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif machine in ("aarch64", "arm64"):
        call(builder, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(I32_, 1))


@instruction(types.none, types.int64, types.int64, types.int64, types.int64)
def call_kernel(builder: Any, address: Any, arguments: Any, step: Any, thread: Any) -> None:
    """Call the kernel (see `jit.CpuKernel`) whose machine code is at `address`."""
    fnty = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
    builder.call(builder.inttoptr(address, fnty.as_pointer()), [arguments, step, thread])


@intrinsic
def as_pointer(typingctx: Any, address: Any) -> Any:
    """An address as the pointer that `numba.carray` takes."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return signature(types.voidptr, types.int64), codegen
