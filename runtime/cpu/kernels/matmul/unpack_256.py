"""Unpacking of the formats with blocks of 256 weights: eight groups a block. `unpack` has the contract.

The bit layouts are documented in `quant.formats`, the planes in `simd.panels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....quant.formats.iq4 import IQ4_VALUES
from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import to_f32
from .....quant.jit.simd.memory import loadv_f16, loadv_i32, loadv_u16
from ...simd.dot8 import Codes
from ...simd.tile_sizes import VECTOR
from .unpack_words import (
    LOW4,
    lookup_words,
    masked_words,
    merge_bits,
    nibbles,
    plane_offsets,
    signed_byte,
    six_bit_pair,
)

# Byte offsets of the planes in a block of LANES rows; the last number is the size of the block.
_Q4_K = plane_offsets("Q4_K")
_Q5_K = plane_offsets("Q5_K")
_Q6_K = plane_offsets("Q6_K")
_Q3_K = plane_offsets("Q3_K")
_Q2_K = plane_offsets("Q2_K")
_IQ4_XS = plane_offsets("IQ4_XS")


def _q4_k(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · scale · code - dmin · minimum; 6-bit scales and minima."""
    at, g = panel + (group >> 3) * _Q4_K[-1], group & 7
    scale, minimum = six_bit_pair(at + _Q4_K[1], g)
    words = masked_words(at + _Q4_K[2] + (g >> 1) * (8 * VECTOR), 4 * (g & 1), LOW4)
    return words, loadv_f16(at) * to_f32(scale), loadv_f16(at + 2 * LANES) * to_f32(minimum)


def _q5_k(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · scale · code - dmin · minimum; the fifth bits lie in a plane of their own."""
    at, g = panel + (group >> 3) * _Q5_K[-1], group & 7
    scale, minimum = six_bit_pair(at + _Q5_K[1], g)
    high = masked_words(at + _Q5_K[2], g, 0x01010101)
    low = masked_words(at + _Q5_K[3] + (g >> 1) * (8 * VECTOR), 4 * (g & 1), LOW4)
    return (
        merge_bits(low, high, 4),
        loadv_f16(at) * to_f32(scale),
        loadv_f16(at + 2 * LANES) * to_f32(minimum),
    )


def _q6_k(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · scale · (code - 32), an int8 scale for each 16; halves have planes of 4 and 2 bits."""
    at, g = panel + (group >> 3) * _Q6_K[-1], group & 7
    half, quarter = g >> 2, g & 3
    low_at = at + _Q6_K[3] + (half * 24 + (quarter & 1) * 8) * VECTOR
    low = masked_words(low_at, 4 * (quarter >> 1), LOW4)
    high_at = at + _Q6_K[2] + half * (24 * VECTOR)
    w = merge_bits(low, masked_words(high_at, 2 * quarter, 0x03030303), 4)
    scales = loadv_i32(at + _Q6_K[1] + (g >> 1) * VECTOR)
    d = loadv_f16(at)
    first = 2 * (g & 1)
    return (
        (w[0], w[1], w[2], w[3]),
        (w[4], w[5], w[6], w[7]),
        d * signed_byte(scales, first),
        d * signed_byte(scales, first + 1),
    )


@jit
def _q3_scale(at: int, index: int) -> Any:
    """Scale `index` of the 16 of a Q3_K block, F32: 6 bits, of which 4 and 2 lie apart, less 32."""
    low = (loadv_i32(at + ((index >> 2) & 1) * VECTOR) >> (8 * (index & 3) + 4 * (index >> 3))) & 15
    high = (loadv_i32(at + 2 * VECTOR) >> (8 * (index & 3) + 2 * (index >> 2))) & 3
    return to_f32((low | (high << 4)) - 32)


def _q3_k(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · (scale - 32) · (code - 4), a 6-bit scale for each 16; 2 low and 1 high bits in two planes."""
    at, g = panel + (group >> 3) * _Q3_K[-1], group & 7
    low = masked_words(at + _Q3_K[3] + (g >> 2) * (8 * VECTOR), 2 * (g & 3), 0x03030303)
    w = merge_bits(low, masked_words(at + _Q3_K[2], g, 0x01010101), 2)
    scales = at + _Q3_K[1]
    d = loadv_f16(at)
    return (
        (w[0], w[1], w[2], w[3]),
        (w[4], w[5], w[6], w[7]),
        d * _q3_scale(scales, 2 * g),
        d * _q3_scale(scales, 2 * g + 1),
    )


def _q2_k(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · scale · code - dmin · minimum, 4-bit scale and minimum for each 16."""
    at, g = panel + (group >> 3) * _Q2_K[-1], group & 7
    w = masked_words(at + _Q2_K[2] + (g >> 2) * (8 * VECTOR), 2 * (g & 3), 0x03030303)
    pair = loadv_i32(at + _Q2_K[1] + (g >> 1) * VECTOR) >> (16 * (g & 1))
    d, dmin = loadv_f16(at), loadv_f16(at + 2 * LANES)
    return (
        (w[0], w[1], w[2], w[3]),
        (w[4], w[5], w[6], w[7]),
        d * to_f32(pair & 15),
        d * to_f32((pair >> 8) & 15),
        dmin * to_f32((pair >> 4) & 15),
        dmin * to_f32((pair >> 12) & 15),
    )


def _iq4_xs(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · (scale - 32) · IQ4_VALUES[code], 6-bit scales."""
    at, g = panel + (group >> 3) * _IQ4_XS[-1], group & 7
    words = nibbles(at + _IQ4_XS[2] + g * (4 * VECTOR))
    low = (loadv_i32(at + _IQ4_XS[1]) >> (4 * g)) & 15
    high = (loadv_u16(at + 2 * LANES) >> (2 * g)) & 3
    scale = loadv_f16(at) * to_f32((low | (high << 4)) - 32)
    return lookup_words(IQ4_VALUES, words), scale


UNPACKERS: dict[str, tuple[Codes, Callable]] = {
    codes.name: (codes, function)
    for codes, function in (
        (Codes("Q4_K", limit=15), _q4_k),
        (Codes("Q5_K", limit=31), _q5_k),
        (Codes("Q6_K", limit=63, zero=32), _q6_k),
        (Codes("Q3_K", limit=7, zero=4), _q3_k),
        (Codes("Q2_K", limit=3), _q2_k),
        (Codes("IQ4_XS", limit=127, signed=True), _iq4_xs),
    )
}
