"""Latent attention over pages, in splits and of a prompt, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.kernels.attention.mla import MLAArguments, mla_attention
from kukri.runtime.cuda.kernels.attention.mla_merge import MergeArguments, mla_merge_splits
from kukri.runtime.cuda.kernels.attention.scores import ScoreArguments
from kukri.runtime.cuda.kernels.attention.simt import SimtAttentionArguments, simt_attention
from kukri.runtime.cuda.kernels.attention.split_kv_merge import SplitOutput

from ..simulator import run
from .paged_attention import LOG2_E, matrix, paged_cache, quantised, score_arguments


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
