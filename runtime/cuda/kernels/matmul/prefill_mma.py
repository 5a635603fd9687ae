"""Dequantises pieces of weights (see weights/packing.py) to float16 in registers, for prefill products."""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    add_f16x2,
    and_or,
    as_float,
    as_int,
    bits_xor,
    fma_f16x2,
    pack_f16,
    permute_bytes,
    shift_right,
    shuffle,
)
from ..common.common import activate

UNPACK_CODES = UNPACK_SCALES = activate  # constants of the launch: see unpack.py
CODE_WORDS = SCALE_WORDS = TWO_SCALES = MINIMUM = 1
ONLY_NIBBLES = 0
SIGNS = 0x80808080
MAGIC = 0x64646464  # 0x6400 + n are the bits of the float16 1024 + n, for a byte n
MINUS_1152 = 0xE480E480  # float16, twice: 1024, and 128 for the inverted sign bit of a signed byte


@device
def two_weights(inverted, selector, a, b):
    """a · code + b, float16, of two of four signed bytes whose sign bits are inverted; `selector` is
    prmt's.
    """
    return fma_f16x2(add_f16x2(permute_bytes(inverted, MAGIC, selector), MINUS_1152), a, b)


@device
def four_weights(codes, a, b):
    """a · code + b, float16, of four signed bytes: a word of the first and third, and one of the others.

    a and b are the same float16 twice.
    """
    inverted = bits_xor(codes, SIGNS)
    return two_weights(inverted, 0x4240, a, b), two_weights(inverted, 0x4341, a, b)


@device
def low_nibbles(word):
    """The codes in bits 0 … 3 and 16 … 19, as float16: with ONLY_NIBBLES = 16 sixteen times code - 8."""
    codes = and_or(word, 0x000F000F, 0x64006400)  # 1024 + code
    if ONLY_NIBBLES == 16:
        codes = fma_f16x2(codes, 0x4C004C00, 0xF408F408)  # · 16 - 16 · 1032
    else:
        codes = add_f16x2(codes, 0xE400E400)  # - 1024
    return codes


@device
def high_nibbles(word):
    """`low_nibbles` of the codes in bits 4 … 7 and 20 … 23."""
    codes = and_or(word, 0x00F000F0, 0x64006400)  # 1024 + 16 · code
    if ONLY_NIBBLES == 16:
        codes = add_f16x2(codes, MINUS_1152)
    else:
        codes = fma_f16x2(codes, 0x2C002C00, 0xD400D400)  # / 16 - 64
    return codes


@device
def eight_weights(word, a, b):
    """a · code + b of the nibbles of a word, as `four_weights` has those of the low and of the high ones."""
    odd = shift_right(word, 8)
    return (
        fma_f16x2(low_nibbles(word), a, b),
        fma_f16x2(low_nibbles(odd), a, b),
        fma_f16x2(high_nibbles(word), a, b),
        fma_f16x2(high_nibbles(odd), a, b),
    )


@device
def pack_scales(scale: registers(SCALE_WORDS), piece):
    """The factors a, b, a', b' of the lane's own block as float16, those that the format has, in two words.

    The second word is 0 unless all four are needed.
    """
    a, b, a2, b2 = UNPACK_SCALES(*scale[()], piece)
    if TWO_SCALES and MINIMUM:
        words = pack_f16(a, b), pack_f16(a2, b2)
    elif TWO_SCALES:
        words = pack_f16(a, a2), 0
    elif MINIMUM:
        words = pack_f16(a, b), 0
    else:
        words = pack_f16(a, a), 0
    return words


@device
def word_of(word, lane):
    """The word of another lane of the warp."""
    return as_int(shuffle(as_float(word), lane))


@device
def dequantize_block(front, back, words: registers(2), lane):
    """A lane's eight weights of a block, four words of float16, whose factors lane number `lane` holds."""
    first = word_of(words[0], lane)
    a = first
    b = 0
    if TWO_SCALES or MINIMUM:
        a = permute_bytes(first, first, 0x1010)
        b = permute_bytes(first, first, 0x3232)
    a2 = a
    b2 = b
    if TWO_SCALES and MINIMUM:
        second = word_of(words[1], lane)
        a2 = permute_bytes(second, second, 0x1010)
        b2 = permute_bytes(second, second, 0x3232)
    elif TWO_SCALES:
        a2 = b
        b = 0
        b2 = 0
    return four_weights(front, a, b) + four_weights(back, a2, b2)


@device
def dequantize_nibbles(word, words: registers(2), lane):
    """`dequantize_block` of a word whose bytes have codes of the first half in their low nibbles, and those
    of the second half in the high ones.
    """
    first = word_of(words[0], lane)
    a = first
    b = 0
    if MINIMUM:
        a = permute_bytes(first, first, 0x1010)
        b = permute_bytes(first, first, 0x3232)
    return eight_weights(word, a, b)


@device
def dequantize_front(codes: registers(CODE_WORDS), words: registers(2), quad):
    """A lane's weights of blocks 0 and 1 of a piece, eight words; lane `quad` + b holds block b's factors."""
    if ONLY_NIBBLES:
        weights = dequantize_nibbles(codes[0], *words[()], quad) + dequantize_nibbles(
            codes[1], *words[()], quad + 1
        )
    else:
        w = registers(8)
        w[()] = UNPACK_CODES(*codes[()])
        weights = dequantize_block(w[0], w[1], *words[()], quad) + dequantize_block(
            w[2], w[3], *words[()], quad + 1
        )
    return weights


@device
def dequantize_back(codes: registers(CODE_WORDS), words: registers(2), quad):
    """`dequantize_front` of blocks 2 and 3."""
    if ONLY_NIBBLES:
        weights = dequantize_nibbles(codes[2], *words[()], quad + 2) + dequantize_nibbles(
            codes[3], *words[()], quad + 3
        )
    else:
        w = registers(8)
        w[()] = UNPACK_CODES(*codes[()])
        weights = dequantize_block(w[4], w[5], *words[()], quad + 2) + dequantize_block(
            w[6], w[7], *words[()], quad + 3
        )
    return weights


@device
def interleave_rows(f: registers((2, 8))):
    """Words of two rows, g and g + 8, in the order of the A fragments of wgmma: for every 16 columns the
    first words of both rows, then the second ones."""
    out = registers(16)
    for i in static(2):
        for j in static(8):
            out[2 * j + i] = f[i, j]
    return out[()]
