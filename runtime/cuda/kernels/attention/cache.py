"""The paged KV cache: its layout, its argument record, and device functions that read and write it.

A layer has a pool of pages for keys and one for values. A page holds 2^PAGE tokens, and in it each key-value
head has a contiguous part [tokens, DP], DP being the dimensions of a head padded with zeros. The numbers are
float32, float16, or signed codes of 8 or 4 bits. 32 dimensions in a row share a float16 scale; the scales of
a head's part lie behind its codes, [tokens, DP / 32]. A 32-bit word holds eight 4-bit codes, codes i and
i + 4 in byte i. The block table of a sequence lists the pages that hold its tokens.

Constants:
    KV      bits of a number in the cache: 32, 16, 8 or 4
    DP      dimensions of a head in the cache; a multiple of 32 for codes, otherwise of 8
    PAGE    log2 of the tokens of a page
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
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

KV = DP = PAGE = 0


class PagedCache(KernelArguments):
    """One layer's cache, and where in it the rows of a step are."""

    keys: int  # the pool of pages
    values: int  # the pool of pages
    block_tables: Region  # int32 [sequences, pages of a sequence]: numbers of pages
    sequences: int  # int32 [rows]: the sequence of each row
    positions: int  # int32 [rows]: the position of each row in its sequence


@device
def block_table_of(cache: PagedCache, row):
    """The address of the block table of the sequence that a row of the step belongs to."""
    return cache.block_tables.address + load_int(cache.sequences + 4 * row) * cache.block_tables.stride


@device
def page_of(block_table, position):
    """The number of the page that holds a position."""
    return load_int(block_table + 4 * (position >> PAGE))


@device
def head_in_page(pool, page, kv_head, kv_heads):
    """The address of a head's part of a page."""
    return pool + (page * kv_heads + kv_head) * ((DP * KV // 8 + (DP // 16 if KV < 16 else 0)) << PAGE)


@device
def load_eight(part, slot, dim):
    """Dimensions dim … dim + 7 of a token as they are stored, in 8 words; `eight_floats` decodes them.

    `part` is a head's part of a page, `slot` the token's number in the page. With codes of 8 bits, words 0
    and 1 are codes, with codes of 4 bits word 0 is, and word 2 is the scale.
    """
    at = part + slot * (DP * KV // 8)
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
        c = load_short(part + ((DP * KV // 8) << PAGE) + slot * (DP // 16) + 2 * (dim >> 5))
        d, e, f, g, h = 0, 0, 0, 0, 0
    return a, b, c, d, e, f, g, h


@device
def eight_floats(a, b, c, d, e, f, g, h):
    """The 8 words of `load_eight` as 8 float32."""
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
    """A byte of a word as a float32, minus `zero` - 2^23.

    The byte becomes the lowest bits of the float32 2^23, whose value then is 2^23 + byte: no conversion.
    """
    return as_float(permute_bytes(word, 0x4B000000, selector)) - zero


@device
def store_cached(part, slot, dim, value):
    """Store dimension `dim` of a token. Returns what is stored, as it is read again.

    With codes a whole warp stores 32 dimensions that share a scale, lane i dimension i of them. The scale
    maps the largest magnitude to the code 127 or -127 (8 bits), or to -8 (4 bits), as in GGUF's Q8_0 and
    Q4_0. If a number is not finite, all 32 become NaN.
    """
    at = part + slot * (DP * KV // 8)
    if KV == 32:
        store_float(at + 4 * dim, value)
        stored = value
    elif KV == 16:
        half = pack_f16(value, 0.0)
        store_short(at + 2 * dim, half)
        stored = low_f16(half)
    else:
        if KV == 8:
            unit = warp_maximum(absolute(value)) * 0.007874015748031496
        else:
            high, low = warp_maximum(value), warp_maximum(-value)
            unit = low * 0.125
            if high > low:
                unit = high * -0.125
        half = pack_f16(unit + warp_sum(value * 0.0), 0.0)  # NaN if a number is not finite
        unit = low_f16(half)  # the scale as float16 rounds it
        inverse = 0.0
        if unit > 0.0 or unit < 0.0:
            inverse = div_f32(1.0, unit)
        if KV == 8:
            number = to_int(maximum(-127.0, minimum(127.0, value * inverse)))
            store_byte(at + dim, number)
            stored = to_float(number) * unit
        else:
            low_code = to_int(maximum(-8.0, minimum(7.0, value * inverse)))
            high_code = to_int(shuffle_xor(to_float(low_code), 4))
            if (thread() & 4) == 0:
                both = bits_or(bits_and(low_code, 15), shift_left(bits_and(high_code, 15), 4))
                store_byte(at + 4 * (dim >> 3) + (dim & 3), both)
            stored = to_float(low_code) * unit
        if (thread() & 31) == 0:
            store_short(part + ((DP * KV // 8) << PAGE) + slot * (DP // 16) + 2 * (dim >> 5), half)
    return stored
