"""Loads and stores of global memory."""

from __future__ import annotations

import ctypes

import numpy as np

from .instruction import instruction

# The loads for weights are ordered and without .nc, because the assembler would move .nc loads down to their
# use.


@instruction("ld.global.L1::no_allocate.v4.u32 {$0, $1, $2, $3}, [$4];", "rrrr", "l", ordered=True)
def load_stream4(address: int) -> tuple[int, ...]:
    """16 bytes that are read once, so that they are not kept in the L1 cache."""
    return tuple((ctypes.c_int32 * 4).from_address(address))


@instruction("ld.global.L1::no_allocate.u32 $0, [$1];", "r", "l", ordered=True)
def load_stream1(address: int) -> int:
    """4 bytes that are read once."""
    return ctypes.c_int32.from_address(address).value


@instruction("ld.global.L1::no_allocate.v2.u32 {$0, $1}, [$2];", "rr", "l", ordered=True)
def load_stream2(address: int) -> tuple[int, ...]:
    """8 bytes that are read once."""
    return tuple((ctypes.c_int32 * 2).from_address(address))


@instruction(
    "{ .reg .u16 t; ld.global.L1::no_allocate.u16 t, [$1]; cvt.u32.u16 $0, t; }", "r", "l", ordered=True
)
def load_stream_short(address: int) -> int:
    """A uint16, zero-extended."""
    return ctypes.c_uint16.from_address(address).value


@instruction(
    "{ .reg .u16 t; ld.global.L1::no_allocate.u8 t, [$1]; cvt.u32.u16 $0, t; }", "r", "l", ordered=True
)
def load_stream_byte(address: int) -> int:
    """A uint8, zero-extended."""
    return ctypes.c_uint8.from_address(address).value


@instruction("ld.global.v2.f32 {$0, $1}, [$2];", "ff", "l", ordered=True)
def load_float2(address: int) -> tuple[float, ...]:
    """Two float32, from an address that is a multiple of 8."""
    return tuple(map(np.float32, (ctypes.c_float * 2).from_address(address)))


@instruction("ld.global.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", "l", ordered=True)
def load_float4(address: int) -> tuple[float, ...]:
    """Four float32, from an address that is a multiple of 16."""
    return tuple(map(np.float32, (ctypes.c_float * 4).from_address(address)))


@instruction("ld.global.f32 $0, [$1];", "f", "l", ordered=True)
def load_float(address: int) -> float:
    """A float32."""
    return np.float32(ctypes.c_float.from_address(address).value)


@instruction("ld.global.nc.f32 $0, [$1];", "f", "l")
def load_constant(address: int) -> float:
    """A float32 that no kernel writes, through the read-only cache."""
    return np.float32(ctypes.c_float.from_address(address).value)


@instruction("ld.global.u32 $0, [$1];", "r", "l", ordered=True)
def load_int(address: int) -> int:
    """An int32."""
    return ctypes.c_int32.from_address(address).value


@instruction("{ .reg .u16 t; ld.global.u16 t, [$1]; cvt.u32.u16 $0, t; }", "r", "l", ordered=True)
def load_short(address: int) -> int:
    """A uint16, zero-extended."""
    return ctypes.c_uint16.from_address(address).value


@instruction("ld.global.v2.u32 {$0, $1}, [$2];", "rr", "l", ordered=True)
def load_int2(address: int) -> tuple[int, ...]:
    """Two int32, from an address that is a multiple of 8."""
    return tuple((ctypes.c_int32 * 2).from_address(address))


@instruction("ld.global.v4.u32 {$0, $1, $2, $3}, [$4];", "rrrr", "l", ordered=True)
def load_int4(address: int) -> tuple[int, ...]:
    """Four int32, from an address that is a multiple of 16."""
    return tuple((ctypes.c_int32 * 4).from_address(address))


@instruction("st.global.f32 [$0], $1;", "", "lf", ordered=True)
def store_float(address: int, value: float) -> None:
    """Store a float32."""
    ctypes.c_float.from_address(address).value = float(value)


@instruction("st.global.v4.f32 [$0], {$1, $2, $3, $4};", "", "lffff", ordered=True)
def store_float4(address: int, a: float, b: float, c: float, d: float) -> None:
    """Store four float32, at an address that is a multiple of 16."""
    for i, value in enumerate((a, b, c, d)):
        ctypes.c_float.from_address(address + 4 * i).value = float(value)


@instruction("st.global.u32 [$0], $1;", "", "lr", ordered=True)
def store_int(address: int, value: int) -> None:
    """Store an int32."""
    ctypes.c_int32.from_address(address).value = value


@instruction("{ .reg .u16 t; cvt.u16.u32 t, $1; st.global.u16 [$0], t; }", "", "lr", ordered=True)
def store_short(address: int, value: int) -> None:
    """Store the low 2 bytes."""
    ctypes.c_uint16.from_address(address).value = value & 0xFFFF


@instruction("{ .reg .u16 t; cvt.u16.u32 t, $1; st.global.u8 [$0], t; }", "", "lr", ordered=True)
def store_byte(address: int, value: int) -> None:
    """Store the lowest byte."""
    ctypes.c_uint8.from_address(address).value = value & 0xFF


@instruction("ld.global.u64 $0, [$1];", "l", "l", ordered=True)
def load_long(address: int) -> int:
    """An int64."""
    return ctypes.c_int64.from_address(address).value


@instruction("st.global.u64 [$0], $1;", "", "ll", ordered=True)
def store_long(address: int, value: int) -> None:
    """Store an int64."""
    ctypes.c_int64.from_address(address).value = value
