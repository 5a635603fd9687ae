"""Products of 2 x 8 with 8 x 2 bytes, `smmla` of level i8mm, and the order of registers that they need."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ....quant.jit.llvm_ir import I8V, I32_, I32V, I64, call, vector_of
from .dot8 import keep_order

_HALVES, _HALVES_ORDER = ir.VectorType(I64, 2), ir.VectorType(I32_, 2)


def smmla(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """total + a · bᵀ, I32: the sums of a's first row with both rows of b, then of its second row.

    `a` and `b` are vectors of 8 signed bytes of one row, then 8 of another.
    """
    a, b = (builder.bitcast(v, I8V) for v in (a, b))
    return call(builder, "llvm.aarch64.neon.smmla.v4i32.v16i8", I32V, total, a, b)


def in_pairs(builder: Any, first: Any, second: Any) -> tuple[Any, Any]:
    """Two words of four rows, I32, as 8 columns of two rows and 8 columns of the other two; zip1 and zip2."""
    low, high = (
        builder.shuffle_vector(first, second, vector_of(I32V, (i, i + 4, i + 1, i + 5))) for i in (0, 2)
    )
    return low, high


def joined(builder: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """The first halves of two vectors of four lanes in one, the second halves in another; zip1 and zip2."""
    wide = [builder.bitcast(v, _HALVES) for v in (a, b)]
    second = builder.shuffle_vector(*wide, vector_of(_HALVES_ORDER, (1, 3)))
    # LLVM joins the first halves within the first register, which it would copy for the second halves.
    *wide, second = keep_order(builder, [*wide, second])
    return first_halves(builder, *(builder.bitcast(v, a.type) for v in wide)), builder.bitcast(second, a.type)


def first_halves(builder: Any, a: Any, b: Any) -> Any:
    """The first halves of two vectors of four lanes in one."""
    return builder.shuffle_vector(a, b, vector_of(I32V, (0, 1, 4, 5)))
