"""Building blocks of instructions: what `simd`, `dot8`, `dot16`, `tiles` and `outer` write LLVM code with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from .levels import LANES

I8, I16, I32_, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
HALF, FLOAT = ir.HalfType(), ir.FloatType()
F32V, I32V = ir.VectorType(FLOAT, LANES), ir.VectorType(I32_, LANES)
I8V, I16V = ir.VectorType(I8, 4 * LANES), ir.VectorType(I16, 2 * LANES)


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Call the LLVM intrinsic `name`."""
    fnty = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, fnty, name), args)


def vector_of(vector: Any, values: Iterable[Any]) -> ir.Constant:
    """A constant with these lanes."""
    return ir.Constant(vector, [ir.Constant(vector.element, v) for v in values])


def all_lanes(vector: Any, value: Any) -> ir.Constant:
    """A constant with the same number in every lane."""
    return vector_of(vector, [value] * vector.count)


def splat(builder: Any, scalar: Any, vector: Any) -> Any:
    """The same value in every lane."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32_, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32_, vector.count), None))


def beside(builder: Any, address: Any, offset: int) -> Any:
    """An address plus a constant."""
    return builder.add(address, ir.Constant(I64, offset))


def load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def store(builder: Any, value: Any, address: Any, align: int) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=align)


def fetch(builder: Any, address: Any) -> None:
    """Ask for the cache line at an address, which need not exist."""
    pointer = builder.inttoptr(address, cgutils.voidptr_t)
    read, keep, data = (ir.Constant(I32_, i) for i in (0, 3, 1))
    call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, read, keep, data)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c of F32 vectors, fused where the CPU can."""
    return call(builder, f"llvm.fmuladd.v{LANES}f32", F32V, a, b, c)


def larger(builder: Any, a: Any, b: Any) -> Any:
    """The larger of two floats in each lane; b if either is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def fold(builder: Any, a: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """A vector's lanes combined to one, by halves."""
    width = LANES
    while width > 1:
        width //= 2
        order = ir.VectorType(I32_, width)
        low, high = (
            builder.shuffle_vector(a, a, vector_of(order, range(start, start + width)))
            for start in (0, width)
        )
        a = combine(low, high)
    return builder.extract_element(a, ir.Constant(I32_, 0))
