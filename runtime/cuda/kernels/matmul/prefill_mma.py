"""Weights of pieces (see packing.py) as halves, times factors: what products of many rows take."""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import add_f16x2, as_float, as_int, bits_xor, fma_f16x2, pack_f16, permute_bytes, shuffle
from ..common.common import activate

UNPACK_SCALES = activate  # constants of the launch
SCALE_WORDS = TWO_SCALES = MINIMUM = 1
SIGNS = 0x80808080
MAGIC = 0x64646464  # the upper bytes of halves from 1024 on
LESS = 0xE480E480  # -1152, twice: what such a half is too much for a signed byte whose sign was turned


@device
def two_weights(turned, selector, a, b):
    """a · code + b of two of four signed bytes whose signs were turned, as halves."""
    return fma_f16x2(add_f16x2(permute_bytes(turned, MAGIC, selector), LESS), a, b)


@device
def four_weights(codes, a, b):
    """The same of all four bytes."""
    turned = bits_xor(codes, SIGNS)
    return two_weights(turned, 0x4140, a, b), two_weights(turned, 0x4342, a, b)


@device
def to_hand_on(scale: registers(SCALE_WORDS), piece):
    """The factors a, b, a', b' of one's own block as pairs of halves: those that the format has, in one word
    or two.
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
    """The word of another lane."""
    return as_int(shuffle(as_float(word), lane))


@device
def of_block(front, back, words: registers(2), lane):
    """Eight weights of a block whose factors `lane` has."""
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
def in_turn(f: registers((2, 8))):
    """Words of two rows as the tensor cores take them: of each 16 columns both rows' first halves, then the
    second ones."""
    out = registers(16)
    for i in static(2):
        for j in static(8):
            out[2 * j + i] = f[i, j]
    return out[()]
