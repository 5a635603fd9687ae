"""Integer dot products of int16 pairs, and the loads and stores of cache elements that attention needs.

An I32 lane can hold a pair of int16. Two products a lane take one or two instructions, twice the rate of
float32; int8 or 4-bit codes of a quantised cache are widened to int16 by one or three more.

=====================  =================================
level                  acc + a₀·b₀ + a₁·b₁
=====================  =================================
avx512vnni, avxvnni    vpdpwssd
avx512, avx2           vpmaddwd + vpaddd
plain                  widening multiplications, additions
=====================  =================================

On arm64 (levels `i8mm` and `neon`) that would be two multiplications, two shuffles and two additions. There a
number that meets codes, of a query or a softmax numerator, is written as two int8 digits, 256 · high + low,
and sdot multiplies four of either digit with four int8 codes a lane: the same integers, and nothing to widen.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ....quant.jit.levels import ARM64, AVX_WITHOUT_VNNI, LANES, LEVEL
from ....quant.jit.llvm_ir import (
    F32V,
    FLOAT,
    HALF,
    I8,
    I16,
    I16V,
    I32_,
    I32V,
    I64,
    all_lanes,
    call,
    load,
    splat,
    store,
    vector_of,
)
from ....quant.jit.simd.vectors import F32, I32, instruction

_WIDE = ir.VectorType(I32_, 2 * LANES)
# The largest int16 that products take: on arm64, of which both digits are int8.
LARGEST = 127 * 256 + 127 if ARM64 else 32767


# --- LLVM IR builders, for intrinsics --------------------------------------------------------------------


def add_products(builder: Any, acc: Any, a: Any, b: Any) -> Any:
    """acc + a₀·b₀ + a₁·b₁ in each lane of I32 vectors that hold pairs of int16."""
    if LEVEL in ("avx512vnni", "avxvnni"):
        return call(builder, f"llvm.x86.avx512.vpdpwssd.{32 * LANES}", I32V, acc, a, b)
    a, b = builder.bitcast(a, I16V), builder.bitcast(b, I16V)
    if AVX_WITHOUT_VNNI:
        name = "llvm.x86.avx2.pmadd.wd" if LANES == 8 else "llvm.x86.avx512.pmaddw.d.512"
        return builder.add(acc, call(builder, name, I32V, a, b))
    products = builder.mul(builder.sext(a, _WIDE), builder.sext(b, _WIDE))
    even, odd = (
        builder.shuffle_vector(products, products, vector_of(I32V, range(i, 2 * LANES, 2))) for i in (0, 1)
    )
    return builder.add(acc, builder.add(even, odd))


def bytes_as_pairs(builder: Any, address: Any) -> Any:
    """The 2 · LANES int8 at an address as pairs of int16, I32; vpmovsxbw."""
    wide = builder.sext(load(builder, address, ir.VectorType(I8, 2 * LANES), 1), I16V)
    return builder.bitcast(wide, I32V)


def nibbles_as_pairs(builder: Any, address: Any) -> list:
    """The low and the high signed nibbles of the 2 · LANES bytes at an address as pairs of int16: two I32."""
    wide = builder.bitcast(bytes_as_pairs(builder, address), I16V)
    four, twelve = all_lanes(I16V, 4), all_lanes(I16V, 12)
    low = builder.ashr(builder.shl(wide, twelve), twelve)
    return [builder.bitcast(v, I32V) for v in (low, builder.ashr(wide, four))]


def digits(builder: Any, numbers: Any) -> Any:
    """A vector of int16 up to LARGEST as int8 digits: the low ones of four numbers, then their high ones.

    Adding 128 carries what a signed low digit lacks into the high one, and the other way round.
    """
    half = all_lanes(numbers.type, 128)
    n_bytes = 2 * numbers.type.count
    kind = ir.VectorType(I8, n_bytes)
    split = builder.bitcast(builder.xor(builder.add(numbers, half), half), kind)
    order = [8 * four + 2 * i + high for four in range(n_bytes // 8) for high in (0, 1) for i in range(4)]
    return builder.shuffle_vector(split, split, vector_of(ir.VectorType(I32_, n_bytes), order))


def signed_halves(builder: Any, numbers: Any) -> list:
    """The low and the high half of each integer of a vector as two vectors of as wide integers: nibbles of
    int8, or the even and the odd int8 of int16 with two each."""
    half = all_lanes(numbers.type, numbers.type.element.width // 2)
    return [builder.ashr(builder.shl(numbers, half), half), builder.ashr(numbers, half)]


# --- intrinsics, for kernels -----------------------------------------------------------------------------


@instruction(I32, types.int64)
def load_bytes(builder: Any, address: Any) -> Any:
    """The 2 · LANES int8 at an address as pairs of int16."""
    return bytes_as_pairs(builder, address)


@instruction(types.UniTuple(I32, 2), types.int64)
def load_nibbles(builder: Any, address: Any) -> Any:
    """The low and the high signed nibbles of the 2 · LANES bytes at an address as pairs of int16."""
    return cgutils.pack_array(builder, nibbles_as_pairs(builder, address))


@instruction(types.float32, types.int64)
def load_f16(builder: Any, address: Any) -> Any:
    """The fp16 at an address, widened to float32."""
    return builder.fpext(load(builder, address, HALF, 2), FLOAT)


@instruction(types.int64, types.int64)
def load_i8(builder: Any, address: Any) -> Any:
    """The int8 at an address, widened to int64."""
    return builder.sext(load(builder, address, I8, 1), I64)


@instruction(types.none, types.int64, types.int64)
def store_i8(builder: Any, address: Any, value: Any) -> None:
    """Write the low byte of an int64."""
    store(builder, builder.trunc(value, I8), address, 1)


@instruction(types.int64, types.int64)
def load_i64(builder: Any, address: Any) -> Any:
    """The int64 at an address."""
    return load(builder, address, I64, 8)


@instruction(types.none, types.int64, I32)
def store_numbers(builder: Any, address: Any, value: Any) -> None:
    """Write the low int16 of each lane for products with codes: int16 [LANES], on arm64 their `digits`."""
    numbers = builder.trunc(value, ir.VectorType(I16, LANES))
    store(builder, digits(builder, numbers) if ARM64 else numbers, address, 2)


@instruction(types.none, types.int64, I32)
def store_pairs(builder: Any, address: Any, value: Any) -> None:
    """Write the pairs of int16 of all lanes for products with codes: int16 [LANES, 2], on arm64 `digits`."""
    store(builder, digits(builder, builder.bitcast(value, I16V)) if ARM64 else value, address, 4)


@instruction(types.float32, F32)
def first_lane(builder: Any, a: Any) -> Any:
    """The first lane, float32."""
    return builder.extract_element(a, ir.Constant(I32_, 0))


@instruction(F32, F32, types.int64, types.int64, types.float32)
def keep_lanes(builder: Any, a: Any, first: Any, last: Any, other: Any) -> Any:
    """a in the lanes first … last-1, `other` in the rest; vpcmpgtd + vblendvps."""
    lanes = vector_of(I32V, range(LANES))
    low, high = (splat(builder, builder.trunc(i, I32_), I32V) for i in (first, last))
    inside = builder.and_(builder.icmp_signed(">=", lanes, low), builder.icmp_signed("<", lanes, high))
    return builder.select(inside, a, splat(builder, other, F32V))
