"""SIMD intrinsics on vectors in registers: broadcasts, arithmetic, conversions, reductions over lanes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..levels import LANES
from ..llvm_ir import F32V, I32_, I32V, call, fold, larger, multiply_add, splat, vector_of
from .vectors import F32, I32, instruction


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
    """The larger value in each lane, b where either is NaN; vmaxps."""
    return larger(builder, a, b)


@instruction(F32, F32, F32)
def minimum(builder: Any, a: Any, b: Any) -> Any:
    """The smaller value in each lane, b where either is NaN; vminps."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


@instruction(F32, F32)
def absolute(builder: Any, a: Any) -> Any:
    """|a|; vandps."""
    return call(builder, f"llvm.fabs.v{LANES}f32", F32V, a)


@instruction(F32, F32)
def round_even(builder: Any, a: Any) -> Any:
    """Round to the nearest integer, ties to even; vroundps."""
    return call(builder, f"llvm.rint.v{LANES}f32", F32V, a)


@instruction(F32, I32)
def to_f32(builder: Any, a: Any) -> Any:
    """Convert int32 to float32; vcvtdq2ps."""
    return builder.sitofp(a, F32V)


@instruction(I32, F32)
def to_i32(builder: Any, a: Any) -> Any:
    """Convert float32 to int32, rounding towards zero; vcvttps2dq."""
    return builder.fptosi(a, I32V)


@instruction(F32, I32)
def bits_to_f32(builder: Any, a: Any) -> Any:
    """The bits of each int32 lane reinterpreted as float32; no instruction."""
    return builder.bitcast(a, F32V)


@instruction(types.float32, F32)
def lane_sum(builder: Any, a: Any) -> Any:
    """The sum of all lanes."""
    return fold(builder, a, builder.fadd)


@instruction(types.float32, F32)
def lane_max(builder: Any, a: Any) -> Any:
    """The largest lane."""
    return fold(builder, a, lambda x, y: larger(builder, x, y))


@instruction(F32, F32)
def mix_lanes(builder: Any, a: Any) -> Any:
    """Lane i becomes Σ (-1)^popcount(i & j) · lane j, the Hadamard transform without its factor."""
    order, half = ir.VectorType(I32_, LANES), 1
    while half < LANES:
        partner = builder.shuffle_vector(a, a, vector_of(order, [i ^ half for i in range(LANES)]))
        signs = vector_of(F32V, [-1.0 if i & half else 1.0 for i in range(LANES)])
        a = multiply_add(builder, a, signs, partner)
        half *= 2
    return a


@instruction(types.int32, I32)
def lane_sum_i32(builder: Any, a: Any) -> Any:
    """The sum of all lanes."""
    return fold(builder, a, builder.add)
