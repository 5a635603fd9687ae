"""Dequantises pieces of weights (see weights/packing.py) to float16 in registers, for prefill products."""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import add_f16x2, as_float, as_int, bits_xor, fma_f16x2, pack_f16, permute_bytes, shuffle
from ..common.common import activate

UNPACK_SCALES = activate  # constants of the launch
SCALE_WORDS = TWO_SCALES = MINIMUM = 1
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
    """a · code + b, float16, of four signed bytes: two words. a and b are the same float16 twice."""
    inverted = bits_xor(codes, SIGNS)
    return two_weights(inverted, 0x4140, a, b), two_weights(inverted, 0x4342, a, b)


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
def interleave_rows(f: registers((2, 8))):
    """Words of two rows, g and g + 8, in the order of the A fragments of wgmma: for every 16 columns the
    first words of both rows, then the second ones."""
    out = registers(16)
    for i in static(2):
        for j in static(8):
            out[2 * j + i] = f[i, j]
    return out[()]
