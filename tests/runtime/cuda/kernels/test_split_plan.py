"""The plan of splits, and attention that follows it, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.kernels.attention.decode import DecodeAttentionArguments, decode_attention
from kukri.runtime.cuda.kernels.attention.split_kv_merge import SplitOutput
from kukri.runtime.cuda.kernels.attention.split_plan import PlanArguments, plan_splits

from ..simulator import run
from .paged_attention import NO_PREPARATION, matrix, paged_cache, score_arguments


def plan(positions, budget, warps, window=0):
    """The items of `plan_splits`."""
    items = np.full((len(positions) + budget, 8), -9, np.int32)
    arguments = PlanArguments(
        positions=positions, rows=len(positions), window=window, budget=budget, items=items
    )
    run(plan_splits, {"WARPS": warps, "WINDOW": int(window > 0), "PDL": 0}, (1,), 256, arguments, 32)
    return items


@pytest.mark.parametrize(
    ("n", "budget", "warps", "window"), [(1, 1, 4, 0), (5, 16, 2, 0), (300, 40, 4, 0), (40, 64, 1, 100)]
)
def test_plan(n, budget, warps, window):
    rng = np.random.default_rng(n)
    positions = (2.0 ** rng.uniform(0, 14, n)).astype(np.int32) - 1
    items = plan(positions, budget, warps, window)
    used = items[items[:, 0] >= 0]
    assert (items[len(used) :, 0] == -1).all()
    lows = np.maximum(0, positions - window + 1) if window else np.zeros(n, int)
    longest = -(-int((positions // 16 + 1 - lows // 16).sum()) // budget)
    at = 0
    for row, (position, low) in enumerate(zip(positions, lows, strict=True)):
        own = used[used[:, 0] == row]
        assert (own == used[at : at + len(own)]).all()  # one behind the other
        at += len(own)
        np.testing.assert_array_equal(own[:, 1], np.arange(len(own)))
        assert (own[:, 2] == len(own)).all()
        assert own[0, 3] == low // 16
        assert own[-1, 4] == position // 16 + 1
        np.testing.assert_array_equal(own[1:, 3], own[:-1, 4])
        assert (own[:, 4] - own[:, 3]).max() <= -(-longest // warps) * warps
        assert (own[:, 5:7] == [position, low]).all()


@pytest.mark.slow
@pytest.mark.parametrize(("window", "bits", "emit"), [(0, 16, 0), (70, 16, 0), (0, 16, 2)])
def test_attention(window, bits, emit):
    """Rows of three sequences, the longest of which needs several splits; float32 or float16."""
    rng, kv_heads, heads, dims = np.random.default_rng(1), 2, 4, 32
    positions, sequences = np.array([3, 40, 300, 41], np.int32), np.array([1, 0, 2, 0], np.int32)
    table = np.array([[3, 0, 0, 0, 0], [1, 0, 0, 0, 0], [2, 0, 4, 6, 5]], np.int32)
    keys, values = (rng.standard_normal((7, kv_heads, 64, dims)).astype(np.float16) for _ in range(2))
    q = rng.standard_normal((4, heads * dims)).astype(np.float32)
    items = plan(positions, 5, 2, window)
    out = np.full((4, heads * dims), np.nan, np.float32)
    halves = np.full((4, 128), np.nan, np.float16)
    partials, counters = np.full((9, heads, dims + 4), np.nan, np.float32), np.zeros((4, 2), np.int32)
    constants = {"G": heads // 2, "HD": dims, "DP": dims, "VD": dims, "VP": dims, "KV": bits, "WARPS": 2}
    constants |= {"CHUNKS": 1, "PAGE": 6, "SWIZZLE": 3, "STAGES": 2, "SOFTCAP": 0, "SINKS": 0, "EMIT": emit}
    constants |= {"WINDOW": int(window > 0), "PDL": 0, "SINGLE_ROW": 0, "PREPARE": 0, "PLANNED": 1}
    arguments = DecodeAttentionArguments(
        q=matrix(q),
        cache=paged_cache(keys, values, table, sequences, positions),
        scores=score_arguments(0.0, window, np.zeros(1, np.float32)),
        output=SplitOutput(
            partials=partials,
            counters=counters,
            out=matrix(out),
            codes=0,
            heads=heads,
            halves=halves,
            half_stride=halves.strides[0],
        ),
        kv_heads=kv_heads,
        k=0,
        v=0,
        preparation=NO_PREPARATION,
        plan=items,
    )
    assert (items[:, 2] > 1).any()
    for _ in range(2):
        run(decode_attention, constants, (kv_heads, len(items)), 64, arguments, 65536)
        assert not counters.any()
    if emit:
        assert np.isnan(out).all()
        out = halves.reshape(4, 8, 2, 4, 2).transpose(0, 1, 3, 4, 2).reshape(4, 128).astype(np.float32)
    for row, (position, sequence) in enumerate(zip(positions, sequences, strict=True)):
        seen = np.arange(max(0, position - window + 1) if window else 0, position + 1)
        for h in range(heads):
            k = keys[table[sequence, seen // 64], h // 2, seen % 64].astype(np.float64)
            v = values[table[sequence, seen // 64], h // 2, seen % 64].astype(np.float64)
            weights = np.exp(0.3 * k @ q[row, h * dims : (h + 1) * dims])
            expected = weights @ v / weights.sum()
            np.testing.assert_allclose(out[row, h * dims : (h + 1) * dims], expected, rtol=5e-3, atol=5e-3)
