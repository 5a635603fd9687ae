"""Loads and unpacks the scales of blocks: the functions LOAD_SCALES and UNPACK_SCALES of each format.

The layout is that of weights/packing.py, the parameters are those in unpack.py. The number in the name of a
load is the number of bytes of codes of a piece, behind which the scales are stored. A load returns as many
words as the format's SCALE_WORDS; an unpack function returns the factors a, b, a', b' as float32.
"""

from __future__ import annotations

from ...compile.stage import device
from ...ptx import (
    as_float,
    bits_and,
    high_f16,
    load_float,
    low_f16,
    maximum,
    multiply_add,
    permute_bytes,
    shift_left,
    shift_right,
    to_float,
)
from .stream import read1, read_byte, read_short


@device
def load_half_16(tile, pieces, piece):
    """A float16 scale, behind 16 bytes of codes."""
    return (read_short(tile + 16 * pieces + 2 * piece),)


@device
def load_half_20(tile, pieces, piece):
    """A float16 scale, behind 20 bytes of codes."""
    return (read_short(tile + 20 * pieces + 2 * piece),)


@device
def load_half_32(tile, pieces, piece):
    """A float16 scale, behind 32 bytes of codes."""
    return (read_short(tile + 32 * pieces + 2 * piece),)


@device
def load_two_16(tile, pieces, piece):
    """A float16 scale and minimum, behind 16 bytes of codes."""
    return (read1(tile + 16 * pieces + 4 * piece),)


@device
def load_two_20(tile, pieces, piece):
    """A float16 scale and minimum, behind 20 bytes of codes."""
    return (read1(tile + 20 * pieces + 4 * piece),)


@device
def load_exponent(tile, pieces, piece):
    """The E8M0 scale of MXFP4."""
    return (read_byte(tile + 16 * pieces + piece),)


@device
def half_scale(scale, piece):
    """Q4_0, Q8_0 and IQ4_NL: weights are s · code."""
    s = low_f16(scale)
    return s, 0.0, s, 0.0


@device
def q5_0_scale(scale, piece):
    """Q5_0: weights are s · (code - 16)."""
    s = low_f16(scale)
    return s, s * -16.0, s, s * -16.0


@device
def two_halves(scale, piece):
    """Q4_1 and Q5_1: weights are s · code + m."""
    s, m = low_f16(scale), high_f16(scale)
    return s, m, s, m


@device
def power_of_two(exponent, piece):
    """MXFP4: weights are 2^(exponent - 128) · code, with codes twice the E2M1 values."""
    # 2^(exponent - 128) as the bits of a float32; the two smallest are subnormal.
    s = as_float(shift_left(exponent - 1, 23) if exponent > 1 else shift_left(exponent + 1, 21))
    return s, 0.0, s, 0.0


@device
def quick_power_of_two(exponent, piece):
    """`power_of_two` with a single instruction for the units that do the logic: the greater one of the two
    cases is the right one."""
    s = maximum(
        as_float(multiply_add(exponent, 1 << 23, -(1 << 23))),
        as_float(multiply_add(exponent, 1 << 21, 1 << 21)),
    )
    return s, 0.0, s, 0.0


# Formats with super-blocks of 256 weights


@device
def super_block_of(piece):
    """The index in the tile of the super-block that contains the block of a piece."""
    return 16 * shift_right(piece, 7) + bits_and(shift_right(piece, 2), 15)


@device
def load_iq4_xs(tile, pieces, piece):
    """A 6-bit scale, and the float16 scale of the super-block."""
    scale = read_byte(tile + 16 * pieces + piece)
    return scale, read_short(tile + 17 * pieces + 2 * super_block_of(piece))


@device
def iq4_xs_scale(scale, super_scale, piece):
    """IQ4_XS: weights are d · (scale - 32) · code."""
    s = low_f16(super_scale) * to_float(scale - 32)
    return s, 0.0, s, 0.0


@device
def load_bytes_16(tile, pieces, piece):
    """Two bytes of a block and a word of the super-block: of Q4_K a scale and a minimum, and d and dmin; of
    NVFP4 two E4M3 scales, and the matrix's factor."""
    both = read_short(tile + 16 * pieces + 2 * piece)
    return both, read1(tile + 18 * pieces + 4 * super_block_of(piece))


@device
def load_bytes_20(tile, pieces, piece):
    """The scale and the minimum of a block of Q5_K, a byte each; d and dmin of the super-block."""
    both = read_short(tile + 20 * pieces + 2 * piece)
    return both, read1(tile + 22 * pieces + 4 * super_block_of(piece))


@device
def q4_k_scale(both, halves, piece):
    """Q4_K and Q5_K: weights are d · scale · code - dmin · minimum."""
    s = low_f16(halves) * to_float(bits_and(both, 255))
    m = high_f16(halves) * -to_float(shift_right(both, 8))
    return s, m, s, m


@device
def nvfp4_scale(scales, factor, piece):
    """NVFP4: weights are factor · scale · code, a scale for each 16, whose bits in fp16 are 2^-8 of it."""
    f = as_float(factor)
    first, second = shift_left(bits_and(scales, 255), 7), shift_left(shift_right(scales, 8), 7)
    return f * low_f16(first), 0.0, f * low_f16(second), 0.0


@device
def load_short_16(tile, pieces, piece):
    """Two bytes of a block, behind 16 bytes of codes."""
    return (read_short(tile + 16 * pieces + 2 * piece),)


@device
def load_nvfp4_factor(tile, pieces, row):
    """The matrix's factor, of a row's first super-block."""
    return load_float(tile + 18 * pieces + 4 * row)


@device
def two_e4m3(scales, piece):
    """NVFP4 without its factor: the bits of both scales, seven each, where a pair of fp16 has them."""
    both = bits_and(multiply_add(scales, 0x8080, 0), 0x3F803F80)
    return low_f16(both), 0.0, high_f16(both), 0.0


@device
def signed_byte(word, at):
    """The signed byte number `at` of a word."""
    return permute_bytes(word, 0, 0x8880 + 0x1111 * at)


@device
def load_q6_k(tile, pieces, piece):
    """The two int8 scales of a block, and the float16 scale of the super-block."""
    scales = read_short(tile + 24 * pieces + 2 * piece)
    return scales, read_short(tile + 26 * pieces + 2 * super_block_of(piece))


@device
def q6_k_scale(scales, super_scale, piece):
    """Q6_K: weights are d · scale · code, with a scale for each 16."""
    s = low_f16(super_scale)
    return s * to_float(signed_byte(scales, 0)), 0.0, s * to_float(signed_byte(scales, 1)), 0.0


@device
def load_q2_k(tile, pieces, piece):
    """The two bytes of 4-bit scales and minimums of a block, and d and dmin of the super-block."""
    scales = read_short(tile + 8 * pieces + 2 * piece)
    return scales, read1(tile + 10 * pieces + 4 * super_block_of(piece))


@device
def q2_k_scale(scales, super_scales, piece):
    """Q2_K: weights are d · scale · code - dmin · minimum, with a scale for each 16."""
    s, m = low_f16(super_scales), -high_f16(super_scales)
    s0, m0 = s * to_float(bits_and(scales, 15)), m * to_float(bits_and(shift_right(scales, 4), 15))
    s1, m1 = s * to_float(bits_and(shift_right(scales, 8), 15)), m * to_float(shift_right(scales, 12))
    return s0, m0, s1, m1


@device
def load_q3_k(tile, pieces, piece):
    """The two 6-bit scales of a block, a byte each, and the float16 scale of the super-block."""
    scales = read_short(tile + 12 * pieces + 2 * piece)
    return scales, read_short(tile + 14 * pieces + 2 * super_block_of(piece))


@device
def q3_k_scale(scales, super_scale, piece):
    """Q3_K: weights are d · (scale - 32) · code, with a scale for each 16."""
    s = low_f16(super_scale)
    return s * to_float(bits_and(scales, 255) - 32), 0.0, s * to_float(shift_right(scales, 8) - 32), 0.0
