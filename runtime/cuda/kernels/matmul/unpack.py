"""Reads packed weights of each block format, in the layout of weights/packing.py, in registers.

Kernels get four functions of the weights' format as constants; `tile` is the address of a tile, `pieces` the
number of its pieces, `piece` the index of one.

    LOAD_CODES(tile, pieces, piece)     loads a piece, packed: CODE_WORDS words
    UNPACK_CODES(*words)                unpacks them to 8 words of 4 signed bytes: word 2b + h has the
                                        codes of half h of block b
    LOAD_SCALES(tile, pieces, piece)    loads the scales of block number piece % 4 of the piece's chunk:
                                        SCALE_WORDS words
    UNPACK_SCALES(*words, piece)        unpacks them to a, b, a', b': weights are (a · code + b) / UNIT in
                                        the first half of the block, (a' · code + b') / UNIT in the second

Loads and unpacking are separate so that kernels can keep several loads in flight. `READERS` has these
functions for each format, the numbers of words, TWO_SCALES (whether the halves of a block have different
scales), MINIMUM (whether b is not always 0), and UNIT. A tile is PLANE_0 bytes for each piece, then PLANE_1
and PLANE_2 bytes for each, then SUPER_PLANE bytes for each super-block of a row. With ONLY_NIBBLES, a piece's
words are the nibbles of codes and nothing else: 1, as they are unpacked; 16, unpacked to 16 · (code - 8).
PEELED: see `decode_mma_4`; the loads of Q4_0 are so few that the assembler does without branches anyway.
"""

from __future__ import annotations

from typing import Any

from ...compile.stage import device, registers, static
from ...ptx import (
    add_words,
    and_or,
    and_where_else_xor,
    and_xor,
    bits_and,
    bits_or,
    bits_xor,
    block_x,
    multiply_add,
    permute_bytes,
    rotate_right,
    shift_left,
    shift_right,
)
from .scales import (
    half_scale,
    iq4_xs_scale,
    load_bytes_16,
    load_bytes_20,
    load_exponent,
    load_half_16,
    load_half_20,
    load_half_32,
    load_iq4_xs,
    load_nvfp4_factor,
    load_q2_k,
    load_q3_k,
    load_q6_k,
    load_short_16,
    load_two_16,
    load_two_20,
    nvfp4_scale,
    power_of_two,
    q2_k_scale,
    q3_k_scale,
    q4_k_scale,
    q5_0_scale,
    q6_k_scale,
    quick_power_of_two,
    two_e4m3,
    two_halves,
)
from .stream import read1, read2, read4

NIBBLES = 0x0F0F0F0F
PAIRS = 0x03030303
ONES = 0x01010101
SIGNS = 0x80808080
# Tables of 16 signed bytes, in four words: see `table`.
IQ4_0, IQ4_1, IQ4_2, IQ4_3 = 0xC0D2E7FE, 0x26190D01, 0x8995A2B0, 0x71594535
MXFP4_0, MXFP4_1, MXFP4_2, MXFP4_3 = 0x03020100, 0x82818080, 0x0C080604, 0x8B878583
# The same as sums of two entries: see `summands`.
IQ4_T0, IQ4_T1, IQ4_U0, IQ4_U1 = 0xC0AE9982, 0x26190D01, 0x35455971, 0xD0DEEBF7
MXFP4_T0, MXFP4_T1, MXFP4_U0, MXFP4_U1 = 0x03020100, 0xFEFF0001, 0xFCFAF9F5, 0x0406080C


@device
def nibbles(a, b, c, d):
    """4-bit codes: of each word the low nibbles of its bytes, then the high ones."""
    words = a, b, c, d
    out = registers(8)
    for i in static(8):
        out[i] = bits_and(shift_right(words[i // 2], 4) if i & 1 else words[i // 2], NIBBLES)
    return out[()]


@device
def single_bits(word):
    """Single bits: byte k of word t is bit t of byte k."""
    out = registers(8)
    for i in static(8):
        out[i] = bits_and(shift_right(word, i), ONES)
    return out[()]


@device
def pairs(a, b):
    """2-bit codes: bits 2t and 2t + 1 of the bytes of a and of b are the codes of words 2t and 2t + 1."""
    words = a, b
    out = registers(8)
    for i in static(8):
        out[i] = bits_and(shift_right(words[i & 1], i & 6), PAIRS)
    return out[()]


@device
def q3_k(a, b, high):
    """Code - 4 of 3-bit codes."""
    low = registers(8)
    third = registers(8)
    low[()] = pairs(a, b)
    third[()] = single_bits(high)
    for i in static(8):
        low[i] = bits_xor(add_words(bits_or(low[i], shift_left(third[i], 2)), 0x7C7C7C7C), SIGNS)
    return low[()]


@device
def fifth_bits(a, b, c, d, high):
    """5-bit codes: nibbles, and bit t of the bytes of `high` for word t."""
    out = registers(8)
    out[()] = nibbles(a, b, c, d)
    for i in static(8):
        fifth = shift_left(high, 4 - i) if i < 4 else high if i == 4 else shift_right(high, i - 4)
        out[i] = and_or(fifth, 0x10101010, out[i])
    return out[()]


@device
def table(word, t0, t1, t2, t3):
    """Look up the low four nibbles of a word, then the high four, in a table of 16 signed bytes.

    Bits 0 … 2 of a nibble are an index into t0 and t1, or, if bit 3 is set, into t2 and t3. What `prmt`
    finds in the half that is not meant is just the sign of the entry there, eight times; entries with the
    same index have the same sign. Negative entries are stored with all bits but the sign inverted, so that
    the exclusive or with the sign's bits gives them back.
    """
    other = bits_xor(word, 0x88888888)
    first = and_where_else_xor(permute_bytes(t0, t1, word), permute_bytes(t2, t3, other), SIGNS)
    word, other = shift_right(word, 16), shift_right(other, 16)
    return first, and_where_else_xor(permute_bytes(t0, t1, word), permute_bytes(t2, t3, other), SIGNS)


@device
def kept(word):
    """A constant that the assembler cannot know, so that it keeps it in a register: `prmt` takes only one
    constant, and for the other it would otherwise load a register again and again.
    """
    return bits_xor(word, shift_right(block_x(), 31))


@device
def looked_up(a, b, c, d, t0, t1, t2, t3):
    """4-bit codes looked up in a table."""
    words = a, b, c, d
    t0, t2 = kept(t0), kept(t2)
    out = registers(8)
    for i in static(4):
        out[2 * i], out[2 * i + 1] = table(words[i], t0, t1, t2, t3)
    return out[()]


@device
def summands(zero, a, b, c, d, t0, t1, u0, u1):
    """4-bit codes looked up in a table, which is a sum of two: behind each word the one to add to it.

    `prmt` finds t where bit 3 of a code is 0, else the sign of t, which is 0 or -1; of the complement of the
    code it finds u where bit 3 was 1. u is in the order of complements. `zero` is 0.
    """
    words = a, b, c, d
    t0, u0 = bits_xor(t0, zero), bits_xor(u0, zero)
    minus = bits_xor(-1, zero)
    out = registers(16)
    for i in static(4):
        high = shift_right(words[i], 16)
        out[4 * i] = permute_bytes(t0, t1, words[i])
        out[4 * i + 1] = permute_bytes(u0, u1, multiply_add(words[i], minus, minus))
        out[4 * i + 2] = permute_bytes(t0, t1, high)
        out[4 * i + 3] = permute_bytes(u0, u1, multiply_add(high, minus, minus))
    return out[()]


@device
def mxfp4_summands(zero, a, b, c, d):
    return summands(zero, a, b, c, d, MXFP4_T0, MXFP4_T1, MXFP4_U0, MXFP4_U1)


@device
def iq4_summands(zero, a, b, c, d):
    return summands(zero, a, b, c, d, IQ4_T0, IQ4_T1, IQ4_U0, IQ4_U1)


@device
def iq4(a, b, c, d):
    """The codebook of IQ4_NL and IQ4_XS."""
    return looked_up(a, b, c, d, IQ4_0, IQ4_1, IQ4_2, IQ4_3)


@device
def mxfp4(a, b, c, d):
    """Twice the E2M1 values of MXFP4 and NVFP4."""
    return looked_up(a, b, c, d, MXFP4_0, MXFP4_1, MXFP4_2, MXFP4_3)


@device
def sixteenfold(word):
    """16 · (code - 8) as signed bytes, of the codes in the high nibbles of a word."""
    return and_xor(word, 0xF0F0F0F0, SIGNS)


@device
def q4_0(a, b, c, d):
    """16 · (code - 8) of Q4_0, whose UNIT is 16."""
    words = a, b, c, d
    out = registers(8)
    for i in static(4):
        out[2 * i], out[2 * i + 1] = sixteenfold(shift_left(words[i], 4)), sixteenfold(words[i])
    return out[()]


@device
def q8_0(a, b, c, d, e, f, g, h):
    """8-bit codes need no unpacking."""
    return a, b, c, d, e, f, g, h


@device
def q6_k(a, b, c, d, e, f):
    """4 · (code - 32) of Q6_K, whose UNIT is 4; the words of low bits are rotated by two bits to the left."""
    words = a, b, c, d
    high = e, f
    out = registers(8)
    for i in static(8):
        low = rotate_right(words[i // 2], 4) if i & 1 else words[i // 2]
        upper = and_xor(shift_left(high[i & 1], 6 - (i & 6)) if i < 6 else high[i & 1], 0xC0C0C0C0, SIGNS)
        out[i] = and_or(low, 0x3C3C3C3C, upper)
    return out[()]


# Loads of codes


@device
def load_nibbles(tile, pieces, piece):
    """16 bytes of 4-bit codes."""
    return read4(tile + 16 * piece)


@device
def load_nibbles_bits(tile, pieces, piece):
    """4-bit codes and 4 bytes of fifth bits."""
    return (*read4(tile + 16 * piece), read1(tile + 16 * pieces + 4 * piece))


@device
def load_nibbles_pairs(tile, pieces, piece):
    """4-bit codes and 8 bytes of the two high bits."""
    return read4(tile + 16 * piece) + read2(tile + 16 * pieces + 8 * piece)


@device
def load_pairs(tile, pieces, piece):
    """8 bytes of 2-bit codes."""
    return read2(tile + 8 * piece)


@device
def load_pairs_bits(tile, pieces, piece):
    """2-bit codes and 4 bytes of third bits."""
    return (*read2(tile + 8 * piece), read1(tile + 8 * pieces + 4 * piece))


@device
def load_bytes(tile, pieces, piece):
    """32 bytes of 8-bit codes, in two parts."""
    at = tile + 16 * piece + 1024 * shift_right(piece, 6)
    return read4(at) + read4(at + 1024)


def _reader(
    codes: tuple[Any, Any, int],
    scales: tuple[Any, Any, int],
    *,
    halves: int = 0,
    minimum: int = 0,
    unit: int = 1,
    planes: tuple[int, ...],
    super_block: int = 0,
    nibbles: int = 0,
    summands: Any = None,
    block_scales: tuple[Any, Any, int] | None = None,
    factor: Any = None,
) -> dict[str, Any]:
    """The constants of a format; `codes` and `scales` are the functions that load and unpack, and
    words loaded.
    """
    constants: dict[str, Any] = dict(zip(("LOAD_CODES", "UNPACK_CODES", "CODE_WORDS"), codes, strict=True))
    constants |= dict(zip(("LOAD_SCALES", "UNPACK_SCALES", "SCALE_WORDS"), scales, strict=True))
    own = zip(
        ("LOAD_BLOCK_SCALES", "UNPACK_BLOCK_SCALES", "BLOCK_SCALE_WORDS"), block_scales or scales, strict=True
    )
    constants |= dict(own)
    constants |= {"SUMMANDS": int(summands is not None), "UNPACK_SUMMANDS": summands or codes[1]}
    constants |= {"FACTOR": int(factor is not None), "LOAD_FACTOR": factor or codes[0]}
    constants |= {f"PLANE_{i}": size for i, size in enumerate((*planes, 0, 0)[:3])}
    return constants | {
        "SUPER_PLANE": super_block,
        "ONLY_NIBBLES": nibbles,
        "PEELED": int(unit != 16),
        "TWO_SCALES": halves,
        "MINIMUM": minimum,
        "UNIT": unit,
    }


_NIBBLES = load_nibbles, nibbles, 4
_FIVE = load_nibbles_bits, fifth_bits, 5
_PAIRS = load_pairs, pairs, 2

READERS: dict[str, dict[str, Any]] = {
    "Q4_0": _reader(
        (load_nibbles, q4_0, 4), (load_half_16, half_scale, 1), unit=16, planes=(16, 2), nibbles=16
    ),
    "Q4_1": _reader(_NIBBLES, (load_two_16, two_halves, 1), minimum=1, planes=(16, 4), nibbles=1),
    "Q5_0": _reader(_FIVE, (load_half_20, q5_0_scale, 1), minimum=1, planes=(16, 4, 2)),
    "Q5_1": _reader(_FIVE, (load_two_20, two_halves, 1), minimum=1, planes=(16, 4, 4)),
    "Q8_0": _reader((load_bytes, q8_0, 8), (load_half_32, half_scale, 1), planes=(32, 2)),
    "Q2_K": _reader(_PAIRS, (load_q2_k, q2_k_scale, 2), halves=1, minimum=1, planes=(8, 2), super_block=4),
    "Q3_K": _reader(
        (load_pairs_bits, q3_k, 3), (load_q3_k, q3_k_scale, 2), halves=1, planes=(8, 4, 2), super_block=2
    ),
    "Q4_K": _reader(
        _NIBBLES, (load_bytes_16, q4_k_scale, 2), minimum=1, planes=(16, 2), super_block=4, nibbles=1
    ),
    "Q5_K": _reader(_FIVE, (load_bytes_20, q4_k_scale, 2), minimum=1, planes=(16, 4, 2), super_block=4),
    "Q6_K": _reader(
        (load_nibbles_pairs, q6_k, 6),
        (load_q6_k, q6_k_scale, 2),
        halves=1,
        unit=4,
        planes=(16, 8, 2),
        super_block=2,
    ),
    "IQ4_NL": _reader(
        (load_nibbles, iq4, 4), (load_half_16, half_scale, 1), planes=(16, 2), summands=iq4_summands
    ),
    "IQ4_XS": _reader(
        (load_nibbles, iq4, 4),
        (load_iq4_xs, iq4_xs_scale, 2),
        planes=(16, 1),
        super_block=2,
        summands=iq4_summands,
    ),
    "MXFP4": _reader(
        (load_nibbles, mxfp4, 4),
        (load_exponent, power_of_two, 1),
        planes=(16, 1),
        summands=mxfp4_summands,
        block_scales=(load_exponent, quick_power_of_two, 1),
    ),
    "NVFP4": _reader(
        (load_nibbles, mxfp4, 4),
        (load_bytes_16, nvfp4_scale, 2),
        halves=1,
        planes=(16, 2),
        super_block=4,
        summands=mxfp4_summands,
        block_scales=(load_short_16, two_e4m3, 1),
        factor=load_nvfp4_factor,
    ),
}
