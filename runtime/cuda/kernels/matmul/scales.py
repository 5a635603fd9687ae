"""Scales of blocks, by format: how they are loaded, and what they make of codes. See unpack.py.

The number in a function's name is that of the bytes of codes that a piece has: scales lie behind them. What
loads and what unpacks are tuples of as many words.
"""

from __future__ import annotations

from ...compile.stage import device
from ...ptx import (
    as_float,
    bits_and,
    bits_or,
    high_f16,
    load_stream1,
    load_stream4,
    load_stream_byte,
    load_stream_short,
    low_f16,
    shift_left,
    shift_right,
    to_float,
)


@device
def load_half_16(tile, pieces, piece):
    return (load_stream_short(tile + 16 * pieces + 2 * piece),)


@device
def load_half_20(tile, pieces, piece):
    return (load_stream_short(tile + 20 * pieces + 2 * piece),)


@device
def load_half_32(tile, pieces, piece):
    return (load_stream_short(tile + 32 * pieces + 2 * piece),)


@device
def load_two_16(tile, pieces, piece):
    return (load_stream1(tile + 16 * pieces + 4 * piece),)


@device
def load_two_20(tile, pieces, piece):
    return (load_stream1(tile + 20 * pieces + 4 * piece),)


@device
def load_exponent(tile, pieces, piece):
    return (load_stream_byte(tile + 16 * pieces + piece),)


@device
def half_scale(scale, piece):
    s = low_f16(scale)
    return s, 0.0, s, 0.0


@device
def q5_0_scale(scale, piece):
    s = low_f16(scale)
    return s, s * -16.0, s, s * -16.0


@device
def two_halves(scale, piece):
    s, m = low_f16(scale), high_f16(scale)
    return s, m, s, m


@device
def power_of_two(exponent, piece):
    # 2^(exponent - 128) as the bits of a float32; the two smallest are subnormal.
    s = as_float(shift_left(exponent - 1, 23) if exponent > 1 else shift_left(exponent + 1, 21))
    return s, 0.0, s, 0.0


# Scales of blocks that are an eighth of one with a scale of its own.


@device
def run_of(piece):
    """The number, in a tile, of the 256 weights that the block of a piece is in."""
    return 16 * shift_right(piece, 7) + bits_and(shift_right(piece, 2), 15)


@device
def block_of(piece):
    """Which of the eight blocks it is there."""
    return bits_or(bits_and(shift_right(piece, 4), 4), bits_and(piece, 3))


@device
def load_iq4_xs(tile, pieces, piece):
    scale = load_stream_byte(tile + 16 * pieces + piece)
    return scale, load_stream_short(tile + 17 * pieces + 2 * run_of(piece))


@device
def iq4_xs_scale(scale, super_scale, piece):
    s = low_f16(super_scale) * to_float(scale - 32)
    return s, 0.0, s, 0.0


@device
def load_run_16(tile, pieces, piece):
    return load_stream4(tile + 16 * pieces + 16 * run_of(piece))


@device
def load_run_20(tile, pieces, piece):
    return load_stream4(tile + 20 * pieces + 16 * run_of(piece))


@device
def run_factors(halves, low, middle, high, piece):
    """Of Q4_K and Q5_K, whose 6-bit scales and minimums lie as quant/formats/q4_k.py says."""
    block = block_of(piece)
    at = 8 * (block & 3)
    first, second, third = (
        bits_and(shift_right(low, at), 255),
        bits_and(shift_right(middle, at), 255),
        bits_and(shift_right(high, at), 255),
    )
    if block & 4:
        scale = bits_or(bits_and(third, 15), shift_left(shift_right(first, 6), 4))
        minimum = bits_or(shift_right(third, 4), shift_left(shift_right(second, 6), 4))
    else:
        scale = bits_and(first, 63)
        minimum = bits_and(second, 63)
    s, m = low_f16(halves) * to_float(scale), high_f16(halves) * -to_float(minimum)
    return s, m, s, m


@device
def signed_byte(word, at):
    """A byte of a word, with its sign."""
    return (bits_and(shift_right(word, at), 255) ^ 128) - 128


@device
def load_q6_k(tile, pieces, piece):
    scales = load_stream_short(tile + 24 * pieces + 2 * piece)
    return scales, load_stream_short(tile + 26 * pieces + 2 * run_of(piece))


@device
def q6_k_scale(scales, super_scale, piece):
    s = low_f16(super_scale)
    return s * to_float(signed_byte(scales, 0)), 0.0, s * to_float(signed_byte(scales, 8)), 0.0


@device
def load_q2_k(tile, pieces, piece):
    scales = load_stream_short(tile + 8 * pieces + 2 * piece)
    return scales, load_stream1(tile + 10 * pieces + 4 * run_of(piece))


@device
def q2_k_scale(scales, super_scales, piece):
    s, m = low_f16(super_scales), -high_f16(super_scales)
    s0, m0 = s * to_float(bits_and(scales, 15)), m * to_float(bits_and(shift_right(scales, 4), 15))
    s1, m1 = s * to_float(bits_and(shift_right(scales, 8), 15)), m * to_float(shift_right(scales, 12))
    return s0, m0, s1, m1


@device
def load_q3_k(tile, pieces, piece):
    scales = load_stream_short(tile + 12 * pieces + 2 * piece)
    return scales, load_stream_short(tile + 14 * pieces + 2 * run_of(piece))


@device
def q3_k_scale(scales, super_scale, piece):
    s = low_f16(super_scale)
    return s * to_float(bits_and(scales, 255) - 32), 0.0, s * to_float(shift_right(scales, 8) - 32), 0.0
