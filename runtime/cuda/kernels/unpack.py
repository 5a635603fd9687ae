"""How kernels read 32 weights of each block format, as `packing.py` lays rows out.

`load_…(row, blocks, block)` reads block number `block` of a row of `blocks` blocks that begins at `row`, and
returns it as it lies there; `unpack_…(…, block)` takes that and returns 8 words of 4 signed bytes each, the
codes in order, and a, b, a', b': weights are (a · code + b) / UNIT in the first half of the block, (a' · code
+ b') / UNIT in the second. Loading and unpacking are apart so that a kernel can have several loads in flight.

`READERS` says of each format: the two functions, how many words a loaded block is (`RAW`), whether its halves
differ (`HALVES`), whether any b is not 0 (`MINIMUM`), and `UNIT`. If `PACKED`, a block begins with 16 bytes
of which number j holds code j low and code j + 16 high, and `FRAGMENT` makes of word t of these the codes
4t … and 16 + 4t …
"""

from __future__ import annotations

from typing import Any

from ..ptx import (
    add_words,
    and_xor,
    as_float,
    bits_and,
    bits_or,
    bits_xor,
    high_half,
    load_stream1,
    load_stream2,
    load_stream4,
    load_stream_byte,
    load_stream_short,
    low_half,
    permute,
    shift_left,
    shift_right,
    to_float,
)
from ..stage import device, registers, static

NIBBLES = 0x0F0F0F0F
PAIRS = 0x03030303
ONES = 0x01010101
SIGNS = 0x80808080


@device
def nibbles(a, b, c, d):
    """The low halves of 16 bytes, then the high ones."""
    words = a, b, c, d
    out = registers(8)
    for i in static(8):
        out[i] = bits_and(shift_right(words[i & 3], i & 4), NIBBLES)
    return out[()]


@device
def single_bits(word):
    """Bit t of each byte of the word, as bytes of word t."""
    out = registers(8)
    for i in static(8):
        out[i] = bits_and(shift_right(word, i), ONES)
    return out[()]


@device
def pairs(a, b):
    """Codes of 2 bits: bits 2t and 2t + 1 of byte i of the two words are code 8t + i."""
    words = a, b
    out = registers(8)
    for i in static(8):
        out[i] = bits_and(shift_right(words[i & 1], i & 6), PAIRS)
    return out[()]


@device
def with_high(low, high, at):
    """Codes whose further bits, from bit `at` on, are those of `high`."""
    out = registers(8)
    for i in static(8):
        out[i] = bits_or(low[i], shift_left(high[i], at))
    return out[()]


@device
def minus(word, complement):
    """Bytes - n, as signed ones, of bytes and n below 128; `complement` is 128 - n in each byte."""
    return bits_xor(add_words(word, complement), SIGNS)


@device
def all_minus(words, complement):
    out = registers(8)
    for i in static(8):
        out[i] = minus(words[i], complement)
    return out[()]


@device
def table(word, t0, t1, t2, t3):
    """Each nibble of the word looked up in a table of 16 bytes: the low ones of its bytes, then the high
    ones.
    """
    index, upper = bits_and(word, 0x77777777), shift_right(bits_and(word, 0x88888888), 1)
    first = permute(permute(t0, t1, index), permute(t2, t3, index), bits_or(0x3210, bits_and(upper, 0xFFFF)))
    index, upper = shift_right(index, 16), shift_right(upper, 16)
    second = permute(permute(t0, t1, index), permute(t2, t3, index), bits_or(0x3210, upper))
    return permute(first, second, 0x6420), permute(first, second, 0x7531)


@device
def fifth_bits(a, b, c, d, high):
    """Codes of 5 bits: bit w of byte i of `high` is the highest of code 4w + i."""
    return with_high(nibbles(a, b, c, d), single_bits(high), 4)


@device
def iq4(a, b, c, d):
    return looked_up(a, b, c, d, 0xBFAD9881, 0xF6EADDCF, 0x26190D01, 0x71594535)


@device
def looked_up(a, b, c, d, t0, t1, t2, t3):
    w0, w4 = table(a, t0, t1, t2, t3)
    w1, w5 = table(b, t0, t1, t2, t3)
    w2, w6 = table(c, t0, t1, t2, t3)
    w3, w7 = table(d, t0, t1, t2, t3)
    return w0, w1, w2, w3, w4, w5, w6, w7


# Blocks of 16 bytes of codes, then what is beside each: a scale, or a scale and a minimum, of 16 bits each.


@device
def load_scaled(row, blocks, block):
    return (*load_stream4(row + 16 * block), load_stream_short(row + 16 * blocks + 2 * block))


@device
def load_byte_scaled(row, blocks, block):
    return (*load_stream4(row + 16 * block), load_stream_byte(row + 16 * blocks + block))


@device
def load_with_word(row, blocks, block):
    return (*load_stream4(row + 16 * block), load_stream1(row + 16 * blocks + 4 * block))


@device
def sixteenfold(word):
    """16 · (code - 8) as signed bytes, of four codes in the high halves of a word's bytes."""
    return and_xor(word, 0xF0F0F0F0, SIGNS)


@device
def unpack_q4_0(a, b, c, d, scale, block):
    s = low_half(scale)
    return (
        sixteenfold(shift_left(a, 4)),
        sixteenfold(shift_left(b, 4)),
        sixteenfold(shift_left(c, 4)),
        sixteenfold(shift_left(d, 4)),
        sixteenfold(a),
        sixteenfold(b),
        sixteenfold(c),
        sixteenfold(d),
        s,
        0.0,
        s,
        0.0,
    )


@device
def unpack_q4_1(a, b, c, d, scale, block):
    s, m = low_half(scale), high_half(scale)
    return (*nibbles(a, b, c, d), s, m, s, m)


@device
def load_q5_0(row, blocks, block):
    return (*load_with_word(row, blocks, block), load_stream_short(row + 20 * blocks + 2 * block))


@device
def unpack_q5_0(a, b, c, d, high, scale, block):
    s = low_half(scale)
    return (*fifth_bits(a, b, c, d, high), s, s * -16.0, s, s * -16.0)


@device
def load_q5_1(row, blocks, block):
    return (*load_with_word(row, blocks, block), load_stream1(row + 20 * blocks + 4 * block))


@device
def unpack_q5_1(a, b, c, d, high, scale, block):
    s, m = low_half(scale), high_half(scale)
    return (*fifth_bits(a, b, c, d, high), s, m, s, m)


@device
def load_q8_0(row, blocks, block):
    first, second = load_stream4(row + 32 * block), load_stream4(row + 32 * block + 16)
    return first + second + (load_stream_short(row + 32 * blocks + 2 * block),)


@device
def unpack_q8_0(a, b, c, d, e, f, g, h, scale, block):
    s = low_half(scale)
    return a, b, c, d, e, f, g, h, s, 0.0, s, 0.0


@device
def unpack_iq4_nl(a, b, c, d, scale, block):
    s = low_half(scale)
    return (*iq4(a, b, c, d), s, 0.0, s, 0.0)


@device
def load_iq4_xs(row, blocks, block):
    return (*load_byte_scaled(row, blocks, block), load_stream_short(row + 17 * blocks + 2 * (block >> 3)))


@device
def unpack_iq4_xs(a, b, c, d, scale, super_scale, block):
    s = low_half(super_scale) * to_float(scale - 32)
    return (*iq4(a, b, c, d), s, 0.0, s, 0.0)


@device
def unpack_mxfp4(a, b, c, d, exponent, block):
    # 2^(exponent - 128) as the bits of a float32; the two smallest are subnormal.
    s = as_float(shift_left(exponent - 1, 23) if exponent > 1 else shift_left(exponent + 1, 21))
    return (*looked_up(a, b, c, d, 0x03020100, 0x0C080604, 0xFDFEFF00, 0xF4F8FAFC), s, 0.0, s, 0.0)


# Blocks that are an eighth of one with a scale of its own.


@device
def run_scales(low, middle, high, block):
    """The 6-bit scale and minimum of run `block % 8` of Q4_K and Q5_K; their bits are in
    quant/formats/q4_k.py.
    """
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
    return to_float(scale), to_float(minimum)


@device
def run_line(e, f, g, h, block):
    """a and b of a block of Q4_K and Q5_K, twice."""
    scale, minimum = run_scales(f, g, h, block)
    s, m = low_half(e) * scale, high_half(e) * -minimum
    return s, m, s, m


@device
def load_q4_k(row, blocks, block):
    return load_stream4(row + 16 * block) + load_stream4(row + 16 * blocks + 16 * (block >> 3))


@device
def unpack_q4_k(a, b, c, d, e, f, g, h, block):
    return nibbles(a, b, c, d) + run_line(e, f, g, h, block)


@device
def load_q5_k(row, blocks, block):
    return load_with_word(row, blocks, block) + load_stream4(row + 20 * blocks + 16 * (block >> 3))


@device
def unpack_q5_k(a, b, c, d, high, e, f, g, h, block):
    return fifth_bits(a, b, c, d, high) + run_line(e, f, g, h, block)


@device
def signed_byte(word, at):
    """A byte of a word, with its sign."""
    return (bits_and(shift_right(word, at), 255) ^ 128) - 128


@device
def load_q6_k(row, blocks, block):
    codes = load_stream4(row + 16 * block) + load_stream2(row + 16 * blocks + 8 * block)
    scales = load_stream_short(row + 24 * blocks + 2 * block)
    return (*codes, scales, load_stream_short(row + 26 * blocks + 2 * (block >> 3)))


@device
def unpack_q6_k(a, b, c, d, e, f, scales, super_scale, block):
    s = low_half(super_scale)
    s0, s1 = s * to_float(signed_byte(scales, 0)), s * to_float(signed_byte(scales, 8))
    return (*all_minus(with_high(nibbles(a, b, c, d), pairs(e, f), 4), 0x60606060), s0, 0.0, s1, 0.0)


@device
def load_q2_k(row, blocks, block):
    scales = load_stream_short(row + 8 * blocks + 2 * block)
    return (*load_stream2(row + 8 * block), scales, load_stream1(row + 10 * blocks + 4 * (block >> 3)))


@device
def unpack_q2_k(a, b, scales, super_scales, block):
    s, m = low_half(super_scales), -high_half(super_scales)
    s0, m0 = s * to_float(bits_and(scales, 15)), m * to_float(bits_and(shift_right(scales, 4), 15))
    s1, m1 = s * to_float(bits_and(shift_right(scales, 8), 15)), m * to_float(shift_right(scales, 12))
    return (*pairs(a, b), s0, m0, s1, m1)


@device
def load_q3_k(row, blocks, block):
    high = load_stream1(row + 8 * blocks + 4 * block)
    scales = load_stream_short(row + 12 * blocks + 2 * block)
    super_scale = load_stream_short(row + 14 * blocks + 2 * (block >> 3))
    return (*load_stream2(row + 8 * block), high, scales, super_scale)


@device
def unpack_q3_k(a, b, high, scales, super_scale, block):
    s = low_half(super_scale)
    s0, s1 = s * to_float(bits_and(scales, 255) - 32), s * to_float(shift_right(scales, 8) - 32)
    codes = with_high(pairs(a, b), single_bits(high), 2)
    return (*all_minus(codes, 0x7C7C7C7C), s0, 0.0, s1, 0.0)


@device
def fragment_q4_0(word):
    return sixteenfold(shift_left(word, 4)), sixteenfold(word)


@device
def fragment_nibbles(word):
    return bits_and(word, NIBBLES), bits_and(shift_right(word, 4), NIBBLES)


def _reader(
    load: Any, unpack: Any, raw: int, halves: int = 0, minimum: int = 0, unit: int = 1, fragment: Any = None
) -> dict[str, Any]:
    return {
        "LOAD": load,
        "UNPACK": unpack,
        "RAW": raw,
        "HALVES": halves,
        "MINIMUM": minimum,
        "UNIT": unit,
        "FRAGMENT": fragment,
        "PACKED": int(fragment is not None),
    }


READERS: dict[str, dict[str, Any]] = {
    "Q4_0": _reader(load_scaled, unpack_q4_0, 5, unit=16, fragment=fragment_q4_0),
    "Q4_1": _reader(load_with_word, unpack_q4_1, 5, minimum=1, fragment=fragment_nibbles),
    "Q5_0": _reader(load_q5_0, unpack_q5_0, 6, minimum=1),
    "Q5_1": _reader(load_q5_1, unpack_q5_1, 6, minimum=1),
    "Q8_0": _reader(load_q8_0, unpack_q8_0, 9),
    "Q2_K": _reader(load_q2_k, unpack_q2_k, 4, halves=1, minimum=1),
    "Q3_K": _reader(load_q3_k, unpack_q3_k, 5, halves=1),
    "Q4_K": _reader(load_q4_k, unpack_q4_k, 8, minimum=1, fragment=fragment_nibbles),
    "Q5_K": _reader(load_q5_k, unpack_q5_k, 9, minimum=1),
    "Q6_K": _reader(load_q6_k, unpack_q6_k, 8, halves=1),
    "IQ4_NL": _reader(load_scaled, unpack_iq4_nl, 5),
    "IQ4_XS": _reader(load_iq4_xs, unpack_iq4_xs, 6),
    "MXFP4": _reader(load_byte_scaled, unpack_mxfp4, 5),
}
