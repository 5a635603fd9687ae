"""Instructions of tensor cores: products of a warp, and of a warpgroup."""

from __future__ import annotations

import numpy as np

from kukri.runtime.cuda.compile.stage import registers, static
from kukri.runtime.cuda.ptx import (
    absolute,
    barrier,
    fence_async_proxy,
    load_float,
    load_float4,
    load_int,
    load_int2,
    load_int4,
    mma_f16,
    mma_s8,
    mma_s8_k16,
    shared,
    store_float,
    store_float4,
    store_shared_int,
    thread,
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

from .common import halves, store_words
from .launching import Launch

ROWS = 0  # constant of `group` and `chain`


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
