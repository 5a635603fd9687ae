"""Arithmetic, logic and conversions of numbers in registers."""

from __future__ import annotations

import math
import struct
from functools import cache

import numpy as np

from .instruction import instruction

# Meanings are called for every thread: NumPy's scalars and arrays would take ten times as long.
_UNSIGNED, _SIGNED, _FLOAT, _HALVES = (struct.Struct(code) for code in ("<I", "<i", "<f", "<2e"))


def _signed(value: int) -> int:
    """The low 32 bits as a signed integer."""
    return ((int(value) & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _f16(word: int) -> tuple[float, float]:
    """The two float16 of a word."""
    return _HALVES.unpack(_UNSIGNED.pack(int(word) & 0xFFFFFFFF))


def _word(low: float, high: float) -> int:
    """The word of two numbers, each rounded to float16."""
    try:
        return _SIGNED.unpack(_HALVES.pack(low, high))[0]
    except OverflowError:
        return _word(_infinite_if_large(low), _infinite_if_large(high))


def _infinite_if_large(value: float) -> float:
    """Infinity for what no float16 holds: half a step above the largest, 65504, and more."""
    return math.copysign(math.inf, value) if abs(value) >= 65520 else value


def _quotient(a: float, b: float) -> np.float32:
    """a / b of two float32, correctly rounded; float64 in between does not change that."""
    if b and abs(found := float(a) / float(b)) < 3e38:
        return np.float32(found)
    with np.errstate(all="ignore"):
        return np.float32(a) / np.float32(b)


@cache
def _chosen_bytes(selector: int) -> tuple[tuple[int, int, int], ...]:
    """Of each byte of `permute_bytes`: the lowest bit of its source in the eight bytes, whether only that
    byte's sign is wanted, and its own lowest bit."""
    nibbles = [selector >> 4 * i & 15 for i in range(4)]
    return tuple((8 * (nibble & 7), nibble & 8, 8 * i) for i, nibble in enumerate(nibbles))


@instruction("prmt.b32 $0, $1, $2, $3;", "r", "rrr")
def permute_bytes(a: int, b: int, selector: int) -> int:
    """A word of four of the eight bytes of a and b (`prmt`).

    The low 3 bits of nibble i of `selector` are the index of byte i of the result. If bit 3 of the nibble is
    set, the sign bit of that byte is repeated eight times instead.
    """
    data = int(a) & 0xFFFFFFFF | (int(b) & 0xFFFFFFFF) << 32
    out = 0
    for source, sign_only, place in _chosen_bytes(int(selector)):
        byte = data >> source & 255
        out |= (255 * (byte >> 7) if sign_only else byte) << place
    return _signed(out)


@instruction("and.b32 $0, $1, $2;", "r", "rr")
def bits_and(a: int, b: int) -> int:
    """a & b."""
    return _signed(a & b)


@instruction("or.b32 $0, $1, $2;", "r", "rr")
def bits_or(a: int, b: int) -> int:
    """a | b."""
    return _signed(a | b)


@instruction("xor.b32 $0, $1, $2;", "r", "rr")
def bits_xor(a: int, b: int) -> int:
    """a ^ b."""
    return _signed(a ^ b)


@instruction("lop3.b32 $0, $1, $2, $3, 0x6A;", "r", "rrr")
def and_xor(a: int, b: int, c: int) -> int:
    """(a & b) ^ c."""
    return _signed((a & b) ^ c)


@instruction("lop3.b32 $0, $1, $2, $3, 0xEA;", "r", "rrr")
def and_or(a: int, b: int, c: int) -> int:
    """(a & b) | c."""
    return _signed((a & b) | c)


@instruction("lop3.b32 $0, $1, $2, $3, 0x94;", "r", "rrr")
def and_where_else_xor(a: int, b: int, where: int) -> int:
    """a & b in the bits that are set in `where`, a ^ b in the others."""
    return _signed((a & b & where) | ((a ^ b) & ~where))


@instruction("shf.r.wrap.b32 $0, $1, $1, $2;", "r", "rr")
def rotate_right(a: int, n: int) -> int:
    """The bits of a word moved n places to the right, those that fall out put in again at the left."""
    return _signed((a & 0xFFFFFFFF) >> n | (a << (32 - n)))


@instruction("shr.u32 $0, $1, $2;", "r", "rr")
def shift_right(a: int, n: int) -> int:
    """a >> n of an unsigned word."""
    return _signed((a & 0xFFFFFFFF) >> n)


@instruction("shl.b32 $0, $1, $2;", "r", "rr")
def shift_left(a: int, n: int) -> int:
    """a << n."""
    return _signed(a << n)


@instruction("add.s32 $0, $1, $2;", "r", "rr")
def add_words(a: int, b: int) -> int:
    """a + b; also adds the bytes of two words, if no byte overflows."""
    return _signed(a + b)


@instruction("mad.lo.s32 $0, $1, $2, $3;", "r", "rrr")
def multiply_add(a: int, b: int, c: int) -> int:
    """The low 32 bits of a · b + c."""
    return _signed(a * b + c)


@instruction("mad.wide.u32 $0, $1, $2, $3;", "l", "rrl")
def multiply_add_wide(a: int, b: int, c: int) -> int:
    """a · b + c of unsigned words a and b and a 64-bit c."""
    return a * b + c


@instruction("div.u32 $0, $1, $2;", "r", "rr")
def div_u32(a: int, b: int) -> int:
    """a // b of unsigned words. Numba's own division would take 64 bits."""
    return a // b


@instruction("cvt.rn.f32.s32 $0, $1;", "f", "r")
def to_float(value: int) -> float:
    """The float32 nearest to an int32."""
    return np.float32(value)


@instruction("cvt.rni.s32.f32 $0, $1;", "r", "f")
def to_int(value: float) -> int:
    """The nearest integer, ties to even."""
    return int(np.rint(value))


@instruction("mov.b32 $0, $1;", "f", "r")
def as_float(bits: int) -> float:
    """The float32 with these bits."""
    return np.float32(_FLOAT.unpack(_UNSIGNED.pack(int(bits) & 0xFFFFFFFF))[0])


@instruction("mov.b32 $0, $1;", "r", "f")
def as_int(value: float) -> int:
    """The bits of a float32."""
    return _SIGNED.unpack(_FLOAT.pack(value))[0]


@instruction("{ .reg .f16 a, b; mov.b32 {a, b}, $1; cvt.f32.f16 $0, a; }", "f", "r")
def low_f16(word: int) -> float:
    """The float16 in the low 16 bits, as float32."""
    return np.float32(_f16(word)[0])


@instruction("{ .reg .f16 a, b; mov.b32 {a, b}, $1; cvt.f32.f16 $0, b; }", "f", "r")
def high_f16(word: int) -> float:
    """The float16 in the high 16 bits, as float32."""
    return np.float32(_f16(word)[1])


@instruction("{ .reg .f16 a, b; cvt.rn.f16.f32 a, $1; cvt.rn.f16.f32 b, $2; mov.b32 $0, {a, b}; }", "r", "ff")
def pack_f16(low: float, high: float) -> int:
    """Two float32 rounded to float16, in one word."""
    return _word(low, high)


@instruction("add.rn.f16x2 $0, $1, $2;", "r", "rr")
def add_f16x2(a: int, b: int) -> int:
    """a + b of two float16 each."""
    (low, high), (other_low, other_high) = _f16(a), _f16(b)
    return _word(low + other_low, high + other_high)


@instruction("fma.rn.f16x2 $0, $1, $2, $3;", "r", "rrr")
def fma_f16x2(a: int, b: int, c: int) -> int:
    """a · b + c of two float16 each, rounded once."""
    (a_low, a_high), (b_low, b_high), (c_low, c_high) = _f16(a), _f16(b), _f16(c)
    return _word(a_low * b_low + c_low, a_high * b_high + c_high)


@instruction("max.f32 $0, $1, $2;", "f", "ff")
def maximum(a: float, b: float) -> float:
    """The larger of two float32; a number if one of them is NaN."""
    return a if a >= b or b != b else b


@instruction("min.f32 $0, $1, $2;", "f", "ff")
def minimum(a: float, b: float) -> float:
    """The smaller of two float32; a number if one of them is NaN."""
    return a if a <= b or b != b else b


@instruction("abs.f32 $0, $1;", "f", "f")
def absolute(a: float) -> float:
    """|a|."""
    return abs(a)


@instruction("ex2.approx.ftz.f32 $0, $1;", "f", "f")
def exp2(a: float) -> float:
    """2^a within 2 units in the last place."""
    return np.float32(math.exp2(a) if a < 128 else a + math.inf)


@instruction("lg2.approx.f32 $0, $1;", "f", "f")
def log2(a: float) -> float:
    """log2(a), approximated."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float32(np.log2(np.float64(a)))


@instruction("rsqrt.approx.f32 $0, $1;", "f", "f")
def rsqrt(a: float) -> float:
    """1 / √a, approximated."""
    with np.errstate(divide="ignore"):
        return np.float32(1 / np.sqrt(np.float64(a)))


@instruction("div.rn.f32 $0, $1, $2;", "f", "ff")
def div_f32(a: float, b: float) -> float:
    """a / b, correctly rounded."""
    return _quotient(a, b)


@instruction("div.full.f32 $0, $1, $2;", "f", "ff")
def div_near(a: float, b: float) -> float:
    """a / b within two units in the last place, for kernels with wgmma. `div_f32` calls a subroutine for rare
    quotients, and where a kernel has any call, the driver's assembler makes each wgmma wait for its result.
    """
    return _quotient(a, b)


@instruction("sqrt.rn.f32 $0, $1;", "f", "f")
def sqrt(a: float) -> float:
    """√a, correctly rounded."""
    return np.float32(math.sqrt(a))


# The angle is reduced by full turns in float64, because the approximations are only accurate near 0.
_REDUCED = (
    "{{ .reg .f64 a, n; .reg .f32 r; cvt.f64.f32 a, $1; mul.f64 n, a, 0d3FC45F306DC9C883; "
    "cvt.rni.f64.f64 n, n; fma.rn.f64 a, n, 0dC01921FB54442D18, a; cvt.rn.f32.f64 r, a; "
    "{}.approx.f32 $0, r; }}"
)


@instruction(_REDUCED.format("cos"), "f", "f")
def cosine(angle: float) -> float:
    """cos(angle), with an error of at most 2^-20 for any angle in radians."""
    return np.float32(math.cos(angle))


@instruction(_REDUCED.format("sin"), "f", "f")
def sine(angle: float) -> float:
    """sin(angle), as accurate as `cosine`."""
    return np.float32(math.sin(angle))
