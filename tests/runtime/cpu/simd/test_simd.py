"""Every vector instruction against NumPy, at the level that this process runs."""

from __future__ import annotations

import platform

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kukri.quant.jit import levels
from kukri.quant.jit.levels import LANES
from kukri.quant.jit.simd.arithmetic import (
    absolute,
    bits_to_f32,
    fma,
    lane_max,
    lane_sum,
    lane_sum_i32,
    maximum,
    minimum,
    mix_lanes,
    round_even,
    splat_f32,
    splat_i32,
    to_f32,
    to_i32,
)
from kukri.quant.jit.simd.memory import (
    as_pointer,
    load_f32,
    load_i32,
    loadv_bf16,
    loadv_f16,
    loadv_f32,
    loadv_i32,
    loadv_u8,
    loadv_u16,
    store_f16,
    store_f32,
    storev_f32,
    storev_i8,
)
from kukri.quant.jit.simd.threads import atomic_add, atomic_load, atomic_store, call_kernel, pause
from kukri.runtime.cpu.simd.dot8 import Codes, code_offset, dot, lookup16
from kukri.runtime.cpu.simd.exp2 import bfloat_exp2, flushed_exp2

RNG = np.random.default_rng(7)


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def floats(n: int = LANES) -> np.ndarray:
    return (RNG.normal(size=n) * 100).astype(np.float32)


def ints(n: int = LANES) -> np.ndarray:
    return RNG.integers(-(2**31), 2**31, n, dtype=np.int64).astype(np.int32)


def unary(function, x: np.ndarray, dtype=np.float32) -> np.ndarray:
    """Run a compiled function of (address of x, address of out)."""
    out = np.zeros(LANES, dtype)
    numba.njit(function)(address(x), address(out))
    return out


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
def test_level_amx_needs_all_of_its_instructions(monkeypatch):
    vnni = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni")
    features = dict.fromkeys((*vnni, "avx512bf16", "amx-tile", "amx-bf16"), True)
    monkeypatch.setattr(levels, "cpu_features", lambda: features)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert levels.pick_level(None) == "amx"
    assert levels.pick_level("avx512vnni") == "avx512vnni"
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    assert levels.pick_level(None) == "avx512vnni"
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for missing in ("avx512bf16", "amx-tile", "amx-bf16"):
        monkeypatch.setitem(features, missing, False)
        assert levels.pick_level(None) == "avx512vnni"
        monkeypatch.setitem(features, missing, True)
    monkeypatch.setitem(features, "avx512vnni", False)
    assert "amx" not in levels.supported_levels()


def test_levels():
    offered = levels.supported_levels()
    assert levels.LEVEL in offered
    assert offered[-2:] == ["plain", "plain16"]
    assert levels.pick_level(None) == offered[0]
    assert levels.pick_level("plain") == "plain"
    with pytest.raises(ValueError, match="none of amx, avx512vnni"):
        levels.pick_level("sse9")
    for level in set(levels.LEVELS) - set(offered):
        with pytest.raises(ValueError, match="this CPU offers"):
            levels.pick_level(level)


@pytest.mark.slow
def test_code_of_a_forced_level_uses_no_instructions_of_a_higher_one():
    has = {"avx2": True, "fma": True, "avx512f": True, "avx512vnni": True, "avxvnni": True, "sse4a": False}
    assert levels.features_of("avx512vnni", has) == has
    assert levels.features_of("avx512", has) == {**has, "avx512vnni": False, "avxvnni": False}
    without = {"avx512f": False, "avx512vnni": False, "avxvnni": False}
    assert levels.features_of("avx2", has) == {**has, **without}


def test_float_arithmetic():
    a, b, c = floats(), floats(), floats()

    @numba.njit
    def run(a, b, c, out):
        x, y, z = loadv_f32(a), loadv_f32(b), loadv_f32(c)
        step = 4 * LANES
        storev_f32(out, x + y)
        storev_f32(out + step, x - y)
        storev_f32(out + 2 * step, x * y)
        storev_f32(out + 3 * step, x / y)
        storev_f32(out + 4 * step, fma(x, y, z))
        storev_f32(out + 5 * step, maximum(x, y))
        storev_f32(out + 6 * step, minimum(x, y))
        storev_f32(out + 7 * step, absolute(x))
        storev_f32(out + 8 * step, round_even(x))
        storev_f32(out + 9 * step, splat_f32(np.float32(1.5)))

    out = np.zeros((10, LANES), np.float32)
    run(address(a), address(b), address(c), address(out))
    expected = [a + b, a - b, a * b, a / b, a * b + c, np.maximum(a, b), np.minimum(a, b), np.abs(a)]
    np.testing.assert_allclose(out[:8], expected, rtol=1e-5)
    np.testing.assert_array_equal(out[8], np.rint(a))
    np.testing.assert_array_equal(out[9], 1.5)


def test_rounding_of_halves_is_to_even():
    halves = np.resize(np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.49, -3.51], np.float32), LANES)

    def run(x, out):
        storev_f32(out, round_even(loadv_f32(x)))

    np.testing.assert_array_equal(unary(run, halves), np.rint(halves))


def test_integer_arithmetic():
    a, b = ints(), ints()

    @numba.njit
    def run(a, b, out):
        x, y = loadv_i32(a), loadv_i32(b)
        step = 4 * LANES
        for k, value in enumerate(
            (
                x + y,
                x - y,
                x * y,
                x & y,
                x | y,
                x ^ y,
                x << 3,
                x >> 5,
                x & 0x0F0F0F0F,
                splat_i32(np.int32(-7)),
            )
        ):
            storev_f32(out + k * step, bits_to_f32(value))

    out = np.zeros((10, LANES), np.int32)
    run(address(a), address(b), address(out))
    unsigned = a.view(np.uint32)
    expected = [a + b, a - b, a * b, a & b, a | b, a ^ b, a << 3, (unsigned >> 5).view(np.int32)]
    np.testing.assert_array_equal(out[:8], expected)
    np.testing.assert_array_equal(out[8], a & 0x0F0F0F0F)
    np.testing.assert_array_equal(out[9], -7)


def test_conversions():
    whole = RNG.integers(-(2**23), 2**23, LANES).astype(np.int32)
    x = floats()

    def to_float(a, out):
        storev_f32(out, to_f32(loadv_i32(a)))

    def to_int(a, out):
        storev_f32(out, bits_to_f32(to_i32(loadv_f32(a))))

    np.testing.assert_array_equal(unary(to_float, whole), whole.astype(np.float32))
    np.testing.assert_array_equal(unary(to_int, x, np.int32), np.trunc(x).astype(np.int32))


def test_narrow_loads():
    halves = (RNG.normal(size=LANES) * 10).astype(np.float16)
    halves[:4] = [np.inf, -0.0, 6e-8, 65504]
    words = RNG.integers(0, 65536, LANES).astype(np.uint16)
    octets = RNG.integers(0, 256, LANES).astype(np.uint8)
    bf16 = (floats().view(np.uint32) >> 16).astype(np.uint16)

    def f16(a, out):
        storev_f32(out, loadv_f16(a))

    def u16(a, out):
        storev_f32(out, to_f32(loadv_u16(a)))

    def u8(a, out):
        storev_f32(out, to_f32(loadv_u8(a)))

    def brain(a, out):
        storev_f32(out, loadv_bf16(a))

    np.testing.assert_array_equal(unary(f16, halves), halves.astype(np.float32))
    np.testing.assert_array_equal(unary(u16, words), words.astype(np.float32))
    np.testing.assert_array_equal(unary(u8, octets), octets.astype(np.float32))
    np.testing.assert_array_equal(unary(brain, bf16), (bf16.astype(np.uint32) << 16).view(np.float32))


def test_narrow_stores():
    x = floats()

    def one(a, out):
        store_f16(out, load_f32(a))

    def i8(a, out):
        storev_i8(out, loadv_i32(a))

    small = RNG.integers(-127, 128, LANES).astype(np.int32)
    assert unary(one, x, np.float16)[0] == np.float16(x[0])
    np.testing.assert_array_equal(unary(i8, small, np.int8), small.astype(np.int8))


def test_scalars_in_memory():
    numbers = np.array([-5, 7], np.int32)

    @numba.njit
    def run(a, out):
        store_f32(out, np.float32(load_i32(a)))
        store_f32(out + 4, load_f32(out) * np.float32(load_i32(a + 4)))

    out = np.zeros(2, np.float32)
    run(address(numbers), address(out))
    assert out.tolist() == [-5, -35]


def test_reductions():
    x, whole = floats(), RNG.integers(-1000, 1000, LANES).astype(np.int32)

    @numba.njit
    def run(x, i):
        return lane_sum(loadv_f32(x)), lane_max(loadv_f32(x)), lane_sum_i32(loadv_i32(i))

    total, largest, count = run(address(x), address(whole))
    np.testing.assert_allclose(total, x.sum(dtype=np.float64), rtol=1e-5)
    assert largest == x.max()
    assert count == whole.sum()


def test_mix_lanes():
    x, out = floats(), floats()

    @numba.njit
    def run(x, out):
        storev_f32(out, mix_lanes(loadv_f32(x)))

    run(address(x), address(out))
    signs = [[(-1) ** (i & j).bit_count() for j in range(LANES)] for i in range(LANES)]
    np.testing.assert_allclose(out, np.array(signs) @ x.astype(np.float64), rtol=1e-5, atol=1e-3)


UNSIGNED = {limit: Codes(f"u{limit}", limit=limit) for limit in (1, 3, 15, 31, 63, 127)}
SIGNED = {limit: Codes(f"s{limit}", limit=limit, signed=True) for limit in (12, 127, 128)}


def compiled_dot(codes: Codes, n_words: int):
    """dot of `n_words` words, as a function of (words, activations, start, Σ activations, out)."""
    stride = 4 * LANES
    if n_words == 8:

        @numba.njit
        def run(words, x, start, total, out):
            w = (
                *(loadv_i32(words), loadv_i32(words + stride)),
                *(loadv_i32(words + 2 * stride), loadv_i32(words + 3 * stride)),
                *(loadv_i32(words + 4 * stride), loadv_i32(words + 5 * stride)),
                *(loadv_i32(words + 6 * stride), loadv_i32(words + 7 * stride)),
            )
            sums = to_f32(dot(splat_i32(np.int32(start)), w, x, codes))
            storev_f32(out, sums - code_offset(codes) * splat_f32(np.float32(total)))

        return run

    @numba.njit
    def run(words, x, start, total, out):
        w = (
            loadv_i32(words),
            loadv_i32(words + stride),
            loadv_i32(words + 2 * stride),
            loadv_i32(words + 3 * stride),
        )
        sums = to_f32(dot(splat_i32(np.int32(start)), w, x, codes))
        storev_f32(out, sums - code_offset(codes) * splat_f32(np.float32(total)))

    return run


def check_dot(codes: Codes, run, weights: np.ndarray, x: np.ndarray) -> None:
    """`weights` is [words, LANES, 4] as the codes' bytes, `x` int8 [4 · words]."""
    out = np.zeros(LANES, np.float32)
    start = int(RNG.integers(-1000, 1000))
    run(address(weights), address(x), start, int(x.astype(int).sum()), address(out))
    expected = np.einsum("wlb,wb->l", weights.astype(int) - codes.zero, x.reshape(-1, 4).astype(int))
    np.testing.assert_array_equal(out, expected + start)  # whole numbers that float32 holds


@pytest.mark.slow
@pytest.mark.parametrize("n_words", [4, 8])
@pytest.mark.parametrize(
    "codes", [*UNSIGNED.values(), *SIGNED.values(), Codes("z", 63, zero=32)], ids=lambda c: c.name
)
def test_dot_is_exact(codes, n_words):
    """Random codes, and those at the limits, where 16-bit sums would overflow first."""
    run = compiled_dot(codes, n_words)
    low = -codes.limit if codes.signed else 0
    high = min(codes.limit, 127) if codes.signed else codes.limit
    kind = np.int8 if codes.signed else np.uint8
    for corner in (low, high):
        for sign in (-127, 127):
            weights = np.full((n_words, LANES, 4), corner, kind)
            check_dot(codes, run, weights, np.full(4 * n_words, sign, np.int8))
    for _ in range(20):
        weights = RNG.integers(low, high + 1, (n_words, LANES, 4)).astype(kind)
        check_dot(codes, run, weights, RNG.integers(-127, 128, 4 * n_words).astype(np.int8))


def test_lookup16():
    table = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    index = RNG.integers(0, 16, 4 * LANES).astype(np.uint8)

    @numba.njit
    def run(a, out):
        storev_f32(out, bits_to_f32(lookup16(table, loadv_i32(a))))

    out = np.zeros(4 * LANES, np.int8)
    run(address(index), address(out))
    np.testing.assert_array_equal(out, np.array(table, np.int8)[index])


@settings(max_examples=50, deadline=None)
@given(st.integers(-(2**62), 2**62), st.integers(-1000, 1000))
def test_atomics(start, change):
    cell = np.array([start, 0], np.int64)
    assert _atomics(address(cell), change) == (start, start + change)
    assert cell[0] == start + change
    _store(address(cell) + 8, change)
    assert cell[1] == change
    assert cell[0] == start + change


@numba.njit
def _atomics(cell, change):
    pause()
    return atomic_add(cell, change), atomic_load(cell)


@numba.njit
def _store(cell, value):
    atomic_store(cell, value)


def test_powers_of_two_that_flush_to_zero():
    x = np.linspace(-140, 20, LANES).astype(np.float32)
    x[:3] = -np.inf, -126.5, np.nan

    def fine(source, out):
        storev_f32(out, flushed_exp2(loadv_f32(source)))

    wanted = np.where(x < -126, 0, np.exp2(x.astype(np.float64)))
    found = unary(fine, x)
    np.testing.assert_allclose(found, wanted, rtol=2e-7)
    assert (found[x < -126] == 0).all()


@pytest.mark.skipif(LANES != 16, reason="vectors of 16 lanes are those beside matrix tiles")
@pytest.mark.parametrize("low", [-0.999, -3, -125, -1e4])
def test_powers_of_two_for_bfloat16(low):
    def power(source, out):
        storev_f32(out, bfloat_exp2(loadv_f32(source)))

    x = np.linspace(low, 0, LANES).astype(np.float32)
    x[:2] = -np.inf, np.nan
    found = unary(power, x)
    np.testing.assert_allclose(found, np.exp2(x.astype(np.float64)), rtol=9e-5, atol=1.2e-38)
    assert found[-1] == 1
    assert found[0] == 0


def test_kernel_called_by_address():
    signature = numba.types.void(numba.int64, numba.int64, numba.int64)

    @numba.cfunc(signature)
    def kernel(a, b, c):
        numba.carray(as_pointer(a), 1, np.int64)[0] = 10 * b + c

    @numba.njit
    def run(kernel, a):
        call_kernel(kernel, a, 4, 2)

    cell = np.zeros(1, np.int64)
    run(kernel.address, address(cell))
    assert cell[0] == 42
