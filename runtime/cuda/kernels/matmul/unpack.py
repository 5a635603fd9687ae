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
"""

from __future__ import annotations

from typing import Any

from ...compile.stage import device, registers, static
from ...ptx import (
    add_words,
    and_xor,
    bits_and,
    bits_or,
    bits_xor,
    permute_bytes,
    shift_left,
    shift_right,
)
from .scales import (
    half_scale,
    iq4_xs_scale,
    load_exponent,
    load_half_16,
    load_half_20,
    load_half_32,
    load_iq4_xs,
    load_q2_k,
    load_q3_k,
    load_q6_k,
    load_super_block_16,
    load_super_block_20,
    load_two_16,
    load_two_20,
    power_of_two,
    q2_k_scale,
    q3_k_scale,
    q4_k_scale,
    q5_0_scale,
    q6_k_scale,
    two_halves,
)
from .stream import read1, read2, read4

NIBBLES = 0x0F0F0F0F
PAIRS = 0x03030303
ONES = 0x01010101
SIGNS = 0x80808080


@device
def nibbles(a, b, c, d):
    """4-bit codes: of each word the low nibbles of its bytes, then the high ones."""
    words = a, b, c, d
    out = registers(8)
    for i in static(8):
        out[i] = bits_and(shift_right(words[i // 2], 4 * (i & 1)), NIBBLES)
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
def with_high(low, high, at):
    """Codes whose bits from bit `at` on are those of `high`."""
    out = registers(8)
    for i in static(8):
        out[i] = bits_or(low[i], shift_left(high[i], at))
    return out[()]


@device
def minus(word, complement):
    """Signed bytes code - n, of codes and n below 128; `complement` has 128 - n in each byte."""
    return bits_xor(add_words(word, complement), SIGNS)


@device
def all_minus(words, complement):
    """`minus` of eight words."""
    out = registers(8)
    for i in static(8):
        out[i] = minus(words[i], complement)
    return out[()]


@device
def table(word, t0, t1, t2, t3):
    """Look up the nibbles of a word in a table of 16 bytes: the low nibbles, then the high ones, of
    its bytes.
    """
    index, upper = bits_and(word, 0x77777777), shift_right(bits_and(word, 0x88888888), 1)
    first = permute_bytes(
        permute_bytes(t0, t1, index), permute_bytes(t2, t3, index), bits_or(0x3210, bits_and(upper, 0xFFFF))
    )
    index, upper = shift_right(index, 16), shift_right(upper, 16)
    second = permute_bytes(permute_bytes(t0, t1, index), permute_bytes(t2, t3, index), bits_or(0x3210, upper))
    return permute_bytes(first, second, 0x6420), permute_bytes(first, second, 0x7531)


@device
def fifth_bits(a, b, c, d, high):
    """5-bit codes."""
    return with_high(nibbles(a, b, c, d), single_bits(high), 4)


@device
def looked_up(a, b, c, d, t0, t1, t2, t3):
    """4-bit codes looked up in a table."""
    words = a, b, c, d
    out = registers(8)
    for i in static(4):
        out[2 * i], out[2 * i + 1] = table(words[i], t0, t1, t2, t3)
    return out[()]


@device
def iq4(a, b, c, d):
    """The codebook of IQ4_NL and IQ4_XS."""
    return looked_up(a, b, c, d, 0xBFAD9881, 0xF6EADDCF, 0x26190D01, 0x71594535)


@device
def mxfp4(a, b, c, d):
    """Twice the E2M1 values of MXFP4."""
    return looked_up(a, b, c, d, 0x03020100, 0x0C080604, 0xFDFEFF00, 0xF4F8FAFC)


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
    """Code - 32 of 6-bit codes."""
    return all_minus(with_high(nibbles(a, b, c, d), pairs(e, f), 4), 0x60606060)


@device
def q3_k(a, b, high):
    """Code - 4 of 3-bit codes."""
    return all_minus(with_high(pairs(a, b), single_bits(high), 2), 0x7C7C7C7C)


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
) -> dict[str, Any]:
    """The constants of a format; `codes` and `scales` are the functions that load and unpack, and
    words loaded.
    """
    constants: dict[str, Any] = dict(zip(("LOAD_CODES", "UNPACK_CODES", "CODE_WORDS"), codes, strict=True))
    constants |= dict(zip(("LOAD_SCALES", "UNPACK_SCALES", "SCALE_WORDS"), scales, strict=True))
    constants |= {f"PLANE_{i}": size for i, size in enumerate((*planes, 0, 0)[:3])}
    return constants | {
        "SUPER_PLANE": super_block,
        "ONLY_NIBBLES": nibbles,
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
        _NIBBLES, (load_super_block_16, q4_k_scale, 4), minimum=1, planes=(16,), super_block=16, nibbles=1
    ),
    "Q5_K": _reader(_FIVE, (load_super_block_20, q4_k_scale, 4), minimum=1, planes=(16, 4), super_block=16),
    "Q6_K": _reader(
        (load_nibbles_pairs, q6_k, 6), (load_q6_k, q6_k_scale, 2), halves=1, planes=(16, 8, 2), super_block=2
    ),
    "IQ4_NL": _reader((load_nibbles, iq4, 4), (load_half_16, half_scale, 1), planes=(16, 2)),
    "IQ4_XS": _reader((load_nibbles, iq4, 4), (load_iq4_xs, iq4_xs_scale, 2), planes=(16, 1), super_block=2),
    "MXFP4": _reader((load_nibbles, mxfp4, 4), (load_exponent, power_of_two, 1), planes=(16, 1)),
}
