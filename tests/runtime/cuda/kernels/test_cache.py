"""What goes into the cache and comes out again, in each of its types."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.compile.stage import device, registers, static
from kukri.runtime.cuda.kernels.attention.cache import eight_floats, load_eight, store_cached
from kukri.runtime.cuda.ptx import load_float, shift_right, store_float, thread

from ..simulator import run

DP = 0
TOKENS = 8  # of a page here


def piece_bytes(bits: int, dims: int) -> int:
    """Of one head of a page of `TOKENS`."""
    return TOKENS * (dims * bits // 8 + (dims // 16 if bits < 16 else 0))


def put(piece, x):
    """A warp a token."""
    token = shift_right(thread(), 5)
    for dim in range(thread() & 31, DP, 32):
        store_cached(piece, token, dim, load_float(x + 4 * (token * DP + dim)))


def get(piece, out):
    """A thread 8 numbers."""
    for i in range(thread(), TOKENS * DP // 8, 32):
        token = shift_right(i, 3)
        take(piece, token, 8 * (i & 7), out + 4 * (token * DP + 8 * (i & 7)))


@device
def take(piece, token, dim, out):
    x = registers(8)
    x[()] = eight_floats(*load_eight(piece, token, dim))
    for j in static(8):
        store_float(out + 4 * j, x[j])


def rounded(x: np.ndarray, bits: int) -> np.ndarray:
    """What a cache of so many bits makes of [tokens, dims]."""
    if bits >= 16:
        return x.astype(np.float16 if bits == 16 else np.float32).astype(np.float32)
    groups = x.reshape(len(x), -1, 32)
    far = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)
    unit = (np.abs(far) / np.float32(127) if bits == 8 else far / np.float32(-8)).astype(np.float16)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.nan_to_num(np.rint(groups / unit.astype(np.float32)))
    codes = codes.clip(-127, 127) if bits == 8 else codes.clip(-8, 7)
    return (codes * unit).astype(np.float32).reshape(x.shape)


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_cache(bits):
    x = np.random.default_rng(bits).standard_normal((TOKENS, 64)).astype(np.float32)
    x[1, :32], x[2, 40] = 0, 100
    x[3] *= -np.sign(x[3])
    piece = np.full(piece_bytes(bits, 64), 0xFF, np.uint8)
    constants = {"KV": bits, "DP": 64, "PAGE": 3}
    run(put, constants, (1,), 32 * TOKENS, [piece, x])
    out = np.full_like(x, np.nan)
    run(get, constants, (1,), 32, [piece, out])
    expected = rounded(x, bits)
    step = np.abs(x).max() / 7 if bits == 4 else 0.02  # where a code lies between two
    assert (np.abs(out - expected) > 1e-6).mean() < 0.01
    np.testing.assert_allclose(out, expected, atol=step)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bits, bad):
    x = np.ones((TOKENS, 64), np.float32)
    x[5, 3] = bad
    piece, out = np.zeros(piece_bytes(bits, 64), np.uint8), np.zeros_like(x)
    constants = {"KV": bits, "DP": 64, "PAGE": 3}
    run(put, constants, (1,), 32 * TOKENS, [piece, x])
    run(get, constants, (1,), 32, [piece, out])
    assert np.isnan(out[5, :32]).all()
    assert np.isfinite(np.delete(out, 5, 0)).all()
