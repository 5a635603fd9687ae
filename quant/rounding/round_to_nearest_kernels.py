"""The compiled part of `round_to_nearest`, byte for byte as in the `gguf` package.

The arithmetic is that of the NumPy twins, `BlockFormat.quantize` in `formats/`, operation by operation. A
block is converted to 32 float32 in the scratch memory at `x`, and packed from there; its codes lie behind
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray

from ..jit.decorators import EntryPoint, jit, kernel
from ..jit.levels import LANES
from ..jit.simd.arithmetic import lane_max, lane_sum, maximum, minimum, splat_f32, splat_i32, to_f32, to_i32
from ..jit.simd.memory import (
    as_pointer,
    load_f32,
    loadv_bf16,
    loadv_f16,
    loadv_f32,
    store_f16,
    store_f32,
    store_i64,
    storev_f32,
    storev_i8,
)
from .round_to_nearest import BF16_SOURCE, ENCODE, F16_SOURCE

BLOCK = 32
INFINITY = np.float32(np.inf)


@jit
def _to_f32(a: Any, block: int, x: int) -> bool:
    """Store a block of the source as float32 at `x`; False if a weight is not finite and must be an error.

    With `zero_nonfinite`, such weights become 0.
    """
    first = block * BLOCK
    if a.source_type == F16_SOURCE:
        for i in range(0, BLOCK, LANES):
            storev_f32(x + 4 * i, loadv_f16(a.source + 2 * (first + i)))
    elif a.source_type == BF16_SOURCE:
        for i in range(0, BLOCK, LANES):
            storev_f32(x + 4 * i, loadv_bf16(a.source + 2 * (first + i)))
    else:
        for i in range(0, BLOCK, LANES):
            storev_f32(x + 4 * i, loadv_f32(a.source + 4 * (first + i)))
    differences = splat_f32(np.float32(0))
    for i in range(0, BLOCK, LANES):
        v = loadv_f32(x + 4 * i)
        differences = differences + (v - v)  # NaN where v is not finite
    if lane_sum(differences) == np.float32(0):
        return True
    for i in range(BLOCK):
        v = load_f32(x + 4 * i)
        if v - v != np.float32(0):
            store_f32(x + 4 * i, np.float32(0))
    return a.zero_nonfinite != 0


@jit
def _largest(x: int) -> Any:
    """The largest weight of a block."""
    top = loadv_f32(x)
    for i in range(LANES, BLOCK, LANES):
        top = maximum(top, loadv_f32(x + 4 * i))
    return lane_max(top)


@jit
def _smallest(x: int) -> Any:
    """The smallest weight of a block; if that is 0, the last zero of the block, whose sign NumPy returns."""
    low = loadv_f32(x)
    for i in range(LANES, BLOCK, LANES):
        low = minimum(low, loadv_f32(x + 4 * i))
    smallest = -lane_max(splat_f32(np.float32(0)) - low)
    if smallest == np.float32(0):
        last = x + 4 * (BLOCK - 1)
        while load_f32(last) != np.float32(0):
            last -= 4
        smallest = load_f32(last)
    return smallest


@jit
def _signed_peak(x: int) -> Any:
    """The first weight of largest magnitude, with its sign."""
    high, low = _largest(x), _smallest(x)
    if high > -low:
        return high
    if -low > high:
        return low
    i = x
    while abs(load_f32(i)) < high:
        i += 4
    return load_f32(i)


@jit
def _inverse(d: float) -> Any:
    """1 / d, or 0 for 0."""
    return np.float32(0) if d == np.float32(0) else np.float32(1) / d


@jit
def _store_codes(x: int, inverse: float, low: float, bias: float, top: float, codes: int) -> None:
    """Store min(trunc((x - low) · inverse + bias), top) of a block's weights at `codes`, a byte each."""
    # Where a subnormal scale has no inverse, or the range of a block is beyond float32, NumPy's conversion
    # of NaN and infinity to an integer gives 0.
    if not abs(inverse) < INFINITY:
        for i in range(0, BLOCK, LANES):
            storev_i8(codes + i, splat_i32(0))
        return
    for i in range(0, BLOCK, LANES):
        y = (loadv_f32(x + 4 * i) - splat_f32(low)) * splat_f32(inverse) + splat_f32(bias)
        storev_i8(codes + i, to_i32(minimum(y, splat_f32(top))))


@jit
def _store_nibbles(codes: int, out: int) -> None:
    """Pack the low 4 bits of 32 codes: code j below code j + 16."""
    c = carray(as_pointer(codes), BLOCK, np.uint8)
    packed = carray(as_pointer(out), BLOCK // 2, np.uint8)
    for j in range(BLOCK // 2):
        packed[j] = (c[j] & 15) | (c[j + 16] << 4)


@jit
def _store_fifth_bits(codes: int, out: int) -> None:
    """Pack bit 4 of 32 codes."""
    c = carray(as_pointer(codes), BLOCK, np.uint8)
    packed = carray(as_pointer(out), BLOCK // 8, np.uint8)
    for j in range(BLOCK // 8):
        bits = 0
        for i in range(8):
            bits |= (c[8 * j + i] >> 4) << i
        packed[j] = bits


@jit
def _q8_0(x: int, out: int) -> None:
    d = max(abs(_largest(x)), abs(_smallest(x))) / np.float32(127)
    inverse = _inverse(d)
    store_f16(out, d)
    if not inverse < INFINITY:
        inverse = np.float32(0)
    for i in range(0, BLOCK, LANES):
        y = loadv_f32(x + 4 * i) * splat_f32(inverse)
        whole = to_i32(y)
        rest = y - to_f32(whole)
        storev_i8(out + 2 + i, whole + to_i32(rest + rest))  # halves away from zero


@jit
def _q4_0(x: int, out: int) -> None:
    codes = x + 4 * BLOCK
    d = _signed_peak(x) / np.float32(-8)
    _store_codes(x, _inverse(d), np.float32(0), np.float32(8.5), np.float32(15), codes)
    store_f16(out, d)
    _store_nibbles(codes, out + 2)


@jit
def _q5_0(x: int, out: int) -> None:
    codes = x + 4 * BLOCK
    d = _signed_peak(x) / np.float32(-16)
    _store_codes(x, _inverse(d), np.float32(0), np.float32(16.5), np.float32(31), codes)
    store_f16(out, d)
    _store_fifth_bits(codes, out + 2)
    _store_nibbles(codes, out + 6)


@jit
def _with_minimum(x: int, top: float, out: int) -> None:
    """Store scale and minimum at `out`, and the codes behind the weights at `x`."""
    low, high = _smallest(x), _largest(x)
    d = (high - low) / top if high != low else np.float32(0)  # never -0
    inverse = _inverse(d) if d < INFINITY else INFINITY
    _store_codes(x, inverse, low, np.float32(0.5), top, x + 4 * BLOCK)
    store_f16(out, d)
    store_f16(out + 2, low)


@jit
def _q4_1(x: int, out: int) -> None:
    _with_minimum(x, np.float32(15), out)
    _store_nibbles(x + 4 * BLOCK, out + 4)


@jit
def _q5_1(x: int, out: int) -> None:
    _with_minimum(x, np.float32(31), out)
    _store_fifth_bits(x + 4 * BLOCK, out + 4)
    _store_nibbles(x + 4 * BLOCK, out + 8)


def _encoder(write_block: Any, type_size: int) -> Callable[[int, int, int], None]:
    """A kernel that encodes all blocks of an ENCODE record with `write_block(x, out)`."""

    def encode(arguments: int, unused_step: int, unused_thread: int) -> None:
        a = carray(as_pointer(arguments), 1, ENCODE)[0]
        for block in range(a.n_blocks):
            if not _to_f32(a, block, a.scratch):
                store_i64(a.nonfinite, 1)
                return
            write_block(a.scratch, a.out + block * type_size)

    return encode


ENCODE_TO_NEAREST: dict[str, EntryPoint] = {
    name: kernel(_encoder(write_block, type_size))
    for name, write_block, type_size in (
        ("Q8_0", _q8_0, 34),
        ("Q4_0", _q4_0, 18),
        ("Q4_1", _q4_1, 20),
        ("Q5_0", _q5_0, 22),
        ("Q5_1", _q5_1, 24),
    )
}
