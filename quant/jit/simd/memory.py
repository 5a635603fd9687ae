"""SIMD intrinsics that load and store scalars and vectors, widening or narrowing them on the way.

Names: `load_` and `store_` for a scalar, `loadv_` and `storev_` for a vector, and the type in memory.
Addresses are int64 numbers; vectors need no more alignment than their elements.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from ..levels import LANES
from ..llvm_ir import F32V, FLOAT, HALF, I8, I16, I32_, I32V, all_lanes, fetch, load, store
from .vectors import F32, I32, instruction, intrinsic


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
    """Store a float32."""
    store(builder, value, address, 4)


@instruction(types.none, types.int64, types.int32)
def store_i32(builder: Any, address: Any, value: Any) -> None:
    """Store an int32."""
    store(builder, value, address, 4)


@instruction(types.none, types.int64, types.int64)
def store_i64(builder: Any, address: Any, value: Any) -> None:
    """Store an int64."""
    store(builder, value, address, 8)


@instruction(types.none, types.int64, types.float32)
def store_f16(builder: Any, address: Any, value: Any) -> None:
    """Store a float32 rounded to fp16."""
    half = builder.fptrunc(value, HALF)
    store(builder, half, address, 2)


@instruction(F32, types.int64)
def loadv_f32(builder: Any, address: Any) -> Any:
    """`LANES` consecutive float32; vmovups."""
    return load(builder, address, F32V, 4)


@instruction(types.none, types.int64, F32)
def storev_f32(builder: Any, address: Any, value: Any) -> None:
    """Store `LANES` float32; vmovups."""
    store(builder, value, address, 4)


@instruction(I32, types.int64)
def loadv_i32(builder: Any, address: Any) -> Any:
    """`LANES` consecutive int32; vmovdqu."""
    return load(builder, address, I32V, 4)


@instruction(I32, types.int64)
def loadv_u16(builder: Any, address: Any) -> Any:
    """`LANES` consecutive uint16, zero-extended to int32; vpmovzxwd."""
    return builder.zext(load(builder, address, ir.VectorType(I16, LANES), 2), I32V)


@instruction(I32, types.int64)
def loadv_u8(builder: Any, address: Any) -> Any:
    """`LANES` consecutive uint8, zero-extended to int32; vpmovzxbd."""
    return builder.zext(load(builder, address, ir.VectorType(I8, LANES), 1), I32V)


@instruction(F32, types.int64)
def loadv_f16(builder: Any, address: Any) -> Any:
    """`LANES` consecutive fp16, widened to float32; vcvtph2ps."""
    return builder.fpext(load(builder, address, ir.VectorType(HALF, LANES), 2), F32V)


@instruction(F32, types.int64)
def loadv_bf16(builder: Any, address: Any) -> Any:
    """`LANES` consecutive bfloat16, widened to float32; vpmovzxwd + vpslld."""
    wide = builder.zext(load(builder, address, ir.VectorType(I16, LANES), 2), I32V)
    return builder.bitcast(builder.shl(wide, all_lanes(I32V, 16)), F32V)


@instruction(types.none, types.int64, I32)
def storev_i32(builder: Any, address: Any, value: Any) -> None:
    """Store `LANES` int32; vmovdqu."""
    store(builder, value, address, 4)


@instruction(types.none, types.int64, I32)
def storev_i8(builder: Any, address: Any, value: Any) -> None:
    """Store the low byte of each lane as int8; vpmovdb."""
    kind = ir.VectorType(I8, LANES)
    store(builder, builder.trunc(value, kind), address, 1)


@instruction(types.none, types.int64)
def prefetch(builder: Any, address: Any) -> None:
    """Prefetch the cache line at an address, which may be invalid; prefetcht0."""
    fetch(builder, address)


@instruction(types.none, types.int64)
def prefetch_far(builder: Any, address: Any) -> None:
    """Prefetch the cache line at an address, which may be invalid, into the L2 cache; prefetcht1."""
    fetch(builder, address, 2)


@instruction(types.none, types.int64)
def look_at(builder: Any, address: Any) -> None:
    """Load 4 bytes from a valid address and drop them: as a prefetch, but hardware prefetchers learn from it.

    An empty inline assembly that claims to read the number keeps the load.
    """
    word = load(builder, address, I32_, 4)
    reader = ir.FunctionType(ir.VoidType(), [I32_])
    builder.call(ir.InlineAsm(reader, "", "r", side_effect=True), [word])


@intrinsic
def as_pointer(typingctx: Any, address: Any) -> Any:
    """An int64 address → the pointer type that `numba.carray` takes."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return signature(types.voidptr, types.int64), codegen
