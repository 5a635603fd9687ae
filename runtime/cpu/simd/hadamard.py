"""The Hadamard transform of the lanes of a vector."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ....quant.jit.levels import LANES
from ....quant.jit.llvm_ir import F32V, I32_, multiply_add, vector_of
from ....quant.jit.simd.vectors import F32, instruction


@instruction(F32, F32)
def mix_lanes(builder: Any, a: Any) -> Any:
    """Lane i becomes Σ (-1)^popcount(i & j) · lane j, the Hadamard transform without its factor."""
    order = ir.VectorType(I32_, LANES)
    half = 1
    while half < LANES:
        partner = builder.shuffle_vector(a, a, vector_of(order, [i ^ half for i in range(LANES)]))
        signs = vector_of(F32V, [-1.0 if i & half else 1.0 for i in range(LANES)])
        a = multiply_add(builder, a, signs, partner)
        half *= 2
    return a
