"""What each type of cache rounds keys and values to, against NumPy: with those, the kernels are exact."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cpu.abi.sizes import CACHE_TYPES, FLOAT_BYTES, key_and_value_types, rotation_block
from kukri.runtime.cpu.kernels import KV_STORES
from kukri.runtime.cpu.page_pool import PagePool
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions

from .test_attention import Cache, expected
from .test_rotation import hadamard

# Relative RMS error of the output: float32 sums, or queries and softmax numerators of 16 bits.
EXACT = {kind: 2e-6 if key_and_value_types(kind)[1] in FLOAT_BYTES else 5e-4 for kind in CACHE_TYPES}
MAINLY_MIXED = [
    pytest.param(kind, marks=() if kind in ("Q8_0/Q4_0", "F16/Q8_0") else pytest.mark.slow)
    for kind in CACHE_TYPES
]


def rounded(x: np.ndarray, kind: str, block: int = 0, offset: np.ndarray | None = None) -> np.ndarray:
    """float32 [tokens, dim] of a head as a cache of element type `kind` has it, its rotation in blocks of
    `block` dimensions undone."""
    if kind in FLOAT_BYTES:
        return x.astype({2: np.float16, 4: np.float32}[FLOAT_BYTES[kind]]).astype(np.float32)
    dim = x.shape[1]
    turn = hadamard(block or 1)
    turned = ((x if offset is None else x - offset).reshape(-1, block or 1) @ turn).reshape(-1, dim)
    groups = np.pad(turned, ((0, 0), (0, -dim % 32))).astype(np.float32).reshape(len(x), -1, 32)
    high, low = np.maximum(groups.max(-1), 0), np.maximum(-groups.min(-1), 0)
    if kind == "Q8_0":
        scale, least, most = np.maximum(high, low) / np.float32(127), -127, 127
    else:
        scale, least, most = np.where(high > low, -high, low) / np.float32(8), -8, 7
    scale = scale.astype(np.float16).astype(np.float32)[..., None]
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    codes = np.clip(np.rint(groups * inverse), least, most)
    back = (codes * scale).reshape(len(x), -1)[:, :dim]
    return (back.reshape(-1, block or 1) @ turn).reshape(-1, dim)


def cached(cache: Cache, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    """k and v [tokens, kv_heads · head_dim] as the cache keeps them."""
    out = []
    for x, kind in zip((k, v), key_and_value_types(cache.kind), strict=True):
        block = rotation_block(cache.head_dim, cache.head_dim)
        heads = x.reshape(len(x), cache.kv_heads, cache.head_dim)
        out.append(np.stack([rounded(heads[:, h], kind, block) for h in range(cache.kv_heads)], 1))
    return [x.reshape(len(x), -1) for x in out]


def random_cache(rng: np.random.Generator, kind: str, cls: type[Cache] = Cache, **more) -> Cache:
    kv_heads, group = (int(rng.integers(1, 4)) for _ in range(2))
    return cls(
        kind,
        kv_heads * group,
        kv_heads,
        head_dim=int(rng.choice([32, 40, 64, 80, 96, 128])),
        page_size=int(rng.choice([32, 64, 96])),
        window=int(rng.choice([0, 0, rng.integers(1, 150)])),
        softcap=float(rng.choice([0.0, 0.0, 3.0])),
        n_threads=int(rng.integers(1, 4)),
        **more,
    )


def with_sink(cache: Cache, position: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, sinks: np.ndarray):
    """`expected`, with attention sinks, in units of ln 2, beside the keys."""
    first = max(0, position + 1 - cache.window) if cache.window else 0
    plain = expected(cache, position, q, k, v).reshape(cache.heads, -1)
    for h, query in enumerate(q.reshape(cache.heads, cache.head_dim).astype(np.float64)):
        keys = k[first : position + 1].reshape(-1, cache.kv_heads, cache.head_dim)
        scores = keys[:, h // (cache.heads // cache.kv_heads)] @ query * cache.head_dim**-0.5
        if cache.softcap:
            scores = cache.softcap * np.tanh(scores / cache.softcap)
        total = np.exp(scores).sum()
        plain[h] *= total / (total + np.exp2(sinks[h]))
    return plain.ravel()


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("kind", MAINLY_MIXED)
def test_prompts_few_rows_and_single_rows(kind, sinks):
    """Random shapes, windows and soft caps; a second sequence shares the first one's whole pages."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        cache = random_cache(rng, kind)
        added = rng.normal(size=cache.heads).astype(np.float32) + 3 if sinks else np.full(cache.heads, -1e9)
        if sinks:
            cache.arguments["sinks"] = added.ctypes.data
        n, more = int(rng.integers(2, 230)), int(rng.integers(1, 20))
        shared = n // cache.page_size * cache.page_size
        q, k, v = cache.rows(rng, n + more + 1)
        cache.table.extend(0, n)
        first = [(0, p) for p in range(n)]
        out = cache.prefill(first, q[:n], k[:n], v[:n])
        keys, values = cached(cache, k, v)

        def want(p: int, row: int, keys=keys, values=values, cache=cache, q=q, added=added):
            return with_sink(cache, p, q[row], keys, values, added)

        assert error(out, np.stack([want(p, p) for p in range(n)])) < EXACT[kind]
        cache.table.adopt(1, cache.table.pages(0)[: shared // cache.page_size])
        cache.table.extend(1, more + 1)
        keys = np.r_[keys[:shared], keys[n:]]
        values = np.r_[values[:shared], values[n:]]
        rows = [(1, shared + i) for i in range(more)]
        got = cache.few(rows, *(x[n : n + more] for x in (q, k, v)))
        wanted = [want(shared + i, n + i, keys, values) for i in range(more)]
        assert error(got, np.stack(wanted)) < EXACT[kind]
        one = cache.decode((1, shared + more), *(x[n + more :] for x in (q, k, v)))
        assert error(one, want(shared + more, n + more, keys, values)[None]) < EXACT[kind]


@pytest.mark.parametrize("kind", MAINLY_MIXED)
def test_a_page_copied_is_the_same_cache(kind):
    """Pools hold all there is of keys and values: a copy of a page's pieces gives the same results."""
    cache = Cache(kind, head_dim=40, page_size=32)
    q, k, v = cache.rows(np.random.default_rng(3), 33)
    cache.table.extend(0, 32)
    cache._call((KV_STORES,), [(0, p) for p in range(32)], q[:32], k[:32], v[:32])
    page = cache.table.pages(0)[0]
    cache.table.extend(1, 32)
    for pool in cache.pools:
        pages = PagePool(pool, cache.n_pages, cache.kv_heads)
        pages[cache.table.pages(1)[0]][:] = pages[page]
    outs = []
    for sequence in (0, 1):
        cache.table.extend(sequence, 1)
        outs.append(cache.decode((sequence, 32), q[32:], k[32:], v[32:]))
    np.testing.assert_array_equal(outs[1], outs[0])
    want = expected(cache, 32, q[32], *cached(cache, k, v))
    assert error(outs[0], want[None]) < EXACT[kind]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss", "gemma2", "qwen2", "gemma3n", "olmo2"])
def test_whole_models(conformance, name):
    """Latent attention, sinks, soft caps and biases of keys: logits are between those of a cache of the keys'
    type and those of a cache of the values' type, and nearer to the former."""
    reference = np.load(conformance(name) / "reference.npz")
    ids = np.tile(reference["input_ids"].ravel(), 4)[:60].tolist()
    logits = {}
    for kind in ("f32", "q8_0", "q8_0/q4_0", "f16/q8_0", "q4_0"):
        with load_model(conformance(name), LoadOptions("cpu", kv_type=kind, threads=2, parallel=1)) as model:
            logits[kind] = np.concatenate([part.copy() for part in model.engine.logits_in_parts(ids)])
    errors = {kind: error(each, logits["f32"]) for kind, each in logits.items()}
    assert errors["f16/q8_0"] < 1.5 * errors["q8_0"], errors
    assert errors["q8_0"] < errors["q8_0/q4_0"] < errors["q4_0"], errors
