"""Instructions that compute with integers and floats, in one thread or over a warp."""

from __future__ import annotations

import numpy as np

from kukri.runtime.cuda.ptx import (
    absolute,
    add_f16x2,
    add_words,
    and_or,
    and_where_else_xor,
    and_xor,
    as_float,
    as_int,
    bits_and,
    bits_or,
    bits_xor,
    cosine,
    div_f32,
    div_near,
    div_u32,
    exp2,
    fma_f16x2,
    high_f16,
    load_constant,
    load_float,
    load_int,
    log2,
    low_f16,
    maximum,
    minimum,
    multiply_add,
    pack_f16,
    permute_bytes,
    rotate_right,
    rsqrt,
    shift_left,
    shift_right,
    shuffle,
    shuffle_xor,
    sine,
    sqrt,
    store_float,
    store_int,
    thread,
    to_float,
    to_int,
    warp_barrier,
    warp_max_u32,
    warp_sum_s32,
)

from .common import halves
from .launching import Launch

WORDS, FLOATS = 19, 18  # results that a thread of `whole` and of `real` has


def whole(a, b, c, out):
    """Instructions whose result is an integer. Of 32 threads."""
    i = 4 * thread()
    x, y, z = load_int(a + i), load_int(b + i), load_int(c + i)
    out = out + 4 * WORDS * thread()
    store_int(out, permute_bytes(x, y, z))
    store_int(out + 4, bits_and(x, y))
    store_int(out + 8, bits_or(x, y))
    store_int(out + 12, bits_xor(x, y))
    store_int(out + 16, shift_right(x, z & 31))
    store_int(out + 20, shift_left(x, z & 31))
    store_int(out + 24, add_words(x, y))
    store_int(out + 28, multiply_add(x, y, z))
    store_int(out + 32, div_u32(shift_right(x, 1), shift_right(y, 9)))
    store_int(out + 36, to_int(to_float(x) * 1e-7))
    store_int(out + 40, as_int(to_float(x)))
    store_int(out + 44, add_f16x2(x, y))
    store_int(out + 48, fma_f16x2(x, y, z))
    store_int(out + 52, and_xor(x, y, z))
    store_int(out + 56, and_or(x, y, z))
    store_int(out + 60, and_where_else_xor(x, y, z))
    store_int(out + 64, rotate_right(x, z & 31))
    store_int(out + 68, warp_max_u32(x))
    store_int(out + 72, warp_sum_s32(shift_right(x, 8)))


def check_whole(launch: Launch) -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-(2**31), 2**31, 32).astype(np.int32) for _ in range(3))
    for x in (a, b, c):  # halves that are no NaN and do not overflow
        x &= np.int32(0x3FFF3FFF | -0x80000000)
    out = np.zeros((32, WORDS), np.int32)
    launch(whole, (1,), 32, [a, b, c, out], 0)
    eight = np.stack([a, b], 1).view(np.uint8).astype(int)
    bits, shifts = a.view(np.uint32).astype(np.uint64), (c & 31).astype(np.uint64)
    picked = [[eight[i, c[i] >> 4 * k & 7] for k in range(4)] for i in range(32)]
    spread = [
        [255 * (p[k] >> 7) if c[i] >> 4 * k & 8 else p[k] for k in range(4)] for i, p in enumerate(picked)
    ]
    three = [halves(x).astype(np.float64) for x in (a, b, c)]
    expected = [
        np.array(spread, np.uint8).view(np.uint32)[:, 0],
        a & b,
        a | b,
        a ^ b,
        bits >> shifts,
        bits << shifts,
        a.astype(np.int64) + b,
        a.astype(np.int64) * b + c,
        (bits >> np.uint64(1)) // (b.view(np.uint32) >> 9),
        np.rint(a.astype(np.float32) * np.float32(1e-7)),
        a.astype(np.float32).view(np.int32),
        (three[0] + three[1]).astype(np.float16).view(np.uint32)[:, 0],
        (three[0] * three[1] + three[2]).astype(np.float16).view(np.uint32)[:, 0],
        (a & b) ^ c,
        (a & b) | c,
        np.where(np.unpackbits(c.view(np.uint8)), *(np.unpackbits(x.view(np.uint8)) for x in (a & b, a ^ b))),
        bits >> shifts | bits << (np.uint64(32) - shifts),
        np.full(32, bits.max()),
        np.full(32, (bits >> np.uint64(8)).sum()),
    ]
    expected[15] = np.packbits(expected[15]).view(np.uint32)
    for k, e in enumerate(expected):
        wrapped = np.asarray(e).astype(np.int64).astype(np.uint64).astype(np.uint32).view(np.int32)
        np.testing.assert_array_equal(out[:, k], wrapped, f"result {k} of whole")


def real(a, b, c, out):
    """Instructions whose result is a float. Of 32 threads."""
    i = 4 * thread()
    x, y = load_float(a + i), load_float(b + i)
    out = out + 18 * i
    store_float(out, maximum(x, y))
    store_float(out + 4, minimum(x, y))
    store_float(out + 8, absolute(x))
    store_float(out + 12, exp2(x))
    store_float(out + 16, log2(absolute(x)))
    store_float(out + 20, rsqrt(absolute(x)))
    store_float(out + 24, div_f32(x, y))
    store_float(out + 28, sqrt(absolute(x)))
    store_float(out + 32, cosine(x * 1000.0))
    store_float(out + 36, sine(x * 1000.0))
    store_float(out + 40, to_float(as_int(x)))
    store_float(out + 44, as_float(as_int(x)))
    both = pack_f16(x, y)
    store_float(out + 48, low_f16(both))
    store_float(out + 52, high_f16(both))
    store_float(out + 56, shuffle_xor(x, 5))
    store_float(out + 60, shuffle(x, (thread() * 7 + 3) & 31))
    warp_barrier()
    store_float(out + 64, load_constant(c + i))
    store_float(out + 68, div_near(x, y))


def check_real(launch: Launch) -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(32).astype(np.float32) * 8 for _ in range(3))
    out, other = np.zeros((32, FLOATS), np.float32), np.arange(32)
    launch(real, (1,), 32, [a, b, c, out], 0)
    x = a.astype(np.float64)
    angle = (a * np.float32(1000)).astype(np.float64)
    exact = {
        0: np.maximum(a, b),
        1: np.minimum(a, b),
        2: np.abs(a),
        6: a / b,
        7: np.sqrt(np.abs(a)),
        10: a.view(np.int32).astype(np.float32),
        11: a,
        12: a.astype(np.float16),
        13: b.astype(np.float16),
        14: a[other ^ 5],
        15: a[(other * 7 + 3) & 31],
        16: c,
    }
    for k, e in exact.items():
        np.testing.assert_array_equal(out[:, k], e.astype(np.float32), f"result {k} of real")
    near = {3: np.exp2(x), 4: np.log2(np.abs(x)), 5: 1 / np.sqrt(np.abs(x)), 17: a / b}
    for k, e in near.items():
        np.testing.assert_allclose(out[:, k], e, 1e-6, 1e-6, err_msg=f"result {k} of real")
    np.testing.assert_allclose(out[:, 8:10], np.stack([np.cos(angle), np.sin(angle)], 1), 0, 2.0**-19)
