"""The PTX instructions that kernels are made of, one function each.

A function's decorator says which instruction it becomes and what its operands are: r a 32-bit integer, l a
64-bit one or an address, f a float32; outputs first. Its body, where there is one, says the same in Python,
and is what the tests' simulator runs; instructions that look at other threads have their meaning in
`tests/gpu/simulator.py`. Addresses are of global memory, or of shared memory (`shared()` and what is added
to it) where the name says so. Of several outputs a tuple is returned. Words of bytes and of halves are
32-bit integers, the first one lowest.

Source: Parallel Thread Execution ISA.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Instruction:
    """What a function of this module becomes. `ordered`: it touches memory or other threads, and stays
    where it is; other instructions may be moved, merged and dropped."""

    name: str
    ptx: str
    outputs: str
    inputs: str
    ordered: bool
    meaning: Callable[..., Any]

    def __call__(self, *operands: Any) -> Any:
        return self.meaning(*operands)


def instruction(ptx: str, outputs: str, inputs: str, ordered: bool = False) -> Callable[..., Instruction]:
    """Make a function stand for the instruction `ptx`, whose operands are $0, $1, …"""

    def mark(function: Callable[..., Any]) -> Instruction:
        return Instruction(function.__name__, ptx, outputs, inputs, ordered, function)

    return mark


# Which thread this is


@instruction("mov.u32 $0, %tid.x;", "r", "")
def thread() -> int: ...


@instruction("mov.u32 $0, %ctaid.x;", "r", "")
def block_x() -> int: ...


@instruction("mov.u32 $0, %ctaid.y;", "r", "")
def block_y() -> int: ...


@instruction("mov.u32 $0, %ctaid.z;", "r", "")
def block_z() -> int: ...


@instruction("mov.u32 $0, %nctaid.x;", "r", "")
def blocks_x() -> int: ...


@instruction("mov.u32 $0, %nctaid.y;", "r", "")
def blocks_y() -> int: ...


# Other threads


@instruction("bar.sync 0;", "", "", ordered=True)
def barrier() -> None:
    """Wait for all threads of the block; what they wrote is seen after it."""


@instruction("bar.warp.sync 0xffffffff;", "", "", ordered=True)
def warp_barrier() -> None:
    """The same for the threads of the warp. Loads that stand before it are not moved behind it."""


@instruction("shfl.sync.bfly.b32 $0, $1, $2, 31, 0xffffffff;", "f", "fr", ordered=True)
def shuffle_xor(value: float, mask: int) -> float:
    """The value of the lane whose number differs by `mask`."""


@instruction("shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", "f", "fr", ordered=True)
def shuffle(value: float, lane: int) -> float:
    """The value of `lane`."""


@instruction("griddepcontrol.wait;", "", "", ordered=True)
def wait_for_grid() -> None:
    """Wait until the launches that this one depends on are done and what they wrote is seen (sm_90)."""


@instruction("griddepcontrol.launch_dependents;", "", "", ordered=True)
def let_next_start() -> None:
    """The next launch may start its blocks where there is room (sm_90)."""


@instruction("fence.acq_rel.gpu;", "", "", ordered=True)
def fence() -> None:
    """What this thread wrote before is seen by the whole card before what it does after."""


@instruction("atom.global.add.u32 $0, [$1], $2;", "r", "lr", ordered=True)
def atomic_add(address: int, n: int) -> int:
    """Add to a word in global memory; what it was before."""
    before = ctypes.c_int32.from_address(address).value
    ctypes.c_int32.from_address(address).value = before + n
    return before


# Memory


# Loads of weights are ordered and not .nc: the assembler would move those down to where they are used.


@instruction("ld.global.L1::no_allocate.v4.u32 {$0, $1, $2, $3}, [$4];", "rrrr", "l", ordered=True)
def load_stream4(address: int) -> tuple[int, ...]:
    """16 bytes that are read once."""
    return tuple((ctypes.c_int32 * 4).from_address(address))


@instruction("ld.global.nc.v4.u32 {$0, $1, $2, $3}, [$4];", "rrrr", "l", ordered=True)
def load4(address: int) -> tuple[int, ...]:
    """16 bytes, of memory that nobody writes while the kernel runs, but perhaps one that is not done yet."""
    return tuple((ctypes.c_int32 * 4).from_address(address))


@instruction("ld.global.L1::no_allocate.u32 $0, [$1];", "r", "l", ordered=True)
def load_stream1(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


@instruction("ld.global.L1::no_allocate.v2.u32 {$0, $1}, [$2];", "rr", "l", ordered=True)
def load_stream2(address: int) -> tuple[int, ...]:
    return tuple((ctypes.c_int32 * 2).from_address(address))


@instruction(
    "{ .reg .u16 t; ld.global.L1::no_allocate.u16 t, [$1]; cvt.u32.u16 $0, t; }", "r", "l", ordered=True
)
def load_stream_short(address: int) -> int:
    """2 bytes as an unsigned number."""
    return ctypes.c_uint16.from_address(address).value


@instruction(
    "{ .reg .u16 t; ld.global.L1::no_allocate.u8 t, [$1]; cvt.u32.u16 $0, t; }", "r", "l", ordered=True
)
def load_stream_byte(address: int) -> int:
    """A byte as an unsigned number."""
    return ctypes.c_uint8.from_address(address).value


@instruction("ld.global.v2.f32 {$0, $1}, [$2];", "ff", "l", ordered=True)
def load_float2(address: int) -> tuple[float, ...]:
    return tuple(np.float32(v) for v in (ctypes.c_float * 2).from_address(address))


@instruction("ld.global.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", "l", ordered=True)
def load_float4(address: int) -> tuple[float, ...]:
    return tuple(np.float32(v) for v in (ctypes.c_float * 4).from_address(address))


@instruction("ld.global.f32 $0, [$1];", "f", "l", ordered=True)
def load_float(address: int) -> float:
    return np.float32(ctypes.c_float.from_address(address).value)


@instruction("ld.global.nc.f32 $0, [$1];", "f", "l")
def load_weight(address: int) -> float:
    """A float32 of memory that never changes."""
    return np.float32(ctypes.c_float.from_address(address).value)


@instruction("ld.global.u32 $0, [$1];", "r", "l", ordered=True)
def load_int(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


@instruction("{ .reg .u16 t; ld.global.u16 t, [$1]; cvt.u32.u16 $0, t; }", "r", "l", ordered=True)
def load_short(address: int) -> int:
    """2 bytes as an unsigned number."""
    return ctypes.c_uint16.from_address(address).value


@instruction("ld.global.v4.u32 {$0, $1, $2, $3}, [$4];", "rrrr", "l", ordered=True)
def load_int4(address: int) -> tuple[int, ...]:
    return tuple((ctypes.c_int32 * 4).from_address(address))


@instruction("st.global.f32 [$0], $1;", "", "lf", ordered=True)
def store_float(address: int, value: float) -> None:
    ctypes.c_float.from_address(address).value = float(value)


@instruction("st.global.v4.f32 [$0], {$1, $2, $3, $4};", "", "lffff", ordered=True)
def store_float4(address: int, a: float, b: float, c: float, d: float) -> None:
    for i, value in enumerate((a, b, c, d)):
        ctypes.c_float.from_address(address + 4 * i).value = float(value)


@instruction("st.global.u32 [$0], $1;", "", "lr", ordered=True)
def store_int(address: int, value: int) -> None:
    ctypes.c_int32.from_address(address).value = value


@instruction("st.global.v4.u32 [$0], {$1, $2, $3, $4};", "", "lrrrr", ordered=True)
def store_int4(address: int, a: int, b: int, c: int, d: int) -> None:
    for i, value in enumerate((a, b, c, d)):
        ctypes.c_int32.from_address(address + 4 * i).value = value


@instruction("{ .reg .u16 t; cvt.u16.u32 t, $1; st.global.u16 [$0], t; }", "", "lr", ordered=True)
def store_short(address: int, value: int) -> None:
    """The low 2 bytes."""
    ctypes.c_uint16.from_address(address).value = value & 0xFFFF


@instruction("{ .reg .u16 t; cvt.u16.u32 t, $1; st.global.u8 [$0], t; }", "", "lr", ordered=True)
def store_byte(address: int, value: int) -> None:
    """The lowest byte."""
    ctypes.c_uint8.from_address(address).value = value & 0xFF


# Shared memory. `shared()` is the address of what the launch asked for; see compiler.py.


@instruction("SHARED", "r", "")
def shared() -> int:
    """The address of the block's shared memory."""


@instruction("ld.shared.f32 $0, [$1];", "f", "r", ordered=True)
def load_shared(address: int) -> float:
    return np.float32(ctypes.c_float.from_address(address).value)


@instruction("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", "r", ordered=True)
def load_shared4(address: int) -> tuple[float, ...]:
    return tuple(np.float32(v) for v in (ctypes.c_float * 4).from_address(address))


@instruction("ld.shared.u32 $0, [$1];", "r", "r", ordered=True)
def load_shared_int(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


@instruction("st.shared.f32 [$0], $1;", "", "rf", ordered=True)
def store_shared(address: int, value: float) -> None:
    ctypes.c_float.from_address(address).value = float(value)


@instruction("st.shared.u32 [$0], $1;", "", "rr", ordered=True)
def store_shared_int(address: int, value: int) -> None:
    ctypes.c_int32.from_address(address).value = value


@instruction("st.shared.v4.u32 [$0], {$1, $2, $3, $4};", "", "rrrrr", ordered=True)
def store_shared_int4(address: int, a: int, b: int, c: int, d: int) -> None:
    for i, value in enumerate((a, b, c, d)):
        ctypes.c_int32.from_address(address + 4 * i).value = value


@instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "rlr", ordered=True)
def copy_async(to_shared: int, source: int, n_bytes: int) -> None:
    """Copy 16 bytes from global to shared memory while the thread goes on; of them those behind the first
    `n_bytes` become zeros and are not read."""
    ctypes.memset(to_shared, 0, 16)
    ctypes.memmove(to_shared, source, n_bytes)


@instruction("cp.async.commit_group;", "", "", ordered=True)
def commit_copies() -> None:
    """The copies since the last call are a group."""


@instruction("cp.async.wait_group 0;", "", "", ordered=True)
def wait_copies() -> None:
    """Wait for all groups of this thread."""


@instruction("cp.async.wait_group 1;", "", "", ordered=True)
def wait_copies_but_1() -> None:
    """Wait for all groups of this thread but the latest."""


@instruction("cp.async.wait_group 2;", "", "", ordered=True)
def wait_copies_but_2() -> None:
    """Wait for all groups of this thread but the latest two."""


# Numbers


def _signed(value: int) -> int:
    return (int(value) + (1 << 31)) % (1 << 32) - (1 << 31)


def _bytes(word: int, signed: bool) -> tuple[int, ...]:
    return struct.unpack("4b" if signed else "4B", struct.pack("<I", int(word) & 0xFFFFFFFF))


def _halves(word: int) -> np.ndarray:
    return np.array([int(word) & 0xFFFFFFFF], np.uint32).view(np.float16)


def _word(halves: Any) -> int:
    return _signed(int(np.asarray(halves, np.float16).view(np.uint32)[0]))


@instruction("dp4a.s32.s32 $0, $1, $2, $3;", "r", "rrr")
def dot_signed(a: int, b: int, c: int) -> int:
    """c + Σ a_i · b_i over four signed bytes of each."""
    return c + sum(x * y for x, y in zip(_bytes(a, True), _bytes(b, True), strict=True))


@instruction("dp4a.u32.s32 $0, $1, $2, $3;", "r", "rrr")
def dot_unsigned(a: int, b: int, c: int) -> int:
    """c + Σ a_i · b_i over four unsigned bytes of a and signed ones of b."""
    return c + sum(x * y for x, y in zip(_bytes(a, False), _bytes(b, True), strict=True))


@instruction("prmt.b32 $0, $1, $2, $3;", "r", "rrr")
def permute(a: int, b: int, selector: int) -> int:
    """Four of the eight bytes of a and b, chosen by the low 3 bits of the four low nibbles of `selector`;
    with a nibble's bit 3, the byte's sign eight times."""
    data = [*_bytes(a, False), *_bytes(b, False)]
    out = 0
    for i in range(4):
        nibble = int(selector) >> 4 * i & 15
        byte = data[nibble & 7]
        out |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * i
    return _signed(out)


@instruction("and.b32 $0, $1, $2;", "r", "rr")
def bits_and(a: int, b: int) -> int:
    return _signed(a & b)


@instruction("or.b32 $0, $1, $2;", "r", "rr")
def bits_or(a: int, b: int) -> int:
    return _signed(a | b)


@instruction("xor.b32 $0, $1, $2;", "r", "rr")
def bits_xor(a: int, b: int) -> int:
    return _signed(a ^ b)


@instruction("shr.u32 $0, $1, $2;", "r", "rr")
def shift_right(a: int, n: int) -> int:
    """Zeros come in from above."""
    return _signed((a & 0xFFFFFFFF) >> n)


@instruction("shl.b32 $0, $1, $2;", "r", "rr")
def shift_left(a: int, n: int) -> int:
    return _signed(a << n)


@instruction("add.s32 $0, $1, $2;", "r", "rr")
def add_words(a: int, b: int) -> int:
    """Bytes too, if none overflows."""
    return _signed(a + b)


@instruction("mad.lo.s32 $0, $1, $2, $3;", "r", "rrr")
def multiply_add(a: int, b: int, c: int) -> int:
    """The low 32 bits of a · b + c."""
    return _signed(a * b + c)


@instruction("div.u32 $0, $1, $2;", "r", "rr")
def divide(a: int, b: int) -> int:
    """a // b, neither below 0: Numba's own divides 64 bits."""
    return a // b


@instruction("cvt.rn.f32.s32 $0, $1;", "f", "r")
def to_float(value: int) -> float:
    return np.float32(value)


@instruction("cvt.rni.s32.f32 $0, $1;", "r", "f")
def to_int(value: float) -> int:
    """The nearest whole number, of two the even one."""
    return int(np.rint(value))


@instruction("mov.b32 $0, $1;", "f", "r")
def as_float(bits: int) -> float:
    """The float32 of these bits."""
    return np.float32(np.array([int(bits) & 0xFFFFFFFF], np.uint32).view(np.float32)[0])


@instruction("mov.b32 $0, $1;", "r", "f")
def as_int(value: float) -> int:
    return _signed(int(np.array([value], np.float32).view(np.uint32)[0]))


@instruction("{ .reg .f16 a, b; mov.b32 {a, b}, $1; cvt.f32.f16 $0, a; }", "f", "r")
def low_half(word: int) -> float:
    """The half in the low 16 bits."""
    return np.float32(_halves(word)[0])


@instruction("{ .reg .f16 a, b; mov.b32 {a, b}, $1; cvt.f32.f16 $0, b; }", "f", "r")
def high_half(word: int) -> float:
    return np.float32(_halves(word)[1])


@instruction("{ .reg .f16 a, b; cvt.rn.f16.f32 a, $1; cvt.rn.f16.f32 b, $2; mov.b32 $0, {a, b}; }", "r", "ff")
def pack_halves(low: float, high: float) -> int:
    """Two float32 as halves in a word."""
    with np.errstate(over="ignore"):
        return _word([np.float16(low), np.float16(high)])


@instruction("add.rn.f16x2 $0, $1, $2;", "r", "rr")
def add_halves(a: int, b: int) -> int:
    return _word(_halves(a) + _halves(b))


@instruction("fma.rn.f16x2 $0, $1, $2, $3;", "r", "rrr")
def fma_halves(a: int, b: int, c: int) -> int:
    """a · b + c of two halves each, rounded once."""
    a64, b64, c64 = (_halves(w).astype(np.float64) for w in (a, b, c))
    with np.errstate(over="ignore", invalid="ignore"):
        return _word((a64 * b64 + c64).astype(np.float16))


@instruction("fma.rn.f32 $0, $1, $2, $3;", "f", "fff")
def fma(a: float, b: float, c: float) -> float:
    """a · b + c, rounded once."""
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


@instruction("max.f32 $0, $1, $2;", "f", "ff")
def maximum(a: float, b: float) -> float:
    return np.fmax(a, b)


@instruction("min.f32 $0, $1, $2;", "f", "ff")
def minimum(a: float, b: float) -> float:
    return np.fmin(a, b)


@instruction("abs.f32 $0, $1;", "f", "f")
def absolute(a: float) -> float:
    return np.abs(a)


@instruction("ex2.approx.ftz.f32 $0, $1;", "f", "f")
def exp2(a: float) -> float:
    """2^a within 2 units in the last place."""
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(np.exp2(np.float64(a)))


@instruction("lg2.approx.f32 $0, $1;", "f", "f")
def log2(a: float) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float32(np.log2(np.float64(a)))


@instruction("rsqrt.approx.f32 $0, $1;", "f", "f")
def reciprocal_root(a: float) -> float:
    with np.errstate(divide="ignore"):
        return np.float32(1 / np.sqrt(np.float64(a)))


@instruction("div.rn.f32 $0, $1, $2;", "f", "ff")
def quotient(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return np.float32(np.float32(a) / np.float32(b))


@instruction("sqrt.rn.f32 $0, $1;", "f", "f")
def root(a: float) -> float:
    return np.float32(math.sqrt(a))


# Tensor cores; who holds which elements is drawn in the PTX ISA, "Matrix Fragments".


@instruction("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];", "rrrr", "r", ordered=True)
def load_matrices(address: int) -> tuple[int, ...]:
    """Four 8 × 8 matrices of halves: lane 8m + i gives the shared address of row i of matrix m; lane l gets,
    of each matrix, elements 2(l % 4) and the next of row l / 4."""


@instruction(
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];", "rrrr", "r", ordered=True
)
def load_matrices_turned(address: int) -> tuple[int, ...]:
    """The same of the transposed matrices."""


@instruction(
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, "
    "{$10, $11, $12, $13};",
    "ffff",
    "rrrrrrffff",
    ordered=True,
)
def mma_halves(
    a0: int, a1: int, a2: int, a3: int, b0: int, b1: int, c0: float, c1: float, c2: float, c3: float
) -> tuple[float, ...]:
    """C + A · B of a warp: A 16 × 16 and B 16 × 8 of halves, C 16 × 8 of float32. With g = lane / 4 and
    t = lane % 4: a0 is A[g, 2t …], a1 A[g + 8, 2t …], a2 A[g, 2t + 8 …], a3 A[g + 8, 2t + 8 …]; b0 is
    B[2t …, g], b1 B[2t + 8 …, g]; c0, c1 are C[g, 2t …], c2, c3 C[g + 8, 2t …]."""


@instruction(
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, "
    "{$10, $11, $12, $13};",
    "rrrr",
    "rrrrrrrrrr",
    ordered=True,
)
def mma_bytes(
    a0: int, a1: int, a2: int, a3: int, b0: int, b1: int, c0: int, c1: int, c2: int, c3: int
) -> tuple[int, ...]:
    """C + A · B of a warp: A 16 × 32 and B 32 × 8 of signed bytes, C 16 × 8 of int32. With g = lane / 4 and
    t = lane % 4: a0 is A[g, 4t …], a1 A[g + 8, 4t …], a2 A[g, 4t + 16 …], a3 A[g + 8, 4t + 16 …]; b0 is
    B[4t …, g], b1 B[4t + 16 …, g]; C as in `mma_halves`."""


@instruction(
    "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {$0, $1, $2, $3}, {$4, $5}, {$6}, {$7, $8, $9, $10};",
    "rrrr",
    "rrrrrrr",
    ordered=True,
)
def mma_bytes_16(a0: int, a1: int, b0: int, c0: int, c1: int, c2: int, c3: int) -> tuple[int, ...]:
    """The same of A 16 × 16 and B 16 × 8: a0 is A[g, 4t …], a1 A[g + 8, 4t …], b0 B[4t …, g]."""


# Of an angle's turns only what is left over whole ones matters; that is found in float64.
_REST = (
    "{{ .reg .f64 a, n; .reg .f32 r; cvt.f64.f32 a, $1; mul.f64 n, a, 0d3FC45F306DC9C883; "
    "cvt.rni.f64.f64 n, n; fma.rn.f64 a, n, 0dC01921FB54442D18, a; cvt.rn.f32.f64 r, a; "
    "{}.approx.f32 $0, r; }}"
)


@instruction(_REST.format("cos"), "f", "f")
def cosine(angle: float) -> float:
    """Within 2^-20 for any angle."""
    return np.float32(math.cos(angle))


@instruction(_REST.format("sin"), "f", "f")
def sine(angle: float) -> float:
    return np.float32(math.sin(angle))
