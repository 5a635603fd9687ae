"""The instructions of attention against NumPy, at the level that this process runs."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba import types

from kukri.quant.jit.levels import LANES
from kukri.quant.jit.llvm_ir import I16V, store
from kukri.quant.jit.simd.memory import loadv_f32, loadv_i32, store_i64, storev_f32, storev_i32
from kukri.quant.jit.simd.vectors import I32, instruction
from kukri.runtime.cpu.simd.dot16 import (
    add_products,
    digits,
    first_lane,
    keep_lanes,
    load_f16,
    load_i8,
    load_i64,
    store_i8,
    store_numbers,
)
from kukri.runtime.cpu.simd.exp2 import coarse_exp2, exp2

RNG = np.random.default_rng(5)


@instruction(I32, I32, I32, I32)
def dot_pairs(builder, acc, a, b):
    return add_products(builder, acc, a, b)


@pytest.mark.slow
def test_products_of_pairs():
    @numba.njit
    def run(acc, a, b, out):
        storev_i32(out, dot_pairs(loadv_i32(acc), loadv_i32(a), loadv_i32(b)))

    acc = RNG.integers(-(1 << 29), 1 << 29, LANES, dtype=np.int32)
    a = RNG.integers(-128, 128, (LANES, 2), dtype=np.int16)
    b = RNG.integers(-32767, 32768, (LANES, 2), dtype=np.int16)
    a[0], b[0] = (127, 127), (32767, 32767)
    a[1], b[1] = (-128, -128), (32767, 32767)
    out = np.empty(LANES, np.int32)
    run(acc.ctypes.data, a.ctypes.data, b.ctypes.data, out.ctypes.data)
    np.testing.assert_array_equal(out, acc + (a.astype(np.int32) * b).sum(1))


@instruction(types.none, types.int64, I32)
def store_digits(builder, address, pairs):
    store(builder, digits(builder, builder.bitcast(pairs, I16V)), address, 4)


def test_digits():
    """Which products on arm64 take; here at any level."""

    @numba.njit
    def run(numbers, out):
        store_digits(out, loadv_i32(numbers))

    largest = 127 * 256 + 127
    numbers = RNG.integers(-largest, largest + 1, 2 * LANES).astype(np.int16)
    numbers[:8] = largest, -largest, 0, -1, 127, 128, -128, -129
    out = np.empty(4 * LANES, np.int8)
    run(numbers.ctypes.data, out.ctypes.data)
    low, high = out.reshape(-1, 2, 4).astype(np.int32).transpose(1, 0, 2)
    np.testing.assert_array_equal((low + 256 * high).ravel(), numbers)


@pytest.mark.parametrize(("function", "error"), [(exp2, 2e-7), (coarse_exp2, 4e-6)])
def test_powers_of_two(function, error):
    @numba.njit
    def run(x, out, n):
        for i in range(0, 4 * n, 4 * LANES):
            storev_f32(out + i, function(loadv_f32(x + i)))

    x = np.r_[np.linspace(-125.9, 126, 4093), 0, -0.5, 0.5].astype(np.float32)
    x = np.resize(x, -(-x.size // LANES) * LANES)
    out = np.empty_like(x)
    run(x.ctypes.data, out.ctypes.data, x.size)
    np.testing.assert_allclose(out, np.exp2(x.astype(np.float64)), rtol=error)
    assert out[4093] == 1.0
    edges = np.resize(np.array([np.nan, -np.inf, -1e30, -127], np.float32), LANES * 4)
    run(edges.ctypes.data, out.ctypes.data, edges.size)
    assert np.isnan(out[0])
    assert (out[1:4] == np.float32(2.0**-126)).all()


@pytest.mark.parametrize(("first", "last"), [(0, LANES), (1, LANES - 1), (-5, 2), (3, 3), (-9, 99), (7, 1)])
def test_keep_lanes(first, last):
    @numba.njit
    def run(x, first, last, out):
        storev_f32(out, keep_lanes(loadv_f32(x), first, last, np.float32(-np.inf)))
        return first_lane(loadv_f32(x))

    x, out = RNG.normal(size=LANES).astype(np.float32), np.empty(LANES, np.float32)
    x[-1] = np.nan
    assert run(x.ctypes.data, first, last, out.ctypes.data) == x[0]
    lanes = np.arange(LANES)
    np.testing.assert_array_equal(out, np.where((lanes >= first) & (lanes < last), x, -np.inf))


def test_numbers_in_memory():
    @numba.njit
    def run(half, small, large, halves, words):
        store_i8(small + 1, load_i8(small) - 1)
        store_i64(large + 8, load_i64(large) + 1)
        store_numbers(halves, loadv_i32(words))
        return load_f16(half)

    half = np.array([1.5], np.float16)
    small, large = np.array([-128, 0, 7], np.int8), np.array([-(1 << 40), 0], np.int64)
    words = RNG.integers(-32768, 32768, LANES, dtype=np.int32)
    halves = np.zeros(LANES + 1, np.int16)
    addresses = (x.ctypes.data for x in (half, small, large, halves, words))
    assert run(*addresses) == 1.5
    assert small.tolist() == [-128, 127, 7]
    assert large[1] == 1 - (1 << 40)
    np.testing.assert_array_equal(halves, [*words, 0])
