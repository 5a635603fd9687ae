"""The rotation of a quantised cache against matrices in NumPy."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from kukri.runtime.cpu.abi.sizes import rotation_block
from kukri.runtime.cpu.kernels.attention.rotation import rotate_head

from .test_attention import Cache, expected, fill


def hadamard(n: int) -> np.ndarray:
    """The normalised Hadamard matrix, [n, n]."""
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(n)


@pytest.fixture(scope="module")
def compiled():
    return numba.njit(lambda x, dim, block: rotate_head(x, dim, block))


@pytest.mark.parametrize(
    ("dim", "block"), [(64, 64), (256, 256), (96, 32), (80, 16), (40, 8), (34, 2), (33, 1), (576, 64)]
)
def test_rotate_head(compiled, dim, block):
    x = np.random.default_rng(dim).normal(size=dim + 16).astype(np.float32)
    got = x.copy()
    compiled(got.ctypes.data, dim, block)
    want = (x[:dim].reshape(-1, block) @ hadamard(block)).ravel()
    np.testing.assert_allclose(got[:dim], want, atol=2e-6)
    np.testing.assert_array_equal(got[dim:], x[dim:])
    compiled(got.ctypes.data, dim, block)  # it is its own inverse
    np.testing.assert_allclose(got, x, atol=2e-6)


def test_rotation_block():
    """Values that are the beginnings of keys are rotated as those are."""
    assert rotation_block(576, 512) == 64
    assert rotation_block(256, 256) == 256
    assert rotation_block(80, 80) == 16


def errors_of(cache: Cache, n: int = 200) -> np.ndarray:
    """RMS errors of the outputs of a prompt and of the decode step behind it."""
    q, k, v, out = fill(cache, np.random.default_rng(9), n)
    want = np.stack([expected(cache, p, q[p], k, v) for p in range(n)])
    q1, k1, v1 = cache.rows(np.random.default_rng(8), 1)
    cache.table.extend(0, 1)
    one = cache.decode((0, n), q1, k1, v1)
    want_one = expected(cache, n, q1[0], np.r_[k, k1], np.r_[v, v1])
    return np.array([np.sqrt(np.mean((out - want) ** 2)), np.sqrt(np.mean((one - want_one) ** 2))])


@pytest.mark.parametrize("kind", ["Q8_0", pytest.param("Q4_0", marks=pytest.mark.slow)])
def test_outliers_and_offsets(kind):
    """Keys with one dimension that is large for every token: rotation loses far less, and less still without
    the mean of the keys, for prompts and in decode."""
    large = np.zeros(128, np.float32)
    large[[5, 64 + 40]] = 60.0
    errors = []
    for block, offset in ((0, False), (64, False), (64, True)):
        cache = Cache(kind, n_threads=2, key_mean=large)
        cache.arguments["key_rotation"] = cache.arguments["value_rotation"] = block
        cache.arguments["key_offsets"] = large.ctypes.data if offset else 0
        errors.append(errors_of(cache))
    plain, rotated, centred = errors
    assert (rotated < 0.7 * plain).all(), errors
    assert (centred < rotated / 2).all(), errors


def test_dimensions_that_are_large_in_keys_and_small_in_queries():
    """With factors that make them alike, what is lost is what keys and queries of one size lose; each kv head
    has factors of its own."""
    sizes = np.float32(2.0) ** np.random.default_rng(3).integers(-3, 4, (2, 64)).astype(np.float32)
    factors, inverse = 1 / sizes, sizes
    plain, balanced = (Cache("Q8_0", n_threads=2, key_sizes=sizes) for _ in range(2))
    balanced.arguments["key_factors"] = factors.ctypes.data
    balanced.arguments["query_factors"] = inverse.ctypes.data
    errors = {"plain": errors_of(plain), "balanced": errors_of(balanced), "alike": errors_of(Cache("Q8_0"))}
    assert (errors["balanced"] < errors["plain"] / 2).all(), errors
    np.testing.assert_allclose(errors["balanced"], errors["alike"], rtol=1e-3)
