"""Building blocks for unpacking panels: nibbles and bit fields of the planes as I32 words of 8-bit codes."""

from __future__ import annotations

from typing import Any

from .....quant.formats import FORMATS
from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import to_f32
from .....quant.jit.simd.memory import loadv_i32
from ...simd.dot8 import lookup16
from ...simd.panels import PLANES
from ...simd.tile_sizes import GROUP, VECTOR

LOW4 = 0x0F0F0F0F  # the low nibble of each byte


def plane_offsets(name: str) -> tuple[int, ...]:
    """The byte offset of each plane of a format in a block of LANES rows, then the bytes of the block."""
    sizes = [p.n_bytes for p in PLANES[name]]
    return tuple(LANES * sum(sizes[:i]) for i in range(len(sizes) + 1))


def group_bytes(name: str) -> int:
    """Bytes of a group of GROUP columns of LANES rows of a block format: its share of a block."""
    return LANES * FORMATS[name].type_size * GROUP // FORMATS[name].block_size


@jit
def nibbles(at: int) -> Any:
    """8 words of codes from 4 words at address `at`: low nibbles are weights 0…15, high nibbles 16…31."""
    a, b, c, d = loadv_i32(at), loadv_i32(at + VECTOR), loadv_i32(at + 2 * VECTOR), loadv_i32(at + 3 * VECTOR)
    return (
        a & LOW4,
        b & LOW4,
        c & LOW4,
        d & LOW4,
        (a >> 4) & LOW4,
        (b >> 4) & LOW4,
        (c >> 4) & LOW4,
        (d >> 4) & LOW4,
    )


@jit
def masked_words(at: int, shift: int, mask: int) -> Any:
    """8 consecutive words from address `at`, each `>> shift & mask`."""
    return (
        (loadv_i32(at) >> shift) & mask,
        (loadv_i32(at + VECTOR) >> shift) & mask,
        (loadv_i32(at + 2 * VECTOR) >> shift) & mask,
        (loadv_i32(at + 3 * VECTOR) >> shift) & mask,
        (loadv_i32(at + 4 * VECTOR) >> shift) & mask,
        (loadv_i32(at + 5 * VECTOR) >> shift) & mask,
        (loadv_i32(at + 6 * VECTOR) >> shift) & mask,
        (loadv_i32(at + 7 * VECTOR) >> shift) & mask,
    )


@jit
def merge_bits(a: Any, b: Any, up: int) -> Any:
    """a | b << up for each of 8 words: `b` has the codes' upper bits."""
    return (
        a[0] | (b[0] << up),
        a[1] | (b[1] << up),
        a[2] | (b[2] << up),
        a[3] | (b[3] << up),
        a[4] | (b[4] << up),
        a[5] | (b[5] << up),
        a[6] | (b[6] << up),
        a[7] | (b[7] << up),
    )


@jit
def fifth_bits(at: int) -> Any:
    """The regrouped plane of high bits (`panels.regroup_high_bits`) as 8 words whose bytes are 0 or 1."""
    bits = loadv_i32(at)
    one = 0x01010101
    return (
        bits & one,
        (bits >> 1) & one,
        (bits >> 2) & one,
        (bits >> 3) & one,
        (bits >> 4) & one,
        (bits >> 5) & one,
        (bits >> 6) & one,
        (bits >> 7) & one,
    )


@jit
def lookup_words(table: Any, words: Any) -> Any:
    """table[code] for each byte of 8 words; `table` is a tuple of 16 ints."""
    return (
        lookup16(table, words[0]),
        lookup16(table, words[1]),
        lookup16(table, words[2]),
        lookup16(table, words[3]),
        lookup16(table, words[4]),
        lookup16(table, words[5]),
        lookup16(table, words[6]),
        lookup16(table, words[7]),
    )


@jit
def lookup_four(table: Any, words: Any) -> Any:
    """table[code] for each byte of 4 words; `table` is a tuple of 16 ints."""
    return (
        lookup16(table, words[0]),
        lookup16(table, words[1]),
        lookup16(table, words[2]),
        lookup16(table, words[3]),
    )


@jit
def signed_byte(word: Any, index: int) -> Any:
    """Byte `index` of each lane as a signed number, F32."""
    byte = (word >> (8 * index)) & 0xFF
    return to_f32((byte ^ 0x80) - 0x80)


@jit
def six_bit_pair(at: int, group: int) -> Any:
    """(scale, minimum) of group 0…7 of a Q4_K or Q5_K block, I32: 6-bit numbers packed into 12 bytes."""
    if group < 4:
        shift = 8 * group
        return (loadv_i32(at) >> shift) & 63, (loadv_i32(at + VECTOR) >> shift) & 63
    shift = 8 * (group - 4)
    both = loadv_i32(at + 2 * VECTOR) >> shift
    scale = (both & 15) | (((loadv_i32(at) >> (shift + 6)) & 3) << 4)
    minimum = ((both >> 4) & 15) | (((loadv_i32(at + VECTOR) >> (shift + 6)) & 3) << 4)
    return scale, minimum
