"""The paged cache as kernels see it: 8 dimensions of a token at a time.

A page keeps one piece for each key-value head, for keys and for values: [token][dimension], a head's
dimensions padded with zeros (`DP`), of float32, halves, or codes of 8 or 4 bits (`KV`). Codes are signed, of
groups of 32 dimensions that share a scale; those of 4 bits lie 8 in a word, number i and i + 4 in byte i.
Behind the codes of a piece come its scales, halves [token][group].
"""

from __future__ import annotations

from ...compile.stage import device
from ...ptx import (
    absolute,
    as_float,
    bits_and,
    bits_or,
    bits_xor,
    div_f32,
    high_f16,
    load_int,
    load_int4,
    load_short,
    load_stream2,
    low_f16,
    maximum,
    minimum,
    pack_f16,
    permute_bytes,
    shift_left,
    shift_right,
    shuffle_xor,
    store_byte,
    store_float,
    store_short,
    thread,
    to_float,
    to_int,
)
from ..common.common import warp_maximum, warp_sum

# Constants of the launch. DP: dimensions of a head in the cache, of 4 and 8 bits a multiple of 32. PAGE: log2
# of the tokens of a page.
KV = DP = PAGE = 0


@device
def page_of(pages, position):
    """The page that holds a position, of a sequence whose block table is `pages`."""
    return load_int(pages + 4 * (position >> PAGE))


@device
def piece_of(pool, page, kv_head, kv_heads):
    """Where a page's piece of a head begins."""
    return pool + (page * kv_heads + kv_head) * ((DP * KV // 8 + (DP // 16 if KV < 16 else 0)) << PAGE)


@device
def load_eight(piece, slot, dim):
    """8 numbers of a token's, from `dim` on, as they lie there."""
    at = piece + slot * (DP * KV // 8)
    if KV == 16:
        a, b, c, d = load_int4(at + 2 * dim)
        e, f, g, h = 0, 0, 0, 0
    elif KV == 32:
        a, b, c, d = load_int4(at + 4 * dim)
        e, f, g, h = load_int4(at + 4 * dim + 16)
    else:
        if KV == 8:
            a, b = load_stream2(at + dim)
        else:
            a = load_int(at + (dim >> 1))
            b = 0
        c = load_short(piece + ((DP * KV // 8) << PAGE) + slot * (DP // 16) + 2 * (dim >> 5))
        d, e, f, g, h = 0, 0, 0, 0, 0
    return a, b, c, d, e, f, g, h


@device
def eight_floats(a, b, c, d, e, f, g, h):
    """What `load_eight` gave, as numbers."""
    if KV == 16:
        values = (
            low_f16(a),
            high_f16(a),
            low_f16(b),
            high_f16(b),
            low_f16(c),
            high_f16(c),
            low_f16(d),
            high_f16(d),
        )
    elif KV == 32:
        values = (
            as_float(a),
            as_float(b),
            as_float(c),
            as_float(d),
            as_float(e),
            as_float(f),
            as_float(g),
            as_float(h),
        )
    elif KV == 8:
        scale = low_f16(c)
        first, second = bits_xor(a, 0x80808080), bits_xor(b, 0x80808080)
        values = (
            code(first, 0x7440, 8388736.0) * scale,
            code(first, 0x7441, 8388736.0) * scale,
            code(first, 0x7442, 8388736.0) * scale,
            code(first, 0x7443, 8388736.0) * scale,
            code(second, 0x7440, 8388736.0) * scale,
            code(second, 0x7441, 8388736.0) * scale,
            code(second, 0x7442, 8388736.0) * scale,
            code(second, 0x7443, 8388736.0) * scale,
        )
    else:
        scale = low_f16(c)
        turned = bits_xor(a, 0x88888888)
        first, second = bits_and(turned, 0x0F0F0F0F), bits_and(shift_right(turned, 4), 0x0F0F0F0F)
        values = (
            code(first, 0x7440, 8388616.0) * scale,
            code(first, 0x7441, 8388616.0) * scale,
            code(first, 0x7442, 8388616.0) * scale,
            code(first, 0x7443, 8388616.0) * scale,
            code(second, 0x7440, 8388616.0) * scale,
            code(second, 0x7441, 8388616.0) * scale,
            code(second, 0x7442, 8388616.0) * scale,
            code(second, 0x7443, 8388616.0) * scale,
        )
    return values


@device
def code(word, selector, zero):
    """A byte of a word, less what `zero` is above 2^23: as the last bits of a float32 that begins there."""
    return as_float(permute_bytes(word, 0x4B000000, selector)) - zero


@device
def store_cached(piece, slot, dim, value):
    """A number into a token's place; with codes, a whole warp's, of 32 dimensions from a multiple of 32 on.

    8 bits: the largest is at 127 or -127; 4 bits: the one farthest from 0 is at -8, as in GGUF's formats.
    """
    at = piece + slot * (DP * KV // 8)
    if KV == 32:
        store_float(at + 4 * dim, value)
    elif KV == 16:
        store_short(at + 2 * dim, pack_f16(value, 0.0))
    else:
        if KV == 8:
            unit = warp_maximum(absolute(value)) * 0.007874015748031496
        else:
            high, low = warp_maximum(value), warp_maximum(-value)
            unit = low * 0.125
            if high > low:
                unit = high * -0.125
        half = pack_f16(unit + warp_sum(value * 0.0), 0.0)  # one that is not finite makes all of them so
        unit = low_f16(half)  # codes are made for the scale as it is kept
        inverse = 0.0
        if unit > 0.0 or unit < 0.0:
            inverse = div_f32(1.0, unit)
        if KV == 8:
            store_byte(at + dim, to_int(maximum(-127.0, minimum(127.0, value * inverse))))
        else:
            mine = to_int(maximum(-8.0, minimum(7.0, value * inverse)))
            other = to_int(shuffle_xor(to_float(mine), 4))
            if (thread() & 4) == 0:
                both = bits_or(bits_and(mine, 15), shift_left(bits_and(other, 15), 4))
                store_byte(at + 4 * (dim >> 3) + (dim & 3), both)
        if (thread() & 31) == 0:
            store_short(piece + ((DP * KV // 8) << PAGE) + slot * (DP // 16) + 2 * (dim >> 5), half)
