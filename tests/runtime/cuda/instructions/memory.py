"""Instructions that load, store and copy, from global and to shared memory."""

from __future__ import annotations

import numpy as np

from kukri.runtime.cuda.compile.stage import registers, static
from kukri.runtime.cuda.ptx import (
    any_above,
    barrier,
    commit_copies,
    copy_async,
    copy_async_2,
    copy_async_4,
    copy_async_8,
    ldmatrix,
    ldmatrix_transposed,
    load_float,
    load_float2,
    load_float4,
    load_int,
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
    multiply_add_wide,
    shared,
    shift_right,
    shuffle_xor_long,
    store_byte,
    store_float,
    store_float4,
    store_int,
    store_long,
    store_shared,
    store_shared2,
    store_shared_int,
    store_shared_int4,
    store_shared_long,
    store_shared_short,
    store_short,
    thread,
    wait_copies,
    wait_copies_all_but_1,
    wait_copies_all_but_2,
    wait_copies_all_but_3,
    wait_copies_all_but_4,
    warp_barrier,
)

from .common import store_words
from .launching import Launch

ROWS = 0  # constant of `copies`


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


def check_loads(launch: Launch) -> None:
    source = np.random.default_rng(2).integers(0, 256, (32, 16), dtype=np.uint8)
    source[:, 3::4] &= 0x3F  # floats that are no NaN
    out = np.zeros((32, 80), np.uint8)
    launch(loads, (1,), 32, [source, out], 0)
    expected = np.concatenate([source] * 3 + [source, source[:, :8], source[:, 8:]], 1)
    np.testing.assert_array_equal(out, expected)


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


def check_shares(launch: Launch) -> None:
    source = np.random.default_rng(3).standard_normal((64, 16)).astype(np.float32)
    out = np.zeros(64 * 16 + 64 * 5, np.float32)
    launch(shares, (1,), 64, [source, out], 64 * 64)
    expected = source[np.arange(64) ^ 32]
    np.testing.assert_array_equal(out[1024:].reshape(64, 5), expected[:, :5])
    expected[:, 6:12] = 0  # what copies left out
    np.testing.assert_array_equal(out[:1024].reshape(64, 16), expected)


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


def check_fetches(launch: Launch) -> None:
    source, out = np.arange(256, dtype=np.uint16).reshape(4, 8, 8), np.zeros((32, 2, 4, 2), np.uint16)
    launch(fetches, (1,), 32, [source, out], 512)
    for lane in range(32):
        row, column = lane // 4, 2 * (lane % 4)
        np.testing.assert_array_equal(out[lane, 0], source[:, row, column : column + 2])
        np.testing.assert_array_equal(out[lane, 1], source[:, column : column + 2, row])


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


def check_awaits(launch: Launch) -> None:
    source = np.random.default_rng(7).integers(-99, 99, (32, 5, 4)).astype(np.float32)
    out = np.zeros(32, np.float32)
    launch(awaits, (1,), 32, [source, out], 32 * 80)
    np.testing.assert_array_equal(out, source[:, :, 0].sum(1))


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


def check_narrow(launch: Launch) -> None:
    source = np.random.default_rng(8).integers(-(2**31), 2**31, (32, 4)).astype(np.int32)
    out = np.zeros((32, 16), np.int32)
    launch(narrow, (1,), 32, [source, out], 512)
    turned = np.ascontiguousarray(source[::-1])
    parts = [turned, turned, turned.view(np.uint16)[:, :4], turned.view(np.uint8)[:, :4]]
    np.testing.assert_array_equal(out, np.concatenate([each.astype(np.int32) for each in parts], 1))


def longs(source, out):
    """64-bit integers from lane to lane, through shared memory. Of 32 threads."""
    t = thread()
    store_shared_long(shared() + 8 * t, shuffle_xor_long(load_long(source + 8 * t), 5))
    warp_barrier()
    store_long(out + 8 * t, load_shared_long(shared() + 8 * (31 - t)))


def check_longs(launch: Launch) -> None:
    source = np.random.default_rng(5).integers(-(2**63), 2**63, 32, np.int64)
    out = np.zeros_like(source)
    launch(longs, (1,), 32, [source, out], 256)
    np.testing.assert_array_equal(out, source[(31 - np.arange(32)) ^ 5])
