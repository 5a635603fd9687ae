"""From a panel to registers: how each block format gives up 32 weights of `LANES` rows at once.

`unpack(codes, panel, n_blocks, group)` reads group number `group` (32 weights a row) of the panel at address
`panel`, whose rows have `n_blocks` blocks. It returns one of four tuples, by what the format has:

* (words, scale)                      w = scale · (code - zero)
* (words, scale, minimum)             w = scale · code - minimum
* (low, high, scale_low, scale_high)  the first shape, with a scale for each half of 16
* (low, high, scale_low, scale_high, minimum_low, minimum_high)

`words` are 8 I32 (halves: 4), each with four consecutive codes of every row; scales are F32, one lane a row.
The planes are those of `runtime.cpu.simd.panels`; the arithmetic is that of `quant.formats`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload

from .....quant.formats.iq4 import IQ4_VALUES
from .....quant.formats.mxfp4 import E2M1_DOUBLED
from .....quant.jit.decorators import jit
from .....quant.jit.levels import LANES
from .....quant.jit.simd.arithmetic import bits_to_f32, splat_f32, to_f32
from .....quant.jit.simd.memory import loadv_f16, loadv_i32, loadv_u8, loadv_u16
from .....quant.jit.simd.vectors import ConstantType
from ...simd.dot8 import Codes, lookup16
from ...simd.panels import PLANES
from ...simd.tile_sizes import VECTOR

LOW4 = 0x0F0F0F0F

HALVES = {"Q6_K", "Q3_K", "Q2_K"}  # formats with a scale for each 16 weights
MINIMA = {"Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q2_K"}  # formats with minima

_UNPACKERS: dict[str, Callable] = {}
CODES: dict[str, Codes] = {}


def unpack(codes: Codes, panel: int, n_blocks: int, group: int) -> Any:
    """See the module; only kernels can call it."""
    raise TypeError("unpack is for compiled code")


@overload(unpack, jit_options={"forceinline": True})
def _unpack(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    return _UNPACKERS[codes.value.name] if isinstance(codes, ConstantType) else None


def _unpacks(*codes: Codes) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        for c in codes:
            CODES[c.name] = c
            _UNPACKERS[c.name] = function
        return function

    return register


def _before(name: str) -> tuple[int, ...]:
    """Bytes a block and row that lie in the planes before each plane."""
    sizes = [p.n_bytes for p in PLANES[name]]
    return tuple(LANES * sum(sizes[:i]) for i in range(len(sizes)))


@jit
def _nibbles(at: int) -> Any:
    """8 words from 4: the low nibbles are weights 0…15 of the group, the high ones 16…31."""
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
def _words(at: int, shift: int, mask: int) -> Any:
    """8 consecutive words, each `>> shift & mask`."""
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
def _or8(a: Any, b: Any, up: int) -> Any:
    """a | b << up, word by word."""
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
def _fifth_bits(at: int) -> Any:
    """The regrouped plane of high bits (`panels.regroup_high_bits`) as 8 words of 0 or 1 a byte."""
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
def _lookup8(table: Any, words: Any) -> Any:
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
def _signed_byte(word: Any, index: int) -> Any:
    """Byte `index` of each lane as a signed number, float32."""
    byte = (word >> (8 * index)) & 0xFF
    return to_f32((byte ^ 0x80) - 0x80)


@jit
def _six_bit_pair(at: int, group: int) -> Any:
    """Scale and minimum number `group` of the eight that Q4_K and Q5_K pack into 12 bytes, as int lanes."""
    if group < 4:
        shift = 8 * group
        return (loadv_i32(at) >> shift) & 63, (loadv_i32(at + VECTOR) >> shift) & 63
    shift = 8 * (group - 4)
    both = loadv_i32(at + 2 * VECTOR) >> shift
    scale = (both & 15) | (((loadv_i32(at) >> (shift + 6)) & 3) << 4)
    minimum = ((both >> 4) & 15) | (((loadv_i32(at + VECTOR) >> (shift + 6)) & 3) << 4)
    return scale, minimum


# --- blocks of 32 ----------------------------------------------------------------------------------------

_Q8_0 = _before("Q8_0")


@_unpacks(Codes("Q8_0", limit=128, signed=True))
def _q8_0(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    at = panel + n_blocks * _Q8_0[1] + group * (8 * VECTOR)
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
    return words, loadv_f16(panel + group * (2 * LANES))


_Q4_0 = _before("Q4_0")


@_unpacks(Codes("Q4_0", limit=15, zero=8))
def _q4_0(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    words = _nibbles(panel + n_blocks * _Q4_0[1] + group * (4 * VECTOR))
    return words, loadv_f16(panel + group * (2 * LANES))


_Q4_1 = _before("Q4_1")


@_unpacks(Codes("Q4_1", limit=15))
def _q4_1(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    words = _nibbles(panel + n_blocks * _Q4_1[1] + group * (4 * VECTOR))
    at = panel + group * (4 * LANES)
    return words, loadv_f16(at), splat_f32(np.float32(0.0)) - loadv_f16(at + 2 * LANES)


_Q5_0 = _before("Q5_0")


@_unpacks(Codes("Q5_0", limit=31, zero=16))
def _q5_0(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    high = _fifth_bits(panel + n_blocks * _Q5_0[1] + group * VECTOR)
    low = _nibbles(panel + n_blocks * _Q5_0[2] + group * (4 * VECTOR))
    return _or8(low, high, 4), loadv_f16(panel + group * (2 * LANES))


_Q5_1 = _before("Q5_1")


@_unpacks(Codes("Q5_1", limit=31))
def _q5_1(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    high = _fifth_bits(panel + n_blocks * _Q5_1[1] + group * VECTOR)
    low = _nibbles(panel + n_blocks * _Q5_1[2] + group * (4 * VECTOR))
    at = panel + group * (4 * LANES)
    return _or8(low, high, 4), loadv_f16(at), splat_f32(np.float32(0.0)) - loadv_f16(at + 2 * LANES)


@_unpacks(Codes("IQ4_NL", limit=127, signed=True))
def _iq4_nl(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    words = _nibbles(panel + n_blocks * _Q4_0[1] + group * (4 * VECTOR))
    return _lookup8(IQ4_VALUES, words), loadv_f16(panel + group * (2 * LANES))


_MXFP4 = _before("MXFP4")


@_unpacks(Codes("MXFP4", limit=12, signed=True))
def _mxfp4(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    words = _nibbles(panel + n_blocks * _MXFP4[1] + group * (4 * VECTOR))
    # 2^(e - 128) as a product of two powers, since neither end of its range is a normal number.
    exponent = loadv_u8(panel + group * LANES)
    half = exponent >> 1
    scale = bits_to_f32((half + 63) << 23) * bits_to_f32((exponent - half + 63) << 23)
    return _lookup8(E2M1_DOUBLED, words), scale


# --- blocks of 256 ---------------------------------------------------------------------------------------

_Q4_K = _before("Q4_K")


@_unpacks(Codes("Q4_K", limit=15))
def _q4_k(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    block, g = group >> 3, group & 7
    scale, minimum = _six_bit_pair(panel + n_blocks * _Q4_K[1] + block * (3 * VECTOR), g)
    at = panel + block * (4 * LANES)
    words = _words(panel + n_blocks * _Q4_K[2] + (block * 32 + (g >> 1) * 8) * VECTOR, 4 * (g & 1), LOW4)
    return words, loadv_f16(at) * to_f32(scale), loadv_f16(at + 2 * LANES) * to_f32(minimum)


_Q5_K = _before("Q5_K")


@_unpacks(Codes("Q5_K", limit=31))
def _q5_k(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    block, g = group >> 3, group & 7
    scale, minimum = _six_bit_pair(panel + n_blocks * _Q5_K[1] + block * (3 * VECTOR), g)
    at = panel + block * (4 * LANES)
    high = _words(panel + n_blocks * _Q5_K[2] + block * (8 * VECTOR), g, 0x01010101)
    low = _words(panel + n_blocks * _Q5_K[3] + (block * 32 + (g >> 1) * 8) * VECTOR, 4 * (g & 1), LOW4)
    return _or8(low, high, 4), loadv_f16(at) * to_f32(scale), loadv_f16(at + 2 * LANES) * to_f32(minimum)


_Q6_K = _before("Q6_K")


@_unpacks(Codes("Q6_K", limit=63, zero=32))
def _q6_k(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    block, g = group >> 3, group & 7
    half, quarter = g >> 2, g & 3
    low_at = panel + n_blocks * _Q6_K[3] + (block * 32 + half * 16 + (quarter & 1) * 8) * VECTOR
    low = _words(low_at, 4 * (quarter >> 1), LOW4)
    high_at = panel + n_blocks * _Q6_K[2] + (block * 16 + half * 8) * VECTOR
    w = _or8(low, _words(high_at, 2 * quarter, 0x03030303), 4)
    scales = loadv_i32(panel + n_blocks * _Q6_K[1] + (block * 4 + (g >> 1)) * VECTOR)
    d = loadv_f16(panel + block * (2 * LANES))
    first = 2 * (g & 1)
    return (
        (w[0], w[1], w[2], w[3]),
        (w[4], w[5], w[6], w[7]),
        d * _signed_byte(scales, first),
        d * _signed_byte(scales, first + 1),
    )


_Q3_K = _before("Q3_K")


@jit
def _q3_scale(at: int, index: int) -> Any:
    """Scale `index` of the 16 six-bit ones of Q3_K, less 32, float32: 4 low bits, then 2 high bits."""
    low = (loadv_i32(at + ((index >> 2) & 1) * VECTOR) >> (8 * (index & 3) + 4 * (index >> 3))) & 15
    high = (loadv_i32(at + 2 * VECTOR) >> (8 * (index & 3) + 2 * (index >> 2))) & 3
    return to_f32((low | (high << 4)) - 32)


@_unpacks(Codes("Q3_K", limit=7, zero=4))
def _q3_k(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    block, g = group >> 3, group & 7
    low_at = panel + n_blocks * _Q3_K[3] + (block * 16 + (g >> 2) * 8) * VECTOR
    low = _words(low_at, 2 * (g & 3), 0x03030303)
    w = _or8(low, _words(panel + n_blocks * _Q3_K[2] + block * (8 * VECTOR), g, 0x01010101), 2)
    scales = panel + n_blocks * _Q3_K[1] + block * (3 * VECTOR)
    d = loadv_f16(panel + block * (2 * LANES))
    return (
        (w[0], w[1], w[2], w[3]),
        (w[4], w[5], w[6], w[7]),
        d * _q3_scale(scales, 2 * g),
        d * _q3_scale(scales, 2 * g + 1),
    )


_Q2_K = _before("Q2_K")


@_unpacks(Codes("Q2_K", limit=3))
def _q2_k(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    block, g = group >> 3, group & 7
    at = panel + n_blocks * _Q2_K[2] + (block * 16 + (g >> 2) * 8) * VECTOR
    w = _words(at, 2 * (g & 3), 0x03030303)
    pair = loadv_i32(panel + n_blocks * _Q2_K[1] + (block * 4 + (g >> 1)) * VECTOR) >> (16 * (g & 1))
    d = loadv_f16(panel + block * (4 * LANES))
    dmin = loadv_f16(panel + block * (4 * LANES) + 2 * LANES)
    return (
        (w[0], w[1], w[2], w[3]),
        (w[4], w[5], w[6], w[7]),
        d * to_f32(pair & 15),
        d * to_f32((pair >> 8) & 15),
        dmin * to_f32((pair >> 4) & 15),
        dmin * to_f32((pair >> 12) & 15),
    )


_IQ4_XS = _before("IQ4_XS")


@_unpacks(Codes("IQ4_XS", limit=127, signed=True))
def _iq4_xs(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    block, g = group >> 3, group & 7
    words = _nibbles(panel + n_blocks * _IQ4_XS[2] + (block * 32 + g * 4) * VECTOR)
    low = (loadv_i32(panel + n_blocks * _IQ4_XS[1] + block * VECTOR) >> (4 * g)) & 15
    high = (loadv_u16(panel + block * (4 * LANES) + 2 * LANES) >> (2 * g)) & 3
    scale = loadv_f16(panel + block * (4 * LANES)) * to_f32((low | (high << 4)) - 32)
    return _lookup8(IQ4_VALUES, words), scale
