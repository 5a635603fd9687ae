"""Unpacking of the formats with blocks of 32 or 64 weights: one or two groups. `unpack` has the contract.

The bit layouts are documented in `quant.formats`, the planes in `simd.panels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .....quant.formats.iq4 import IQ4_VALUES
from .....quant.formats.mxfp4 import E2M1_DOUBLED
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import bits_to_f32, splat_f32
from .....quant.jit.simd.memory import loadv_f16, loadv_f32, loadv_i32, loadv_u8
from ...simd.dot8 import Codes
from ...simd.tile_sizes import VECTOR
from .unpack_words import LOW4, fifth_bits, lookup_four, lookup_words, merge_bits, nibbles, plane_offsets

# Byte offsets of the planes in a block of LANES rows; the last number is the size of the block.
_Q8_0 = plane_offsets("Q8_0")
_Q4_0 = plane_offsets("Q4_0")
_Q4_1 = plane_offsets("Q4_1")
_Q5_0 = plane_offsets("Q5_0")
_Q5_1 = plane_offsets("Q5_1")
_MXFP4 = plane_offsets("MXFP4")
_NVFP4 = plane_offsets("NVFP4")


def _q8_0(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · code."""
    block = panel + group * _Q8_0[2]
    at = block + _Q8_0[1]
    words = (
        loadv_i32(at),
        loadv_i32(at + VECTOR),
        loadv_i32(at + 2 * VECTOR),
        loadv_i32(at + 3 * VECTOR),
        loadv_i32(at + 4 * VECTOR),
        loadv_i32(at + 5 * VECTOR),
        loadv_i32(at + 6 * VECTOR),
        loadv_i32(at + 7 * VECTOR),
    )
    return words, loadv_f16(block)


def _q4_0(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · (code - 8)."""
    block = panel + group * _Q4_0[2]
    return nibbles(block + _Q4_0[1]), loadv_f16(block)


def _q4_1(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · code + m."""
    block = panel + group * _Q4_1[2]
    minimum = splat_f32(np.float32(0.0)) - loadv_f16(block + 2 * LANES)
    return nibbles(block + _Q4_1[1]), loadv_f16(block), minimum


def _q5_0(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · (code - 16); the fifth bits lie in a plane of their own."""
    block = panel + group * _Q5_0[3]
    return merge_bits(nibbles(block + _Q5_0[2]), fifth_bits(block + _Q5_0[1]), 4), loadv_f16(block)


def _q5_1(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · code + m; the fifth bits lie in a plane of their own."""
    block = panel + group * _Q5_1[3]
    minimum = splat_f32(np.float32(0.0)) - loadv_f16(block + 2 * LANES)
    return merge_bits(nibbles(block + _Q5_1[2]), fifth_bits(block + _Q5_1[1]), 4), loadv_f16(block), minimum


def _iq4_nl(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = d · IQ4_VALUES[code]."""
    block = panel + group * _Q4_0[2]
    return lookup_words(IQ4_VALUES, nibbles(block + _Q4_0[1])), loadv_f16(block)


def _mxfp4(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = 2^(e - 128) · E2M1_DOUBLED[code]."""
    block = panel + group * _MXFP4[2]
    words = nibbles(block + _MXFP4[1])
    # 2^(e - 128) as a product of two powers of two: at both ends of its range it is no normal number.
    exponent = loadv_u8(block)
    half = exponent >> 1
    scale = bits_to_f32((half + 63) << 23) * bits_to_f32((exponent - half + 63) << 23)
    return lookup_words(E2M1_DOUBLED, words), scale


def _nvfp4(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    """w = factor · d / 2 · E2M1_DOUBLED[code], d for each 16 (`panels.NORMAL_SCALES`), two groups a block."""
    block = panel + (group >> 1) * _NVFP4[2]
    at = block + _NVFP4[1] + (group & 1) * (4 * VECTOR)
    a, b, c, d = loadv_i32(at), loadv_i32(at + VECTOR), loadv_i32(at + 2 * VECTOR), loadv_i32(at + 3 * VECTOR)
    factor = loadv_f32(panel + n_blocks * _NVFP4[2])  # `panels.stored_factor`
    scales = block + (group & 1) * (2 * LANES)
    return (
        lookup_four(E2M1_DOUBLED, (a & LOW4, b & LOW4, (a >> 4) & LOW4, (b >> 4) & LOW4)),
        lookup_four(E2M1_DOUBLED, (c & LOW4, d & LOW4, (c >> 4) & LOW4, (d >> 4) & LOW4)),
        bits_to_f32(loadv_u8(scales) << 20) * factor,
        bits_to_f32(loadv_u8(scales + LANES) << 20) * factor,
    )


UNPACKERS: dict[str, tuple[Codes, Callable]] = {
    codes.name: (codes, function)
    for codes, function in (
        (Codes("Q8_0", limit=128, signed=True), _q8_0),
        (Codes("Q4_0", limit=15, zero=8), _q4_0),
        (Codes("Q4_1", limit=15), _q4_1),
        (Codes("Q5_0", limit=31, zero=16), _q5_0),
        (Codes("Q5_1", limit=31), _q5_1),
        (Codes("IQ4_NL", limit=127, signed=True), _iq4_nl),
        (Codes("MXFP4", limit=12, signed=True), _mxfp4),
        (Codes("NVFP4", limit=12, signed=True), _nvfp4),
    )
}
