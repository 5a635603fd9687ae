"""Attention in matrix tiles against NumPy, with registers in memory and on the CPU's own if it has them."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import pytest

from kukri.quant.jit.levels import LANES, LEVEL, cpu_features
from kukri.quant.jit.simd.memory import loadv_f32, storev_f32
from kukri.runtime.cpu import matrix_tiles
from kukri.runtime.cpu.abi.sizes import CACHE_TYPES
from kukri.runtime.cpu.abi.tile_scratch import TILE_QUERIES, tile_attention_bytes
from kukri.runtime.cpu.kernels import KV_STORES, TILE_ATTENTIONS
from kukri.runtime.cpu.simd.amx_operands import high_part, load_byte_pairs, load_nibble_pairs, row_maxima
from kukri.runtime.cpu.simd.panels import aligned_empty

from .test_attention import ERRORS, MAINLY_Q8_0, SHAPES, Cache, expected, fill
from .test_cache_rounding import MAINLY_MIXED, cached, error, random_cache, with_sink

if LEVEL != "plain16" and (LANES != 16 or not cpu_features().get("avx512bf16")):
    pytest.skip("needs AVX-512 BF16, or level plain16", allow_module_level=True)

from ..simd.tile_unit import ATTENTIONS

UNITS = {"memory": ATTENTIONS} | ({"AMX": TILE_ATTENTIONS} if matrix_tiles.usable_tiles() else {})
# What bfloat16 adds to the relative RMS error of the output: values split in two, or rounded.
TILE_ERRORS = dict.fromkeys(CACHE_TYPES, 4e-3) | {"F32": 2e-5}


@numba.njit
def _operands(source, codes, target):
    storev_f32(target, row_maxima(source))
    pair = load_byte_pairs(codes)
    storev_f32(target + 64, pair[0])
    storev_f32(target + 128, pair[1])
    nibbles = load_nibble_pairs(codes)
    storev_f32(target + 192, nibbles[0])
    storev_f32(target + 256, nibbles[1])
    storev_f32(target + 320, nibbles[2])
    storev_f32(target + 384, nibbles[3])
    storev_f32(target + 448, high_part(loadv_f32(source)))


def test_operands():
    """The largest lane of each row; bytes and nibbles as numbers; numbers rounded to bfloat16."""
    rng = np.random.default_rng(10)
    x, codes = rng.normal(size=(16, 16)).astype(np.float32), rng.integers(-128, 128, (16, 2), np.int8)
    out = np.zeros((8, 16), np.float32)
    _operands(x.ctypes.data, codes.ctypes.data, out.ctypes.data)
    np.testing.assert_array_equal(out[0], x.max(axis=1))
    np.testing.assert_array_equal(out[1:3], codes.T)
    low, high = ((codes << 4) >> 4).T, (codes >> 4).T
    np.testing.assert_array_equal(out[3:7], [*low, *high])
    assert not (out[7].view(np.uint32) & 0xFFFF).any()
    assert (np.abs(x[0] - out[7]) <= 2.0**-8 * np.abs(x[0])).all()


@pytest.fixture(params=UNITS)
def kernels(request):
    return UNITS[request.param]


@dataclass
class TileCache(Cache):
    """A cache whose prompts are attended to in tiles."""

    kernels: dict | None = None

    def prefill(self, rows, q, k, v) -> np.ndarray:
        a, n_bytes = self.arguments, tile_attention_bytes(self.kind, self.head_dim)
        self._call((KV_STORES,), rows, q, k, v)
        before = a.copy()
        scratch = aligned_empty(self.n_threads * n_bytes)
        scratch[:] = 0xFF
        a["scratch"], a["scratch_stride"], a["partials"] = scratch.ctypes.data, n_bytes, 0
        out = self._call((self.kernels,), rows, q, k, v)
        a[:] = before
        return out


def check(kind: str, got: np.ndarray, want: np.ndarray) -> None:
    error = np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2))
    assert error < ERRORS[kind] + TILE_ERRORS[kind], error


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_prompts(kernels, kind, shape):
    heads, kv_heads, head_dim, page_size, window, softcap, n = shape
    cache = TileCache(
        kind, heads, kv_heads, head_dim, page_size, window, softcap, n_threads=2, kernels=kernels
    )
    q, k, v, out = fill(cache, np.random.default_rng(1), n)
    want = np.stack([expected(cache, p, q[p], k, v) for p in range(n)])
    check(kind, out, want)
    check(kind, out[0], want[0])  # one key: its value


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES[2:], ids=str)
@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_other_prompts(kernels, kind, shape):
    test_prompts(kernels, kind, shape)


@pytest.mark.parametrize("kind", MAINLY_MIXED)
def test_random_shapes(kernels, kind):
    """Against what the cache has rounded keys and values to, with a sink for each head."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        cache = random_cache(rng, kind, TileCache, kernels=kernels)
        sinks = rng.normal(size=cache.heads).astype(np.float32) + 3
        cache.arguments["sinks"] = sinks.ctypes.data
        n = int(rng.integers(2, 200))
        q, k, v = cache.rows(rng, n)
        cache.table.extend(0, n)
        out = cache.prefill([(0, p) for p in range(n)], q, k, v)
        k, v = cached(cache, k, v)
        want = np.stack([with_sink(cache, p, q[p], k, v, sinks) for p in range(n)])
        assert error(out, want) < TILE_ERRORS[kind]


def test_many_queries_share_keys(kernels):
    """A step of more rows than a tile has room for; the same bits whatever the number of threads, which
    decides how many queries share unpacked keys."""
    outs = []
    n = 300
    for n_threads in (1, 2, 7):
        cache = TileCache("Q8_0", 6, 2, 64, window=130, n_threads=n_threads, kernels=kernels)
        q, k, v = cache.rows(np.random.default_rng(2), n)
        cache.table.extend(0, n)
        outs.append(cache.prefill([(0, p) for p in range(n)], q, k, v))
    assert 3 * n > TILE_QUERIES
    np.testing.assert_array_equal(outs[1], outs[0])
    np.testing.assert_array_equal(outs[2], outs[0])
    check("Q8_0", outs[0], np.stack([expected(cache, p, q[p], k, v) for p in range(n)]))


def test_a_prompt_cut_in_two_is_the_same(kernels):
    whole, parts = (TileCache("Q8_0", 4, 2, 64, kernels=kernels) for _ in range(2))
    q, k, v = whole.rows(np.random.default_rng(3), 200)
    for cache in (whole, parts):
        cache.table.extend(0, 200)
    out = whole.prefill([(0, p) for p in range(200)], q, k, v)
    halves = [
        parts.prefill([(0, p) for p in range(200)[part]], q[part], k[part], v[part])
        for part in (slice(0, 77), slice(77, 200))
    ]
    np.testing.assert_array_equal(np.concatenate(halves), out)


@pytest.mark.parametrize("kind", MAINLY_Q8_0)
def test_several_sequences_in_one_step(kernels, kind):
    """Rows of several sequences, and pages that another sequence has used before."""
    cache = TileCache(kind, window=50, n_threads=2, kernels=kernels)
    rng = np.random.default_rng(4)
    fill(cache, rng, 200, sequence=3)
    cache.table.truncate(3, 0)
    kept = {s: fill(cache, rng, n, s)[1:3] for s, n in ((0, 63), (1, 1), (2, 100))}
    new = [(0, 63), (0, 64), (1, 1), (2, 100), (2, 101), (2, 102), (3, 0), (0, 65)]
    q, k, v = cache.rows(rng, len(new))
    for s, n in ((0, 3), (1, 1), (2, 3), (3, 1)):
        cache.table.extend(s, n)
    out = cache.prefill(new, q, k, v)
    want = []
    for i, (s, p) in enumerate(new):
        mine = [j for j, (other, _) in enumerate(new) if other == s]
        empty = np.zeros((0, k.shape[1]), np.float32)
        old_k, old_v = kept.get(s, (empty, empty))
        want.append(expected(cache, p, q[i], np.r_[old_k, k[mine]], np.r_[old_v, v[mine]]))
    check(kind, out, np.stack(want))


def test_sequences_with_few_rows_are_left_to_vectors(kernels):
    """Each row is computed by one of the two kernels, whichever number of rows its sequence has."""
    cache = TileCache("Q8_0", kernels=kernels, n_threads=2)
    counts = {0: 3, 1: 40, 2: 1, 3: 16}
    rows = [(s, p) for s, n in counts.items() for p in range(n)]
    q, k, v = cache.rows(np.random.default_rng(9), len(rows))
    for s, n in counts.items():
        cache.table.extend(s, n)
    plain = Cache.prefill(cache, rows, q, k, v)
    cache.arguments["tile_rows"] = 16
    tiles, vectors = cache.prefill(rows, q, k, v), Cache.prefill(cache, rows, q, k, v)
    few = np.array([counts[s] < 16 for s, _ in rows])
    assert (tiles[few] == 7.0).all()
    assert (vectors[~few] == 7.0).all()
    np.testing.assert_array_equal(vectors[few], plain[few])
    assert np.sqrt(np.mean((tiles[~few] - plain[~few]) ** 2)) < 1e-2


def test_both_directions(kernels):
    """Rows that see the whole sequence, within a window or without."""
    for window in (0, 40):
        cache = TileCache("F32", window=window, kernels=kernels)
        q, k, v = cache.rows(np.random.default_rng(5), 100)
        cache.table.extend(0, 100)
        ends = np.full(100, 100, np.int32)
        cache.arguments["ends"] = ends.ctypes.data
        out = cache.prefill([(0, p) for p in range(100)], q, k, v)
        for p in range(0, 100, 9):
            low = max(0, p - window + 1) if window else 0
            high = min(100, p + window) if window else 100
            one = Cache("F32")
            check("F32", out[p], expected(one, high - low - 1, q[p], k[low:high], v[low:high]))


def test_sinks(kernels):
    """A sink is a key without a value."""
    cache = TileCache("F32", kernels=kernels)
    q, k, v = cache.rows(np.random.default_rng(6), 70)
    cache.table.extend(0, 70)
    sinks = np.array([3.0, -2.0, 50.0, 0.0], np.float32)
    cache.arguments["sinks"] = sinks.ctypes.data
    out = cache.prefill([(0, p) for p in range(70)], q, k, v).reshape(70, 4, 64)
    for p in (0, 33, 69):
        for h in range(4):
            keys, values = (x[: p + 1].reshape(-1, 2, 64)[:, h // 2].astype(np.float64) for x in (k, v))
            scores = keys @ q[p].reshape(4, 64)[h] / 8 / np.log(2)
            weights = np.exp2(scores)
            want = weights @ values / (weights.sum() + np.exp2(float(sinks[h])))
            np.testing.assert_allclose(out[p, h], want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("kind", MAINLY_Q8_0)
def test_nan_reaches_only_rows_that_attend_to_it(kernels, kind, name):
    cache = TileCache(kind, kernels=kernels)
    x = dict(zip("qkv", cache.rows(np.random.default_rng(7), 20), strict=True))
    x[name][5, :64] = np.nan
    cache.table.extend(0, 20)
    out = cache.prefill([(0, p) for p in range(20)], x["q"], x["k"], x["v"])
    affected = slice(5, 6) if name == "q" else slice(5, None)
    expected_nan = np.zeros((20, 4), bool)
    expected_nan[affected, 0 if name == "q" else slice(0, 2)] = True
    np.testing.assert_array_equal(np.isnan(out.reshape(20, 4, 64)).all(-1), expected_nan)
    np.testing.assert_array_equal(np.isnan(out.reshape(20, 4, 64)).any(-1), expected_nan)


def test_outlying_keys_in_fp16(kernels):
    """Dimensions of keys that are far larger than the rest, and cancel in the softmax."""
    cache = TileCache("F16", kernels=kernels)
    q, k, v = cache.rows(np.random.default_rng(8), 150)
    k[:, 3::64] += 200
    k[:, 17::64] -= 90
    k = k.astype(np.float16).astype(np.float32)
    cache.table.extend(0, 150)
    out = cache.prefill([(0, p) for p in range(150)], q, k, v)
    want = np.stack([expected(cache, p, q[p], k, v) for p in range(150)])
    check("F16", out, want)
