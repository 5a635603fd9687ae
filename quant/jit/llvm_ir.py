"""Helpers to emit LLVM code: types, constants and short instruction sequences for the SIMD intrinsics.

The intrinsics are in `quant/jit/simd` and `runtime/cpu/simd`. `builder` is an llvmlite `IRBuilder`, which
emits at its position; values and types are llvmlite's. Addresses are i64 values.
"""

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
    """A constant of the vector type `vector` with these lanes."""
    return ir.Constant(vector, [ir.Constant(vector.element, v) for v in values])


def all_lanes(vector: Any, value: Any) -> ir.Constant:
    """A constant of the vector type `vector` with the same number in every lane."""
    return vector_of(vector, [value] * vector.count)


def splat(builder: Any, scalar: Any, vector: Any) -> Any:
    """Broadcast a scalar to all lanes of the vector type `vector`."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32_, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32_, vector.count), None))


def beside(builder: Any, address: Any, offset: int) -> Any:
    """An address plus a constant number of bytes."""
    return builder.add(address, ir.Constant(I64, offset))


def load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    """Load a value of type `kind` from an address that is a multiple of `align` bytes."""
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def store(builder: Any, value: Any, address: Any, align: int) -> None:
    """Store a value at an address that is a multiple of `align` bytes."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=align)


def fetch(builder: Any, address: Any, locality: int = 3) -> None:
    """Prefetch the cache line at an address, which may be invalid, for reading.

    Into all cache levels, or with `locality` 2 into the second and beyond.
    """
    pointer = builder.inttoptr(address, cgutils.voidptr_t)
    read, keep, data = (ir.Constant(I32_, i) for i in (0, locality, 1))
    call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, read, keep, data)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c of F32 vectors, fused if the CPU has such an instruction."""
    return call(builder, f"llvm.fmuladd.v{LANES}f32", F32V, a, b, c)


def larger(builder: Any, a: Any, b: Any) -> Any:
    """The larger of two floats in each lane; b where either is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def fold(builder: Any, a: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Reduce a vector to a scalar: combine its halves, then the halves of the result, and so on."""
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
