"""Instructions on numbers in registers."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from .instruction import instruction


def _signed(value: int) -> int:
    return (int(value) + (1 << 31)) % (1 << 32) - (1 << 31)


def _bytes(word: int, signed: bool) -> tuple[int, ...]:
    return struct.unpack("4b" if signed else "4B", struct.pack("<I", int(word) & 0xFFFFFFFF))


def _as_f16(word: int) -> np.ndarray:
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
def permute_bytes(a: int, b: int, selector: int) -> int:
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


@instruction("lop3.b32 $0, $1, $2, $3, 0x6A;", "r", "rrr")
def and_xor(a: int, b: int, c: int) -> int:
    """(a & b) ^ c."""
    return _signed((a & b) ^ c)


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
def div_u32(a: int, b: int) -> int:
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
def low_f16(word: int) -> float:
    """The half in the low 16 bits."""
    return np.float32(_as_f16(word)[0])


@instruction("{ .reg .f16 a, b; mov.b32 {a, b}, $1; cvt.f32.f16 $0, b; }", "f", "r")
def high_f16(word: int) -> float:
    return np.float32(_as_f16(word)[1])


@instruction("{ .reg .f16 a, b; cvt.rn.f16.f32 a, $1; cvt.rn.f16.f32 b, $2; mov.b32 $0, {a, b}; }", "r", "ff")
def pack_f16(low: float, high: float) -> int:
    """Two float32 as halves in a word."""
    with np.errstate(over="ignore"):
        return _word([np.float16(low), np.float16(high)])


@instruction("add.rn.f16x2 $0, $1, $2;", "r", "rr")
def add_f16x2(a: int, b: int) -> int:
    return _word(_as_f16(a) + _as_f16(b))


@instruction("fma.rn.f16x2 $0, $1, $2, $3;", "r", "rrr")
def fma_f16x2(a: int, b: int, c: int) -> int:
    """a · b + c of two halves each, rounded once."""
    a64, b64, c64 = (_as_f16(w).astype(np.float64) for w in (a, b, c))
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
def rsqrt(a: float) -> float:
    with np.errstate(divide="ignore"):
        return np.float32(1 / np.sqrt(np.float64(a)))


@instruction("div.rn.f32 $0, $1, $2;", "f", "ff")
def div_f32(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return np.float32(np.float32(a) / np.float32(b))


@instruction("sqrt.rn.f32 $0, $1;", "f", "f")
def sqrt(a: float) -> float:
    return np.float32(math.sqrt(a))


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
