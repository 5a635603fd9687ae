"""Looks up 4-bit codes in tables of 16 signed bytes: codebooks, and 4-bit floats.

The codes of a word are nibbles in the order of `_codebook_nibbles` of weights/packing.py, which exchanges
bits 2 and 3 of each, so that entries with the same low three bits have the same sign.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    and_where_else_xor,
    bits_xor,
    block_x,
    multiply_add,
    permute_bytes,
    shift_right,
)

SIGNS = 0x80808080
# Tables of 16 signed bytes, in four words: see `table`.
IQ4_0, IQ4_1, IQ4_2, IQ4_3 = 0xC0D2E7FE, 0x26190D01, 0x8995A2B0, 0x71594535
MXFP4_0, MXFP4_1, MXFP4_2, MXFP4_3 = 0x03020100, 0x82818080, 0x0C080604, 0x8B878583
# The same as sums of two entries, the second in the order of the codes' complements: see `summands`.
IQ4_T0, IQ4_T1, IQ4_U0, IQ4_U1 = 0xC0AE9982, 0x26190D01, 0x35455971, 0xD0DEEBF7
MXFP4_T0, MXFP4_T1, MXFP4_U0, MXFP4_U1 = 0x03020100, 0xFEFF0001, 0xFCFAF9F5, 0x0406080C


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
    """4-bit codes looked up in a table, as sums of two bytes: the tensor cores add them, since A · B + A' · B
    is no work for the units of logic that `prmt` keeps busy.

    `prmt` finds t where bit 3 of a nibble is 0, and where it is 1 the sign of t eight times, 0 or -1; with
    the complement of the nibble it finds u where bit 3 is 1, else the sign of u. The complement is a product,
    as those are computed elsewhere. `zero` is a 0 that the assembler does not know and that it takes to
    differ between lanes: else it loads constants again and again, or copies them out of uniform registers.
    """
    words = a, b, c, d
    t0, u0, minus = bits_xor(t0, zero), bits_xor(u0, zero), bits_xor(-1, zero)
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
    """`mxfp4` as sums."""
    return summands(zero, a, b, c, d, MXFP4_T0, MXFP4_T1, MXFP4_U0, MXFP4_U1)


@device
def iq4_summands(zero, a, b, c, d):
    """`iq4` as sums."""
    return summands(zero, a, b, c, d, IQ4_T0, IQ4_T1, IQ4_U0, IQ4_U1)


@device
def iq4(a, b, c, d):
    """The codebook of IQ4_NL and IQ4_XS."""
    return looked_up(a, b, c, d, IQ4_0, IQ4_1, IQ4_2, IQ4_3)


@device
def mxfp4(a, b, c, d):
    """Twice the E2M1 values of MXFP4 and NVFP4."""
    return looked_up(a, b, c, d, MXFP4_0, MXFP4_1, MXFP4_2, MXFP4_3)
