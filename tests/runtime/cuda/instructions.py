"""Kernels that do little but each PTX instruction, and what NumPy says that comes of it.

`check(launch)` runs them by `launch(kernel, grid, threads, arguments, shared bytes, constants, cluster)`: on
the simulator, or on a card. Arguments are numbers, and arrays that kernels read and write. Without the last
two there are neither constants nor clusters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from kukri.runtime.cuda.compile.stage import device, registers, static
from kukri.runtime.cuda.ptx import (
    absolute,
    add_f16x2,
    add_words,
    and_or,
    and_where_else_xor,
    and_xor,
    any_above,
    as_float,
    as_int,
    atomic_add,
    barrier,
    bits_and,
    bits_or,
    bits_xor,
    block_x,
    block_y,
    block_z,
    blocks_x,
    blocks_y,
    cluster_barrier,
    commit_copies,
    copy_async,
    copy_async_2,
    copy_async_4,
    copy_async_8,
    cosine,
    cycles,
    div_f32,
    div_near,
    div_u32,
    exp2,
    fence,
    fence_async_proxy,
    fence_system,
    fma_f16x2,
    high_f16,
    ldmatrix,
    ldmatrix_transposed,
    load_acquire,
    load_cluster4,
    load_constant,
    load_flagged,
    load_float,
    load_float2,
    load_float4,
    load_int,
    load_int2,
    load_int4,
    load_long,
    load_shared,
    load_shared4,
    load_shared_byte,
    load_shared_int,
    load_shared_int2,
    load_shared_int4,
    load_shared_long,
    load_shared_short,
    load_short,
    load_stream1,
    load_stream2,
    load_stream4,
    load_stream_byte,
    load_stream_short,
    log2,
    low_f16,
    maximum,
    minimum,
    mma_f16,
    mma_s8,
    mma_s8_k16,
    multiply_add,
    multiply_add_wide,
    pack_f16,
    pass_turn,
    permute_bytes,
    rotate_right,
    rsqrt,
    shared,
    shared_of_block,
    shift_left,
    shift_right,
    shuffle,
    shuffle_xor,
    shuffle_xor_long,
    sine,
    sqrt,
    store_byte,
    store_flagged,
    store_float,
    store_float4,
    store_int,
    store_long,
    store_release,
    store_shared,
    store_shared2,
    store_shared_int,
    store_shared_int4,
    store_shared_long,
    store_shared_short,
    store_short,
    thread,
    to_float,
    to_int,
    wait_copies,
    wait_copies_all_but_1,
    wait_copies_all_but_2,
    wait_copies_all_but_3,
    wait_copies_all_but_4,
    wait_for_turn,
    warp_barrier,
    warp_max_u32,
    warp_sum_s32,
    wgmma_16,
    wgmma_32,
    wgmma_64,
    wgmma_128,
    wgmma_256,
    wgmma_early_result_64,
    wgmma_late_result_64,
    wgmma_late_result_128,
    wgmma_late_result_256,
    wgmma_product_64,
    wgmma_result_16,
    wgmma_result_32,
    wgmma_result_64,
    wgmma_result_128,
    wgmma_result_256,
    wgmma_shared_64,
    wgmma_shared_product_64,
    wgmma_turned_64,
    wgmma_turned_128,
    wgmma_turned_256,
    wgmma_wait_all_but_1,
)

Launch = Callable[..., None]
ROWS = 0  # constant of `group` and `chain`
WORDS, FLOATS = 19, 18  # results that a thread of `whole` and of `real` has


@device
def store_words(to, a, b, c, d):
    """Store four words."""
    store_int(to, a)
    store_int(to + 4, b)
    store_int(to + 8, c)
    store_int(to + 12, d)


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


def loads(source, out):
    """Each kind of load of the same 16 bytes, 80 bytes out. Of 32 threads."""
    at = source + 16 * thread()
    to = out + 80 * thread()
    w = registers(4)
    w[()] = load_stream4(at)
    store_words(to, *w[()])
    w[()] = load_int4(at)
    store_words(to + 16, *w[()])
    f = registers(4)
    f[()] = load_float4(at)
    store_float4(to + 32, *f[()])
    w[0], w[1] = load_stream2(at)
    store_int(to + 48, w[0])
    store_int(to + 52, w[1])
    f[0], f[1] = load_float2(at + 8)
    store_float(to + 56, f[0])
    store_float(to + 60, f[1])
    store_int(to + 64, load_stream1(at))
    store_short(to + 68, load_stream_short(at + 4))
    store_short(to + 70, load_short(at + 6))
    for i in static(8):
        store_byte(to + 72 + i, load_stream_byte(at + 8 + i))


def places(out, counter):
    """Where a thread is, and how many came before its block. Grid: (3, 2, 2), of 64 threads."""
    block = (block_z() * blocks_y() + block_y()) * blocks_x() + block_x()
    if thread() == 0:
        atomic_add(counter, block)
        fence()
    store_int(out + 4 * (64 * block + thread()), 1000 * block + thread())


def shares(source, out):
    """Through shared memory by every way in and out, to the next thread but 32. Of 64 threads."""
    t = thread()
    other = t ^ 32
    here = shared() + 64 * t
    there = shared() + 64 * other
    copy_async(here, source + 64 * t, 16)
    commit_copies()
    copy_async(here + 16, source + 64 * t + 16, 8)
    commit_copies()
    copy_async(here + 32, source + 64 * t + 32, 0)
    commit_copies()
    w = registers(4)
    w[()] = load_int4(source + 64 * t + 48)
    store_shared_int4(here + 48, *w[()])
    wait_copies_all_but_1()
    barrier()
    for i in static(4):
        store_float(out + 64 * t + 4 * i, load_shared(there + 4 * i))
    wait_copies()
    barrier()
    f = registers(4)
    for k in static(1, 4):
        f[()] = load_shared4(there + 16 * k)
        store_float4(out + 64 * t + 16 * k, *f[()])
    barrier()
    store_shared_int(here, load_int(source + 64 * t))
    store_shared(here + 4, load_float(source + 64 * t + 4))
    store_shared2(here + 8, load_float(source + 64 * t + 8), load_float(source + 64 * t + 12))
    store_shared_short(here + 16, load_int(source + 64 * t + 16))
    store_shared_short(here + 18, shift_right(load_int(source + 64 * t + 16), 16))
    barrier()
    out = out + 4096 + 20 * t
    store_int(out, load_shared_int(there))
    for i in static(1, 4):
        store_float(out + 4 * i, load_shared(there + 4 * i))
    store_int(out + 16, load_shared_int(there + 16))


def fetches(source, out):
    """Four 8 × 8 matrices of halves, 32 rows of 16 bytes, as fragments, and transposed. Of 32 threads."""
    t = thread()
    w = registers(4)
    w[()] = load_int4(source + 16 * t)
    store_shared_int4(shared() + 16 * t, *w[()])
    warp_barrier()
    w[()] = ldmatrix(shared() + 16 * t)
    store_words(out + 32 * t, *w[()])
    w[()] = ldmatrix_transposed(shared() + 16 * t)
    store_words(out + 32 * t + 16, *w[()])


def copies(source, out):
    """ROWS copies a thread, and who of a warp has a large first number. Of 256 threads."""
    t = thread()
    at = multiply_add_wide(t, 16, source)
    to = shared() + 16 * (t & 512 // ROWS - 1) + 8192 * (t // (512 // ROWS))
    if ROWS == 2:
        copy_async_2(to, at)
    elif ROWS == 4:
        copy_async_4(to, at)
    else:
        copy_async_8(to, at)
    commit_copies()
    wait_copies()
    barrier()
    f = registers(4)
    for i in static(ROWS):
        f[()] = load_shared4(shared() + 4096 * i + 16 * t)
        store_float4(out + 4096 * i + 16 * t, *f[()])
    store_int(out + 4096 * ROWS + 4 * t, any_above(load_float(at), 2.5))


def products(a, b, c, c_whole, out):
    """The three kinds of mma, on fragments as they lie in memory: [lane][registers]. Of 32 threads."""
    t = thread()
    f = registers(4)
    g = registers(4)
    h = registers(4)
    f[()] = load_int4(a + 16 * t)
    g[0], g[1] = load_int2(b + 8 * t)
    h[()] = load_float4(c + 16 * t)
    h[()] = mma_f16(*f[()], g[0], g[1], *h[()])
    store_float4(out + 48 * t, *h[()])
    w = registers(4)
    w[()] = load_int4(c_whole + 16 * t)
    w[()] = mma_s8(*f[()], g[0], g[1], *w[()])
    store_words(out + 48 * t + 16, *w[()])
    w[()] = load_int4(c_whole + 16 * t)
    w[()] = mma_s8_k16(f[0], f[1], g[0], *w[()])
    store_words(out + 48 * t + 32, *w[()])


def longs(source, out):
    """64-bit integers from lane to lane, through shared memory. Of 32 threads."""
    t = thread()
    store_shared_long(shared() + 8 * t, shuffle_xor_long(load_long(source + 8 * t), 5))
    warp_barrier()
    store_long(out + 8 * t, load_shared_long(shared() + 8 * (31 - t)))


def group(a, b, c, out):
    """C + 2 · A · B of a warpgroup, B of ROWS rows as they lie in shared memory. Of 128 threads."""
    t = thread()
    held = (shared() + 1023) & -1024
    for i in range(t, 32 * ROWS, 128):
        store_shared_int(held + 4 * i, load_int(b + 4 * i))
    fence_async_proxy()
    barrier()
    f = registers(16)
    acc = registers(ROWS // 2)
    for i in static(16):
        f[i] = load_int(a + 4 * (16 * t + i))
    for i in static(ROWS // 2):
        acc[i] = load_float(c + 4 * (ROWS // 2 * t + i))
    for _ in static(2):
        if ROWS == 16:
            acc[()] = wgmma_16(*acc[()], *f[()], held)
        elif ROWS == 32:
            acc[()] = wgmma_32(*acc[()], *f[()], held)
        elif ROWS == 64:
            acc[()] = wgmma_64(*acc[()], *f[()], held)
        elif ROWS == 128:
            acc[()] = wgmma_128(*acc[()], *f[()], held)
        else:
            acc[()] = wgmma_256(*acc[()], *f[()], held)
    wgmma_wait_all_but_1()
    if ROWS == 16:
        acc[()] = wgmma_result_16(*acc[()])
    elif ROWS == 32:
        acc[()] = wgmma_result_32(*acc[()])
    elif ROWS == 64:
        acc[()] = wgmma_result_64(*acc[()])
    elif ROWS == 128:
        acc[()] = wgmma_result_128(*acc[()])
    else:
        acc[()] = wgmma_result_256(*acc[()])
    for i in static(ROWS // 2):
        store_float(out + 4 * (ROWS // 2 * t + i), acc[i])


def chain(a, b, c, values, out):
    """A · B while C + 2 · A · V runs, of a warpgroup; V [64, ROWS] in rows as they lie in shared memory. Of
    128 threads.
    """
    t = thread()
    held = (shared() + 1023) & -1024
    for i in range(t, 2048, 128):
        store_shared_int(held + 4 * i, load_int(b + 4 * i))
    for i in range(t, 32 * ROWS, 128):
        store_shared_int(held + 8192 + 4 * i, load_int(values + 4 * i))
    fence_async_proxy()
    barrier()
    f = registers(16)
    product = registers(32)
    acc = registers(ROWS // 2)
    for i in static(16):
        f[i] = load_int(a + 4 * (16 * t + i))
    for i in static(ROWS // 2):
        acc[i] = load_float(c + 4 * (ROWS // 2 * t + i))
    for _ in static(2):
        product[()] = wgmma_product_64(*f[()], held)
        if ROWS == 64:
            acc[()] = wgmma_turned_64(*acc[()], *f[()], held + 8192)
        elif ROWS == 128:
            acc[()] = wgmma_turned_128(*acc[()], *f[()], held + 8192)
        else:
            acc[()] = wgmma_turned_256(*acc[()], *f[()], held + 8192)
        product[()] = wgmma_early_result_64(*product[()])
        for i in static(32):
            store_float(out + 4 * (32 * t + i), product[i])
        if ROWS == 64:
            acc[()] = wgmma_late_result_64(*acc[()], absolute(product[0]))
        elif ROWS == 128:
            acc[()] = wgmma_late_result_128(*acc[()], absolute(product[0]))
        else:
            acc[()] = wgmma_late_result_256(*acc[()], absolute(product[0]))
    for i in static(ROWS // 2):
        store_float(out + 4 * (4096 + ROWS // 2 * t + i), acc[i])


def both(a, b, out):
    """2 · A · B of a warpgroup, both 64 × 64 in rows as they lie in shared memory. Of 128 threads."""
    t = thread()
    held = (shared() + 1023) & -1024
    for i in range(t, 2048, 128):
        store_shared_int(held + 4 * i, load_int(a + 4 * i))
        store_shared_int(held + 8192 + 4 * i, load_int(b + 4 * i))
    fence_async_proxy()
    barrier()
    acc = registers(32)
    acc[()] = wgmma_shared_product_64(held, held + 8192)
    acc[()] = wgmma_shared_64(*acc[()], held, held + 8192)
    acc[()] = wgmma_result_64(*acc[()])
    for i in static(32):
        store_float(out + 4 * (32 * t + i), acc[i])


def turns(out):
    """Halves of a block in turn: a number, of which each half makes the next. Of 256 threads."""
    t = thread()
    half = shift_right(t, 7)
    here = shared() + 4 * (t & 127)
    if half == 0:
        store_shared_int(here, t)
    else:
        pass_turn(1)
    for i in range(3):
        wait_for_turn(1 + half)
        value = 3 * load_shared_int(here) + half
        store_shared_int(here, value)
        store_int(out + 4 * (256 * i + t), value)
        if half == 0 or i < 2:
            pass_turn(2 - half)


def awaits(source, out):
    """The sum of what five groups of copies bring, each waited for in turn. Of 32 threads."""
    t = thread()
    here = shared() + 80 * t
    for i in static(5):
        copy_async(here + 16 * i, source + 80 * t + 16 * i, 16)
        commit_copies()
    wait_copies_all_but_4()
    total = load_shared(here)
    wait_copies_all_but_3()
    total = total + load_shared(here + 16)
    wait_copies_all_but_2()
    total = total + load_shared(here + 32)
    wait_copies_all_but_1()
    total = total + load_shared(here + 48)
    wait_copies()
    store_float(out + 4 * t, total + load_shared(here + 64))


def narrow(source, out):
    """16 bytes from shared memory, as one, two, four, and as bytes and shorts. Of 32 threads."""
    t = thread()
    w = registers(4)
    w[()] = load_int4(source + 16 * t)
    store_shared_int4(shared() + 16 * t, *w[()])
    warp_barrier()
    here = shared() + 16 * (31 - t)
    w[()] = load_shared_int4(here)
    store_words(out + 64 * t, *w[()])
    w[0], w[1] = load_shared_int2(here)
    w[2], w[3] = load_shared_int2(here + 8)
    store_words(out + 64 * t + 16, *w[()])
    for i in static(4):
        store_int(out + 64 * t + 32 + 4 * i, load_shared_short(here + 2 * i))
        store_int(out + 64 * t + 48 + 4 * i, load_shared_byte(here + i))


def neighbours(source, out):
    """Four floats of the same thread of the next block of a cluster of three. Of 32 threads."""
    t = thread()
    own = block_x() * 32 + t
    f = registers(4)
    f[()] = load_float4(source + 16 * own)
    for i in static(4):
        store_shared(shared() + 16 * t + 4 * i, f[i])
    cluster_barrier()
    following = block_x() + 1
    if following == 3:
        following = 0
    f[()] = load_cluster4(shared_of_block(shared() + 16 * t, following))
    store_float4(out + 16 * own, *f[()])
    cluster_barrier()


def halves(words: np.ndarray) -> np.ndarray:
    """Two halves of each word, [..., 2]."""
    return np.ascontiguousarray(words)[..., None].view(np.float16)


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


def check_loads(launch: Launch) -> None:
    source = np.random.default_rng(2).integers(0, 256, (32, 16), dtype=np.uint8)
    source[:, 3::4] &= 0x3F  # floats that are no NaN
    out = np.zeros((32, 80), np.uint8)
    launch(loads, (1,), 32, [source, out], 0)
    expected = np.concatenate([source] * 3 + [source, source[:, :8], source[:, 8:]], 1)
    np.testing.assert_array_equal(out, expected)


def check_places(launch: Launch) -> None:
    out, counter = np.zeros((12, 64), np.int32), np.array([5], np.int32)
    launch(places, (3, 2, 2), 64, [out, counter], 0)
    np.testing.assert_array_equal(out, 1000 * np.arange(12)[:, None] + np.arange(64))
    assert counter[0] == 5 + sum(range(12))


def check_shares(launch: Launch) -> None:
    source = np.random.default_rng(3).standard_normal((64, 16)).astype(np.float32)
    out = np.zeros(64 * 16 + 64 * 5, np.float32)
    launch(shares, (1,), 64, [source, out], 64 * 64)
    expected = source[np.arange(64) ^ 32]
    np.testing.assert_array_equal(out[1024:].reshape(64, 5), expected[:, :5])
    expected[:, 6:12] = 0  # what copies left out
    np.testing.assert_array_equal(out[:1024].reshape(64, 16), expected)


def check_copies(launch: Launch) -> None:
    for n in (2, 4, 8):
        source = np.random.default_rng(4).standard_normal((n, n // 2, 2048 // n)).astype(np.float32)
        out = np.zeros(1024 * n + 256, np.float32)
        launch(copies, (1,), 256, [source, out], 4096 * n, {"ROWS": n})
        np.testing.assert_array_equal(out[: 1024 * n], source.transpose(1, 0, 2).reshape(-1))
        large = source.reshape(-1)[:1024:4].reshape(8, 32).max(1) > 2.5
        assert 0 < large.sum() < 8
        np.testing.assert_array_equal(
            out[1024 * n :].view(np.int32).reshape(8, 32), large[:, None] * np.ones(32)
        )


def check_fetches(launch: Launch) -> None:
    source, out = np.arange(256, dtype=np.uint16).reshape(4, 8, 8), np.zeros((32, 2, 4, 2), np.uint16)
    launch(fetches, (1,), 32, [source, out], 512)
    for lane in range(32):
        row, column = lane // 4, 2 * (lane % 4)
        np.testing.assert_array_equal(out[lane, 0], source[:, row, column : column + 2])
        np.testing.assert_array_equal(out[lane, 1], source[:, column : column + 2, row])


def check_products(launch: Launch) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-(2**31), 2**31, (32, n)).astype(np.int32) for n in (4, 2))
    a &= np.int32(0x3FFF3FFF | -0x80000000)
    b &= np.int32(0x3FFF3FFF | -0x80000000)
    c, c_whole = rng.standard_normal((32, 4)).astype(np.float32), rng.integers(-999, 999, (32, 4), np.int32)
    out = np.zeros((32, 12), np.int32)
    launch(products, (1,), 32, [a, b, c, c_whole, out], 0)
    real_a, real_b = np.zeros((16, 16)), np.zeros((16, 8))
    whole_a, whole_b = np.zeros((16, 32), int), np.zeros((32, 8), int)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for i in range(4):
            row, half = g + 8 * (i % 2), i // 2
            real_a[row, 8 * half + 2 * t :][:2] = halves(a[lane, i])
            whole_a[row, 16 * half + 4 * t :][:4] = a[lane, i : i + 1].view(np.int8)
        for i in range(2):
            real_b[8 * i + 2 * t :, g][:2] = halves(b[lane, i])
            whole_b[16 * i + 4 * t :, g][:4] = b[lane, i : i + 1].view(np.int8)
    results = [real_a @ real_b, whole_a @ whole_b, whole_a[:, :16] @ whole_b[:16]]
    for lane in range(32):
        g, t = divmod(lane, 4)
        mine = [r[[g, g, g + 8, g + 8], [2 * t, 2 * t + 1] * 2] for r in results]
        np.testing.assert_allclose(out[lane, :4].view(np.float32), mine[0] + c[lane], 1e-5, 1e-4)
        np.testing.assert_array_equal(out[lane, 4:8], mine[1] + c_whole[lane])
        np.testing.assert_array_equal(out[lane, 8:], mine[2] + c_whole[lane])


def check_longs(launch: Launch) -> None:
    source = np.random.default_rng(5).integers(-(2**63), 2**63, 32, np.int64)
    out = np.zeros_like(source)
    launch(longs, (1,), 32, [source, out], 256)
    np.testing.assert_array_equal(out, source[(31 - np.arange(32)) ^ 5])


def check_group_products(launch: Launch) -> None:
    rng = np.random.default_rng(6)
    for rows in (16, 32, 64, 128, 256):
        a, b = (rng.standard_normal((n, 64)).astype(np.float16) for n in (64, rows))
        c = rng.standard_normal((64, rows)).astype(np.float32)
        expected = fragments_of_c(c + 2 * (a.astype(np.float32) @ b.astype(np.float32).T))
        out = np.zeros_like(expected)
        arguments = [fragments_of_a(a), exchanged(b), fragments_of_c(c), out]
        launch(group, (1,), 128, arguments, 128 * rows + 1024, {"ROWS": rows})
        np.testing.assert_allclose(out, expected, 1e-4, 1e-3)


def check_chained_products(launch: Launch) -> None:
    rng = np.random.default_rng(10)
    for columns in (64, 128, 256):
        a, b, v = (rng.standard_normal((64, n)).astype(np.float16) for n in (64, 64, columns))
        c = rng.standard_normal((64, columns)).astype(np.float32)
        real_a = a.astype(np.float32)
        first = fragments_of_c(real_a @ b.astype(np.float32).T)
        expected = fragments_of_c(c + 2 * (real_a @ v.astype(np.float32)))
        out = np.zeros(128 * 32 + 64 * columns, np.float32)
        blocks = np.concatenate([exchanged(block) for block in np.split(v, columns // 64, 1)])
        arguments = [fragments_of_a(a), exchanged(b), fragments_of_c(c), blocks, out]
        launch(chain, (1,), 128, arguments, 8192 + 128 * columns + 1024, {"ROWS": columns})
        np.testing.assert_allclose(out[:4096].reshape(first.shape), first, 1e-4, 1e-3)
        np.testing.assert_allclose(out[4096:].reshape(expected.shape), expected, 1e-4, 1e-3)


def check_products_of_both(launch: Launch) -> None:
    rng = np.random.default_rng(11)
    a, b = (rng.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    expected = fragments_of_c(2 * (a.astype(np.float32) @ b.astype(np.float32).T))
    out = np.zeros_like(expected)
    launch(both, (1,), 128, [exchanged(a), exchanged(b), out], 16384 + 1024)
    np.testing.assert_allclose(out, expected, 1e-4, 1e-3)


def exchanged(rows: np.ndarray) -> np.ndarray:
    """Rows of 64 halves, their 16-byte parts permuted as `wgmma` reads them."""
    out = np.zeros((len(rows), 8, 8), np.float16)
    for n in range(len(rows)):
        for piece in range(8):
            out[n, piece ^ (n % 8)] = rows[n, 8 * piece : 8 * piece + 8]
    return out


def fragments_of_a(a: np.ndarray) -> np.ndarray:
    """A [64, 64] as the threads of a warpgroup hold it, [128, 16, 2]."""
    words = np.zeros((128, 16, 2), np.float16)
    for t in range(128):
        row, column = 16 * (t // 32) + t % 32 // 4, 2 * (t % 4)
        for i in range(16):
            at = 16 * (i // 4) + 8 * (i % 4 // 2) + column
            words[t, i] = a[row + 8 * (i % 2), at : at + 2]
    return words


def fragments_of_c(c: np.ndarray) -> np.ndarray:
    """C [64, n] as the threads of a warpgroup hold it, [128, n / 2]."""
    held = np.zeros((128, c.shape[1] // 2), np.float32)
    for t in range(128):
        row, column = 16 * (t // 32) + t % 32 // 4, 2 * (t % 4)
        for i in range(c.shape[1] // 2):
            held[t, i] = c[row + 8 * (i % 4 // 2), 8 * (i // 4) + column + i % 2]
    return held


def flagged(values, room, flags, out):
    """What cards send each other: through `room` to the next thread but one. Of 2 threads."""
    t = thread()
    store_flagged(room + 8 * (t ^ 1), load_float(values + 4 * t), 7 + t)
    fence_system()
    store_release(flags + 4 * (t ^ 1), 5)
    until = cycles() + 1000
    while load_acquire(flags + 4 * (t ^ 1)) != 5 or cycles() < until:
        fence()
    barrier()
    value, flag = load_flagged(room + 8 * t)
    store_float(out + 8 * t, value)
    store_int(out + 8 * t + 4, flag)


def check_flagged(launch: Launch) -> None:
    values, room, flags = np.array([1.5, -np.inf], np.float32), np.zeros(2, np.uint64), np.zeros(2, np.int32)
    out = np.zeros((2, 2), np.int32)
    launch(flagged, (1,), 2, [values, room, flags, out], 0)
    np.testing.assert_array_equal(out[:, 0].view(np.float32), values[::-1])
    np.testing.assert_array_equal(out[:, 1], [8, 7])
    np.testing.assert_array_equal(flags, 5)


def check_turns(launch: Launch) -> None:
    out = np.zeros((6, 128), np.int32)
    launch(turns, (1,), 256, [out], 512)
    expected = np.arange(128)
    for i in range(6):
        expected = 3 * expected + i % 2
        np.testing.assert_array_equal(out[i], expected)


def check_awaits(launch: Launch) -> None:
    source = np.random.default_rng(7).integers(-99, 99, (32, 5, 4)).astype(np.float32)
    out = np.zeros(32, np.float32)
    launch(awaits, (1,), 32, [source, out], 32 * 80)
    np.testing.assert_array_equal(out, source[:, :, 0].sum(1))


def check_narrow(launch: Launch) -> None:
    source = np.random.default_rng(8).integers(-(2**31), 2**31, (32, 4)).astype(np.int32)
    out = np.zeros((32, 16), np.int32)
    launch(narrow, (1,), 32, [source, out], 512)
    turned = np.ascontiguousarray(source[::-1])
    parts = [turned, turned, turned.view(np.uint16)[:, :4], turned.view(np.uint8)[:, :4]]
    np.testing.assert_array_equal(out, np.concatenate([each.astype(np.int32) for each in parts], 1))


def check_neighbours(launch: Launch) -> None:
    source = np.random.default_rng(9).standard_normal((3, 32, 4)).astype(np.float32)
    out = np.zeros_like(source)
    launch(neighbours, (3,), 32, [source, out], 512, {}, 3)
    np.testing.assert_array_equal(out, source[[1, 2, 0]])


CHECKS = [check_whole, check_real, check_loads, check_places, check_shares, check_fetches, check_products]
CHECKS += [check_copies, check_longs, check_awaits, check_narrow, check_flagged, check_turns]
# For cards of compute capability 9.0.
WARPGROUP_CHECKS = [check_group_products, check_chained_products, check_products_of_both]
WARPGROUP_CHECKS += [check_neighbours]
CHECKED = [whole, real, loads, places, shares, fetches, products, longs, group, awaits, narrow, neighbours]
CHECKED += [flagged, chain, turns, both, copies]


def on_the_card(device: Any) -> Launch:
    """How to launch on a card: arrays are copied there, and back."""

    from kukri.runtime.cuda.compile.kernel import ENTRY, compiled, pack_arguments
    from kukri.runtime.cuda.driver.launch import Launch as DriverLaunch

    def launch(
        kernel: Callable[..., None],
        grid: tuple[int, ...],
        threads: int,
        arguments: list[Any],
        shared: int,
        constants: dict[str, int] | None = None,
        cluster: int = 1,
    ) -> None:
        text = compiled(kernel, constants or {}, device.capability, threads)
        code = device.load(device.assemble(text), ENTRY)
        assert len(inspect.signature(kernel).parameters) == len(arguments)
        held = [(a, device.allocate(a.nbytes)) for a in arguments]
        for array, address in held:
            device.upload(address, array)
        x, y, z = (*grid, 1, 1)[:3]
        packed = pack_arguments(*(address for _, address in held))
        device.launch(DriverLaunch(kernel.__name__, code, (x, y, z), threads, shared, packed, False, cluster))
        for array, address in held:
            device.download(array, address)
        device.wait()

    return launch
