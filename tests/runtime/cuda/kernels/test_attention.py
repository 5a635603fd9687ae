"""Attention over pages: splits, windows, soft caps and sinks against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.abi.arguments import Region
from kukri.runtime.cuda.kernels.attention.cache import PagedCache
from kukri.runtime.cuda.kernels.attention.decode import DecodeAttentionArguments, decode_attention
from kukri.runtime.cuda.kernels.attention.mla import MLAArguments, mla_attention
from kukri.runtime.cuda.kernels.attention.mla_merge import MergeArguments, mla_merge_splits
from kukri.runtime.cuda.kernels.attention.prefill import PrefillAttentionArguments, prefill_attention
from kukri.runtime.cuda.kernels.attention.prefill_sm90 import (
    WidePrefillAttentionArguments,
    prefill_attention_sm90,
    shared_bytes,
)
from kukri.runtime.cuda.kernels.attention.prepare_qk import (
    PrepareArguments,
    QKPreparation,
    prepare_qk,
    rope_angles,
)
from kukri.runtime.cuda.kernels.attention.scores import ScoreArguments
from kukri.runtime.cuda.kernels.attention.simt import SimtAttentionArguments, simt_attention
from kukri.runtime.cuda.kernels.attention.split_kv_merge import SplitOutput

from ..simulator import run
from .codes import dequantized, empty

LOG2_E = float(np.log2(np.e))


def quantised(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """A cache of halves [pages, heads, tokens, dims] in codes, and what these stand for."""
    if bits == 16:
        return values, values
    groups = values.astype(np.float32).reshape(*values.shape[:-1], -1, 32)
    scales = (np.abs(groups).max(-1) / (127 if bits == 8 else 7)).astype(np.float16)
    codes = np.rint(groups / scales[..., None].astype(np.float32)).astype(np.int8)
    stands = (codes * scales[..., None].astype(np.float32)).reshape(values.shape)
    flat = codes.reshape(*values.shape[:3], -1)
    if bits == 4:
        eight = flat.reshape(*flat.shape[:3], -1, 2, 4)
        flat = (eight[..., 0, :] & 15 | eight[..., 1, :] << 4).reshape(*flat.shape[:3], -1)
    pages, heads = values.shape[:2]
    parts = [part.reshape(pages, heads, -1).view(np.uint8) for part in (flat, scales)]
    return np.ascontiguousarray(np.concatenate(parts, -1)), stands


NO_PREPARATION = QKPreparation(q_norm=0, k_norm=0, eps=1.0, pairs=0, angles=0)


def matrix(array: np.ndarray) -> Region:
    """An array of rows as kernels take it."""
    return Region(array, array.strides[0])


def paged_cache(keys, values, table, sequences, positions) -> PagedCache:
    return PagedCache(
        keys=keys, values=values, block_tables=matrix(table), sequences=sequences, positions=positions
    )


def score_arguments(softcap, window, sink, scale=0.3) -> ScoreArguments:
    return ScoreArguments(
        scale=scale / softcap if softcap else scale * LOG2_E,
        softcap=softcap * LOG2_E,
        window=window,
        sinks=sink * np.float32(LOG2_E),
    )


@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("length", [0, 170])  # of the sequence, where attention reads both ways
@pytest.mark.parametrize(
    ("dims", "lanes", "window", "softcap", "sinks", "bits"),
    [
        (32, 4, 15, 0.0, 0, 16),
        (64, 8, 0, 0.0, 0, 16),
        (32, 4, 37, 0.0, 1, 16),
        (20, 4, 0, 2.0, 0, 16),
        (64, 8, 0, 0.0, 0, 8),
        (32, 4, 37, 0.0, 1, 4),
    ],
)
def test_simt_attention(splits, length, dims, lanes, window, softcap, sinks, bits):
    rng, heads, kv_heads, pages, position = np.random.default_rng(0), 4, 2, 3, 150
    padded = -(-dims // 8) * 8
    shape = (pages, kv_heads, 64, padded)
    keys, values = (rng.standard_normal(shape).astype(np.float16) for _ in range(2))
    keys[..., dims:] = values[..., dims:] = 0
    (keys_held, keys), (values_held, values) = quantised(keys, bits), quantised(values, bits)
    q = rng.standard_normal((1, heads * dims)).astype(np.float32)
    table = np.array([[2, 0, 1]], np.int32)
    sink = rng.standard_normal(heads).astype(np.float32)
    out = np.full((1, heads * dims), np.nan, np.float32)
    codes = empty(heads * dims, 8)
    partials, counters = (
        np.full((heads, splits, padded + 4), np.nan, np.float32),
        np.zeros(kv_heads, np.int32),
    )
    constants = {
        "G": 2,
        "HD": dims,
        "DP": padded,
        "LANES": lanes,
        "LANE_BITS": lanes.bit_length() - 1,
        "VEC": 1,
    }
    constants |= {
        "U": 2,
        "KV": bits,
        "VD": dims,
        "VP": padded,
        "LATENT": 0,
        "WARPS": 2,
        "CHUNKS": 1,
        "PAGE": 6,
        "MIN_SPLIT": 16,
        "SOFTCAP": int(softcap > 0),
        "BOTH_WAYS": int(length > 0),
    }
    constants |= {
        "SINKS": sinks,
        "WINDOW": int(window > 0),
        "EMIT": int(dims % 32 == 0),
        "PDL": 0,
        "TOKENS": 8,
    }
    zero, at = np.zeros(1, np.int32), np.array([position], np.int32)
    arguments = SimtAttentionArguments(
        q=matrix(q),
        cache=paged_cache(keys_held, values_held, table, zero, at),
        scores=score_arguments(softcap, window, sink),
        output=SplitOutput(partials=partials, counters=counters, out=matrix(out), codes=codes, heads=heads),
        kv_heads=kv_heads,
        ends=np.array([length], np.int32),
    )
    for _ in range(2):  # counters are left as they were
        run(simt_attention, constants, (kv_heads, splits, 1), 64, arguments, 8192)
        assert not counters.any()
    expected = np.empty((heads, dims))
    for h in range(heads):
        end = min(length, position + window if window else length) if length else position + 1
        seen = np.arange(max(0, position - window + 1) if window else 0, end)
        k = keys[table[0, seen // 64], h // 2, seen % 64, :dims].astype(np.float64)
        v = values[table[0, seen // 64], h // 2, seen % 64, :dims].astype(np.float64)
        scores = 0.3 * k @ q[0, h * dims : (h + 1) * dims]
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        weights = np.exp(scores)
        expected[h] = weights @ v / (weights.sum() + (np.exp(sink[h]) if sinks else 0))
    np.testing.assert_allclose(out.reshape(heads, dims), expected, rtol=1e-4, atol=1e-5)
    if dims % 32 == 0:
        np.testing.assert_allclose(dequantized(codes, heads * dims, 1, 8)[0], out, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dims", "heads", "stages", "splits", "window", "softcap", "sinks", "bits", "alone"),
    [
        (64, 4, 3, 1, 0, 0.0, 0, 16, 0),
        (32, 24, 2, 3, 37, 0.0, 1, 16, 0),
        (48, 2, 3, 2, 0, 2.0, 0, 16, 4),
        (64, 4, 3, 3, 100, 0.0, 1, 8, 0),
        (64, 4, 3, 3, 100, 0.0, 1, 8, 4),
        (32, 6, 3, 2, 0, 0.0, 0, 4, 5),
    ],
)
def test_decode_attention(dims, heads, stages, splits, window, softcap, sinks, bits, alone):
    rng, kv_heads, position = np.random.default_rng(0), 2, 150
    keys, values = (rng.standard_normal((3, kv_heads, 64, dims)).astype(np.float16) for _ in range(2))
    keys[1, :, 150 % 64 + 1 :] = values[1, :, 150 % 64 + 1 :] = np.nan if bits == 16 else 0
    (keys_held, keys), (values_held, values) = quantised(keys, bits), quantised(values, bits)
    q = rng.standard_normal((1, heads * dims)).astype(np.float32)
    table, zero, at = np.array([[2, 0, 1]], np.int32), np.zeros(1, np.int32), np.array([position], np.int32)
    sink = rng.standard_normal(heads).astype(np.float32)
    out = np.full((1, heads * dims), np.nan, np.float32)
    partials, counters = np.full((heads, splits, dims + 4), np.nan, np.float32), np.zeros(kv_heads, np.int32)
    constants = {"G": heads // 2, "HD": dims, "DP": dims, "VD": dims, "VP": dims, "KV": bits, "WARPS": 2}
    constants |= {"CHUNKS": 1, "PAGE": 6, "SWIZZLE": min(8, dims // 8 & -(dims // 8)) - 1, "STAGES": stages}
    constants |= {"SOFTCAP": int(softcap > 0), "SINKS": sinks, "WINDOW": int(window > 0), "EMIT": 0, "PDL": 0}
    constants |= {"SINGLE_ROW": int(splits > 1), "PREPARE": 0, "ALONE": alone}
    arguments = DecodeAttentionArguments(
        q=matrix(q),
        cache=paged_cache(keys_held, values_held, table, zero, at),
        scores=score_arguments(softcap, window, sink),
        output=SplitOutput(partials=partials, counters=counters, out=matrix(out), codes=0, heads=heads),
        kv_heads=kv_heads,
        k=0,
        v=0,
        preparation=NO_PREPARATION,
    )
    for _ in range(2):
        run(decode_attention, constants, (kv_heads, splits, 1), 64, arguments, 65536)
        assert not counters.any()
    for h in range(heads):
        seen = np.arange(max(0, position - window + 1) if window else 0, position + 1)
        k = keys[table[0, seen // 64], h // (heads // 2), seen % 64].astype(np.float64)
        v = values[table[0, seen // 64], h // (heads // 2), seen % 64].astype(np.float64)
        scores = 0.3 * k @ q[0, h * dims : (h + 1) * dims]
        weights = np.exp(softcap * np.tanh(scores / softcap) if softcap else scores)
        expected = weights @ v / (weights.sum() + (np.exp(sink[h]) if sinks else 0))
        np.testing.assert_allclose(out[0, h * dims : (h + 1) * dims], expected, rtol=5e-3, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize(
    ("dims", "norms", "rope", "position", "more"),
    [
        (64, (1, 2), "halves", 150, {}),
        (48, (0, 0), "halves", 15, {}),
        (32, (2, 1), "", 63, {}),
        (32, (0, 0), "neighbours", 16, {"SINKS": 1}),
        (
            64,
            (1, 1),
            "halves",
            127,
            {"ALONE": 4, "EMIT": 1},
        ),  # as many tiles as one block takes, and one more
        (64, (1, 1), "halves", 128, {"ALONE": 4, "EMIT": 1, "SINKS": 1}),
        (32, (1, 0), "neighbours", 100, {"G": 12, "ALONE": 4, "WINDOW": 1}),
        (96, (0, 1), "a part", 150, {"ALONE": 5, "SOFTCAP": 1}),
        (32, (0, 0), "halves", 170, {"ALONE": 2, "WINDOW": 1, "STAGES": 2}),
        (32, (1, 1), "halves", 0, {"G": 1, "ALONE": 4, "STAGES": 4}),
    ],
)
def test_a_single_row_prepared(dims, norms, rope, position, more, bits):
    """Norms, rotation and cache where attention is: the same as with a launch of its own in front."""
    if bits < 16 and dims % 32:
        pytest.skip("a cache in codes has whole groups of 32 dimensions")
    group = {"G": 3, "VD": dims, "VP": dims, "WARPS": 2, "CHUNKS": 1, "STAGES": 3, "ALONE": 0, "TOKENS": 1}
    group |= {"SOFTCAP": 0, "SINKS": 0, "WINDOW": 0, "EMIT": 0, **more}
    group["SWIZZLE"] = min(8, dims // 8 & -(dims // 8)) - 1
    rng, kv_heads, splits, window = np.random.default_rng(1), 2, 2, 70
    heads, pairs = group["G"] * kv_heads, dims // (4 if rope == "a part" else 2)
    shape = (3, kv_heads, 64, dims)
    held = [quantised(rng.standard_normal(shape).astype(np.float16), bits)[0] for _ in range(2)]
    if bits == 16:  # the new token's place
        held[0][[2, 0, 1][position // 64], :, position % 64] = np.nan
        held[1][[2, 0, 1][position // 64], :, position % 64] = np.nan
    fresh = [rng.standard_normal((1, n * dims)).astype(np.float32) for n in (heads, kv_heads, kv_heads)]
    weights = [rng.standard_normal(n * dims).astype(np.float32) for n in (heads, kv_heads)]
    angles = np.full((1, 2 * pairs), np.nan, np.float32)
    frequencies, sink = (rng.random(n).astype(np.float32) for n in (pairs, heads))
    table, zero, at = np.array([[2, 0, 1]], np.int32), np.zeros(1, np.int32), np.array([position], np.int32)
    cache = {"HD": dims, "DP": dims, "KV": bits, "PAGE": 6, "PDL": 0}
    before = {"Q_NORM": norms[0], "K_NORM": norms[1], "ROPE": int(rope != ""), "INVERSE_HD": 1 / dims}
    before["INTERLEAVED"] = int(rope == "neighbours")
    tiles = position // 16 + 1 - (max(0, position - window + 1) // 16 if group["WINDOW"] else 0)
    results = []
    for together in (0, 1):
        q, k, v = (b.copy() for b in fresh)
        keys, values = (h.copy() for h in held)
        out, counters = np.full((1, heads * dims), np.nan, np.float32), np.zeros(kv_heads, np.int32)
        partials = np.full((heads, splits, dims + 4), np.nan, np.float32)
        codes = empty(heads * dims, 1)
        pages = paged_cache(keys, values, table, zero, at)
        preparation = QKPreparation(
            q_norm=weights[0],
            k_norm=weights[1],
            eps=1e-5,
            pairs=pairs,
            angles=angles,
            frequencies=frequencies,
            factor=1.25,
        )
        if not together:
            turns = [at, frequencies, 0, pairs, 1.25, *matrix(angles)]
            run(rope_angles, {"PDL": 0}, (1, 1), 128, turns)
            arguments = PrepareArguments(
                q=matrix(q),
                k=matrix(k),
                v=matrix(v),
                preparation=preparation,
                angle_stride=0,
                cache=pages,
                heads=heads,
                kv_heads=kv_heads,
            )
            constants = cache | before | {"WARPS": 2, "LATENT": 0}
            grid = (-(-(heads + 2 * kv_heads) // 2), 1)
            run(prepare_qk, constants, grid, 64, arguments, 4 * 2 * dims)
        constants = cache | group | before | {"SINGLE_ROW": together, "PREPARE": together}
        arguments = DecodeAttentionArguments(
            q=matrix(q),
            cache=pages,
            scores=score_arguments(2.0 if group["SOFTCAP"] else 0.0, window, sink, 0.2),
            output=SplitOutput(
                partials=partials, counters=counters, out=matrix(out), codes=codes, heads=heads
            ),
            kv_heads=kv_heads,
            k=k,
            v=v,
            preparation=preparation,
        )
        run(decode_attention, constants, (kv_heads, splits, 1), 64, arguments, 65536)
        assert not counters.any()
        alone = group["ALONE"] * 2 if group["ALONE"] else 2
        assert np.isnan(partials).all() == (tiles <= alone)
        results.append((out, keys, values, codes))
    for expected, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert np.isfinite(results[1][0]).all()
    if group["EMIT"]:
        read = dequantized(results[1][3], heads * dims, 1, 1)[0]
        np.testing.assert_allclose(read, results[1][0], rtol=1e-3, atol=1e-3)


def test_simt_attention_latent():
    """Values are the beginnings of the keys; two vectors of 8 dimensions a lane."""
    rng, heads, dims, value_dims, position = np.random.default_rng(0), 3, 48, 40, 75
    keys = rng.standard_normal((2, 1, 64, dims)).astype(np.float32)
    q = rng.standard_normal((1, heads * dims)).astype(np.float32)
    table, zero, at = np.array([[1, 0]], np.int32), np.zeros(1, np.int32), np.array([position], np.int32)
    out = np.full((1, heads * value_dims), np.nan, np.float32)
    partials, counters = np.full((heads, 2, value_dims + 4), np.nan, np.float32), np.zeros(3, np.int32)
    constants = {"G": 1, "HD": dims, "DP": dims, "VD": value_dims, "VP": value_dims, "LATENT": 1, "KV": 32}
    constants |= {"LANES": 4, "LANE_BITS": 2, "VEC": 2, "U": 1, "WARPS": 2, "CHUNKS": 3, "PAGE": 6}
    constants |= {"MIN_SPLIT": 16, "SOFTCAP": 0, "SINKS": 0, "WINDOW": 0, "EMIT": 0, "PDL": 0}
    arguments = SimtAttentionArguments(
        q=matrix(q),
        cache=paged_cache(keys, keys, table, zero, at),
        scores=ScoreArguments(scale=0.3 * LOG2_E, softcap=0.0, window=0, sinks=0),
        output=SplitOutput(partials=partials, counters=counters, out=matrix(out), codes=0, heads=heads),
        kv_heads=1,
    )
    run(simt_attention, constants, (3, 2, 1), 64, arguments, 8192)
    seen = np.arange(position + 1)
    k = keys[table[0, seen // 64], 0, seen % 64].astype(np.float64)
    weights = np.exp(0.3 * q.reshape(heads, dims) @ k.T)
    expected = weights / weights.sum(-1, keepdims=True) @ k[:, :value_dims]
    np.testing.assert_allclose(out.reshape(heads, -1), expected, rtol=1e-4, atol=1e-5)


class MLACase:
    """Keys of three pages, queries of rows of one sequence, and the arguments of launches of MLA kernels."""

    def __init__(self, rows, heads, m_tiles, dims, value_dims, tokens, warps, window, softcap, sinks, bits):
        rng = np.random.default_rng(0)
        self.heads, self.value_dims, self.window, self.softcap = heads, value_dims, window, softcap
        self.rows, self.at, self.sinks = len(rows), np.array(rows, np.int32), sinks
        keys = rng.standard_normal((3, 1, 64, -(-dims // 32) * 32 if bits < 16 else dims)).astype(np.float16)
        keys[1, :, max(rows) % 64 + 1 :] = np.nan if bits == 16 else 1
        self.held, self.keys = quantised(keys, bits)
        self.q = rng.standard_normal((self.rows, heads * dims)).astype(np.float32)
        self.table, self.zero = np.array([[2, 0, 1]], np.int32), np.zeros(self.rows, np.int32)
        self.sink = rng.standard_normal(heads).astype(np.float32)
        self.sinks2 = self.sink * np.float32(LOG2_E)
        self.out = np.full((self.rows, heads * value_dims), np.nan, np.float32)
        together, units = max(d for d in range(1, 16 * m_tiles + 1) if heads % d == 0), value_dims // 16
        self.constants = {"G": together, "HD": dims, "DP": keys.shape[-1], "VP": value_dims, "KV": bits}
        self.constants |= {"SWIZZLE": min(8, dims // 8 & -(dims // 8)) - 1}
        self.constants |= {
            "M_TILES": m_tiles,
            "TILE": tokens,
            "N_TILES": tokens * m_tiles // (8 * warps),
            "PAGE": 6,
        }
        self.constants |= {
            "HEAD_WARPS": warps // m_tiles,
            "V_TILES": units,
            "WARP_V_TILES": -(-units // warps),
            "PDL": 0,
        }
        self.constants |= {"SOFTCAP": int(softcap > 0), "SINKS": sinks, "WINDOW": int(window > 0)}
        self.constants |= {"WARPS": warps, "THREADS": 64, "Q_KEPT": max(2, dims // 16 - 2)}

    def attend(self, grid, partials, one_split, prompt):
        constants = self.constants | {
            "ONE_SPLIT": int(one_split),
            "PREFILL": int(prompt),
            "SINGLE_ROW": int(self.rows == 1),
        }
        arguments = MLAArguments(
            q=matrix(self.q),
            cache=paged_cache(self.held, 0, self.table, self.zero, self.at),
            scores=score_arguments(self.softcap, self.window, self.sink),
            partials=partials,
            out=matrix(self.out),
            heads=self.heads,
            rows=self.rows,
        )
        run(mla_attention, constants, grid, 32 * constants["WARPS"], arguments, 65536)

    def check(self):
        for row, at in enumerate(self.at):
            seen = np.arange(max(0, at - self.window + 1) if self.window else 0, at + 1)
            dims = self.q.shape[1] // self.heads
            k = self.keys[self.table[0, seen // 64], 0, seen % 64, :dims].astype(np.float64)
            scores = 0.3 * self.q[row].reshape(self.heads, dims) @ k.T
            weights = np.exp(self.softcap * np.tanh(scores / self.softcap) if self.softcap else scores)
            sums = weights.sum(-1) + (np.exp(self.sink) if self.sinks else 0)
            expected = weights / sums[:, None] @ k[:, : self.value_dims]
            np.testing.assert_allclose(self.out[row].reshape(self.heads, -1), expected, rtol=5e-3, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "dims", "value_dims", "tokens", "warps", "splits", "window", "softcap", "sinks", "bits"),
    [
        (3, 48, 32, 32, 4, 2, 0, 0.0, 0, 16),
        (40, 48, 48, 64, 8, 1, 0, 0.0, 0, 16),
        (5, 48, 32, 64, 8, 3, 50, 2.0, 1, 8),
        (20, 96, 80, 32, 8, 3, 0, 0.0, 0, 16),
        (20, 96, 96, 64, 8, 1, 0, 0.0, 1, 4),
        (16, 144, 128, 32, 4, 2, 0, 0.0, 0, 16),
    ],
)
def test_mla_in_splits(heads, dims, value_dims, tokens, warps, splits, window, softcap, sinks, bits):
    m_tiles = 1 if heads <= 16 else 2
    case = MLACase(
        [150, 70][: 3 - m_tiles],
        heads,
        m_tiles,
        dims,
        value_dims,
        tokens,
        warps,
        window,
        softcap,
        sinks,
        bits,
    )
    partials = np.full((case.rows, heads, splits, value_dims + 4), np.nan, np.float32)
    case.attend(
        (heads // case.constants["G"], splits, case.rows), partials, one_split=splits == 1, prompt=False
    )
    if splits > 1:
        arguments = MergeArguments(
            partials=partials,
            positions=case.at,
            window=window,
            sinks=case.sinks2,
            out=matrix(case.out),
            heads=heads,
            splits=splits,
        )
        run(mla_merge_splits, case.constants, (heads, case.rows), 64, arguments, 4096)
    case.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "first", "m_tiles", "tokens", "warps", "window", "sinks"),
    [(5, 120, 2, 64, 8, 0, 0), (3, 55, 1, 32, 4, 40, 1), (7, 62, 2, 32, 8, 0, 0)],
)
def test_mla_of_a_prompt(heads, first, m_tiles, tokens, warps, window, sinks):
    """Blocks take heads of several rows, and the last block has fewer heads than it has room for."""
    rows = range(first, first + 17)
    case = MLACase(rows, heads, m_tiles, 48, 32, tokens, warps, window, 0.0, sinks, 16)
    case.attend((-(-17 * heads // (16 * m_tiles)),), 0, one_split=True, prompt=True)
    case.check()


class PromptCase:
    """Keys and values of pages of one sequence, and the last rows of it."""

    def __init__(self, first, rows, heads, kv_heads, dims, window, softcap, sinks, bits):
        rng = np.random.default_rng(0)
        self.first, self.rows, self.heads, self.dims, self.window = first, rows, heads, dims, window
        self.softcap, self.sinks, self.group = softcap, sinks, heads // kv_heads
        pages = -(-(first + rows) // 64)
        shape = (pages, kv_heads, 64, dims)
        keys, values = (rng.standard_normal(shape).astype(np.float16) for _ in range(2))
        (self.keys_held, self.keys), (self.values_held, self.values) = (
            quantised(x, bits) for x in (keys, values)
        )
        self.q = rng.standard_normal((rows, heads * dims)).astype(np.float32)
        self.table = rng.permutation(pages).astype(np.int32)[None]
        self.sequences, self.positions = (
            np.zeros(rows, np.int32),
            np.arange(first, first + rows, dtype=np.int32),
        )
        self.sink = rng.standard_normal(heads).astype(np.float32)
        self.out = np.full((rows, heads * dims), np.nan, np.float32)
        self.constants = {"HD": dims, "GROUP": self.group, "KV": bits, "DP": dims, "PAGE": 6, "PDL": 0}
        self.constants |= {"SOFTCAP": int(softcap > 0), "SINKS": sinks, "WINDOW": int(window > 0)}
        self.arguments = {
            "q": matrix(self.q),
            "cache": paged_cache(
                self.keys_held, self.values_held, self.table, self.sequences, self.positions
            ),
            "scores": score_arguments(softcap, window, self.sink),
            "out": matrix(self.out),
            "rows": rows,
            "kv_heads": kv_heads,
        }

    def check(self, out, every=11):
        for row in range(0, self.rows, every):
            at = self.first + row
            seen = np.arange(max(0, at - self.window + 1) if self.window else 0, at + 1)
            for h in range(self.heads):
                k, v = (
                    x[self.table[0, seen // 64], h // self.group, seen % 64].astype(np.float64)
                    for x in (self.keys, self.values)
                )
                ours = slice(h * self.dims, (h + 1) * self.dims)
                scores = 0.3 * k @ self.q[row, ours]
                weights = np.exp(self.softcap * np.tanh(scores / self.softcap) if self.softcap else scores)
                expected = weights @ v / (weights.sum() + (np.exp(self.sink[h]) if self.sinks else 0))
                np.testing.assert_allclose(out[row, ours], expected, rtol=5e-3, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("window", "softcap", "sinks", "bits"), [(0, 0.0, 0, 16), (50, 1.5, 1, 8)])
def test_prefill_attention(window, softcap, sinks, bits):
    case = PromptCase(70, 67, 2, 1, 64, window, softcap, sinks, bits)
    constants = case.constants | {"SWIZZLE": 7, "Q_IN_REGISTERS": int(bits == 16)}
    run(prefill_attention, constants, (2, 2), 128, PrefillAttentionArguments(**case.arguments), 640 * 64)
    case.check(case.out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "rows", "heads", "kv_heads", "dims", "window", "softcap", "sinks", "bits"),
    [
        (70, 67, 4, 2, 64, 0, 0.0, 0, 16),
        (200, 100, 4, 2, 128, 0, 0.0, 0, 16),
        (300, 67, 2, 1, 64, 150, 1.5, 1, 8),
        (0, 140, 3, 1, 64, 0, 0.0, 1, 4),
        (250, 20, 1, 1, 128, 30, 0.0, 0, 16),
        (0, 30, 2, 2, 64, 0, 0.0, 0, 16),
        (200, 70, 2, 1, 256, 0, 0.0, 0, 16),
        (90, 40, 1, 1, 256, 70, 0.0, 0, 8),
    ],
)
def test_prefill_attention_sm90(first, rows, heads, kv_heads, dims, window, softcap, sinks, bits):
    case = PromptCase(first, rows, heads, kv_heads, dims, window, softcap, sinks, bits)
    together = 2 if case.group % 2 == 0 else 1
    grid = heads // together, -(-rows // (128 // together))
    for emits in (0, 1):
        halves = np.full(case.out.shape, np.nan, np.float16)
        arguments = WidePrefillAttentionArguments(**case.arguments, halves=matrix(halves))
        constants = case.constants | {"HEADS": together, "HALVES": emits}
        stages = 5 if dims <= 128 else 2
        constants |= {"STAGES": stages, "TURNS": emits if stages > 2 else 0}
        run(prefill_attention_sm90, constants, grid, 256, arguments, shared_bytes(dims, stages))
    case.check(case.out)
    # Column 4s + j + 2k of 16 has become 8j + 2s + k.
    back = halves.reshape(rows, -1, 2, 4, 2).transpose(0, 1, 3, 4, 2).reshape(rows, -1)
    np.testing.assert_array_equal(back, case.out.astype(np.float16))
