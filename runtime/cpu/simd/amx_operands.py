"""Operands of products in matrix tiles (`amx`) that are made of float32, int8 and nibbles: rows of bfloat16.

A number that bfloat16 is too coarse for is the sum of two: `high_part`, and what is left.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import signature

from ....quant.jit.decorators import jit
from ....quant.jit.llvm_ir import F32V, I16, I32V, all_lanes, beside, larger, load, store, vector_of
from ....quant.jit.simd.vectors import F32, instruction, intrinsic
from .amx import INTERLEAVED, in_order, rounded
from .amx_sizes import ROWS

_WORDS = ir.VectorType(I16, ROWS)
_TWO, _FOUR = types.UniTuple(F32, 2), types.UniTuple(F32, 4)


@instruction(types.none, types.int64, F32, F32)
def store_row(builder: Any, address: Any, low: Any, high: Any) -> None:
    """Store `low` and `high` as 32 bfloat16, one behind the other."""
    store(builder, rounded(builder, low, high), address, 64)


@instruction(types.none, types.int64, F32, F32)
def store_pairs(builder: Any, address: Any, first: Any, second: Any) -> None:
    """Store `first` and `second` as 16 pairs of bfloat16."""
    store(builder, in_order(builder, rounded(builder, first, second), INTERLEAVED), address, 64)


@instruction(F32, F32)
def high_part(builder: Any, x: Any) -> Any:
    """x rounded to bfloat16; the rest, x - high_part(x), is at most 2⁻⁸ of x.

    Halves are rounded away from 0. A NaN may become a number here, but then the rest is NaN.
    """
    bits = builder.add(builder.bitcast(x, I32V), all_lanes(I32V, 0x8000))
    return builder.bitcast(builder.and_(bits, all_lanes(I32V, 0xFFFF0000)), F32V)


@jit
def store_split(address: int, rest: int, first: Any, second: Any) -> None:
    """Store pairs of bfloat16, and what they lack `rest` bytes further on; `rest` 0: round instead."""
    if rest == 0:
        store_pairs(address, first, second)
    else:
        high, other_high = high_part(first), high_part(second)
        store_pairs(address, high, other_high)
        store_pairs(address + rest, first - high, second - other_high)


@intrinsic
def load_byte_pairs(typingctx: Any, address: Any) -> Any:
    """16 pairs of int8 at an address: the first and the second of each, two F32."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        words = builder.sext(load(builder, values[0], _WORDS, 1), I32V)
        return context.make_tuple(builder, _TWO, [_field(builder, words, at, 8) for at in (0, 8)])

    return signature(_TWO, types.int64), codegen


@intrinsic
def load_nibble_pairs(typingctx: Any, address: Any) -> Any:
    """16 pairs of bytes at an address, two signed nibbles each: the low nibbles of the first and the second
    bytes, then the high nibbles, four F32."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        words = builder.sext(load(builder, values[0], _WORDS, 1), I32V)
        return context.make_tuple(builder, _FOUR, [_field(builder, words, at, 4) for at in (0, 8, 4, 12)])

    return signature(_FOUR, types.int64), codegen


def _field(builder: Any, words: Any, at: int, bits: int) -> Any:
    """The signed number in `bits` bits of each lane from bit `at` on, F32."""
    up = builder.shl(words, all_lanes(I32V, 32 - bits - at))
    return builder.sitofp(builder.ashr(up, all_lanes(I32V, 32 - bits)), F32V)


@instruction(F32, types.int64)
def row_maxima(builder: Any, address: Any) -> Any:
    """The largest lane of each of the 16 F32 at an address: lane i is that of number i.

    Of a pair of vectors, halves of lanes are merged and compared, until there is one vector.
    """
    vectors = [load(builder, beside(builder, address, 64 * i), F32V, 4) for i in range(ROWS)]
    index = ir.VectorType(ir.IntType(32), ROWS)
    step = ROWS // 2
    while step:
        # Lanes whose number has the bit `step` go to the second vector of a pair.
        low = [i if not i & step else i - step + ROWS for i in range(ROWS)]
        high = [i + step for i in low]
        vectors = [
            larger(
                builder,
                *(
                    builder.shuffle_vector(vectors[i], vectors[i + step], vector_of(index, order))
                    for order in (low, high)
                ),
            )
            for i in range(step)
        ]
        step //= 2
    return vectors[0]
