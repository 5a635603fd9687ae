"""Powers of two of F32 vectors, for the softmax of attention."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ....quant.jit.levels import LANES, LEVEL
from ....quant.jit.llvm_ir import F32V, I16, I32_, I32V, all_lanes, call, larger, multiply_add
from ....quant.jit.simd.vectors import F32, instruction


def _power_of_two(builder: Any, x: Any, coefficients: tuple[float, ...]) -> Any:
    """2^x = 2^n · 2^r with n = round(x): 2^r by a polynomial, 2^n by adding n to the exponent bits.

    `coefficients` are those of the polynomial, highest power first, without the constant 1.
    """
    x = larger(builder, all_lanes(F32V, -126.0), x)  # in this order NaN stays NaN
    n = call(builder, f"llvm.rint.v{LANES}f32", F32V, x)
    r = builder.fsub(x, n)
    p = all_lanes(F32V, coefficients[0])
    for c in (*coefficients[1:], 1.0):
        p = multiply_add(builder, p, r, all_lanes(F32V, c))
    exponent = builder.shl(builder.fptosi(n, I32V), all_lanes(I32V, 23))
    return builder.bitcast(builder.add(builder.bitcast(p, I32V), exponent), F32V)


# Minimax polynomials of 2^r for |r| ≤ 1/2 without their last two coefficients.
_DEGREE_5 = (0.0013264727193397395, 0.009671512639929547, 0.055507337432645965, 0.24022242085368942)
_DEGREE_4 = (0.009582853092036978, 0.05590642460154033, 0.24024098610004083)


@instruction(F32, F32)
def exp2(builder: Any, x: Any) -> Any:
    """2^x for x < 128, to 1e-7 relative; x is clamped at -126; NaN stays NaN."""
    return _power_of_two(builder, x, (*_DEGREE_5, 0.6931469775991551))


@instruction(F32, F32)
def coarse_exp2(builder: Any, x: Any) -> Any:
    """2^x for x < 128, to 3e-6 relative: a fifth of the rounding error of a 15-bit number."""
    return _power_of_two(builder, x, (*_DEGREE_4, 0.6931241934169263))


# Minimax polynomial of 2^r for 0 ≤ r < 1 that is 1 at 0, highest power first.
_DEGREE_3 = (0.0770675, 0.22764449, 0.6951169)


@instruction(F32, F32)
def bfloat_exp2(builder: Any, x: Any) -> Any:
    """2^x for x ≤ 0, to 9e-5 relative: a twentieth of the rounding error of bfloat16. 0 for -inf.

    With AVX-512 the fraction of x comes from vreduceps, and vscalefps multiplies by 2^⌊x⌋.
    """
    if LEVEL == "plain16":
        return _flushed(builder, x, _power_of_two(builder, x, (*_DEGREE_4, 0.6931241934169263)))
    mask, current = ir.Constant(I16, -1), ir.Constant(I32_, 4)  # all lanes; the rounding mode that is set
    zero, down = all_lanes(F32V, 0.0), ir.Constant(I32_, 1)  # no bits behind the point, rounded down
    r = call(builder, "llvm.x86.avx512.mask.reduce.ps.512", F32V, x, down, zero, mask, current)
    p = all_lanes(F32V, _DEGREE_3[0])
    for c in (*_DEGREE_3[1:], 1.0):
        p = multiply_add(builder, p, r, all_lanes(F32V, c))
    return call(builder, "llvm.x86.avx512.mask.scalef.ps.512", F32V, p, x, zero, mask, current)


@instruction(F32, F32)
def flushed_exp2(builder: Any, x: Any) -> Any:
    """2^x as `exp2` gives it, but 0 for x < -126, -inf among them."""
    return _flushed(builder, x, _power_of_two(builder, x, (*_DEGREE_5, 0.6931469775991551)))


def _flushed(builder: Any, x: Any, power: Any) -> Any:
    """`power`, or 0 where x < -126."""
    tiny = builder.fcmp_ordered("<", x, all_lanes(F32V, -126.0))
    return builder.select(tiny, all_lanes(F32V, 0.0), power)
