"""Attention over pages: spans, windows, caps and sinks against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.kernels.attention import attend
from kukri.runtime.cuda.kernels.prompt_attention import attend_prompt

from .codes import decoded, empty
from .simulator import run

LOG2_E = float(np.log2(np.e))


@pytest.mark.parametrize("spans", [1, 3])
@pytest.mark.parametrize(
    ("dims", "lanes", "window", "softcap", "sinks"),
    [(64, 8, 0, 0.0, 0), (32, 4, 37, 0.0, 1), (20, 4, 0, 2.0, 0)],
)
def test_attend(spans, dims, lanes, window, softcap, sinks):
    rng, heads, kv_heads, pages, position = np.random.default_rng(0), 4, 2, 3, 150
    padded = -(-dims // 8) * 8
    shape = (pages, kv_heads, 64, padded)
    keys, values = (rng.standard_normal(shape).astype(np.float16) for _ in range(2))
    keys[..., dims:] = values[..., dims:] = 0
    q = rng.standard_normal((1, heads * dims)).astype(np.float32)
    table = np.array([[2, 0, 1]], np.int32)
    sink = rng.standard_normal(heads).astype(np.float32)
    out = np.full((1, heads * dims), np.nan, np.float32)
    codes = empty(heads * dims, 8)
    partials, counters = np.full((heads, spans, padded + 4), np.nan, np.float32), np.zeros(kv_heads, np.int32)
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
        "KV": 16,
        "WARPS": 2,
        "CHUNKS": 1,
        "PAGE": 6,
        "SPAN": 16,
        "SOFTCAP": int(softcap > 0),
    }
    constants |= {
        "SINKS": sinks,
        "WINDOW": int(window > 0),
        "EMIT": int(dims % 32 == 0),
        "PDL": 0,
        "TOKENS": 8,
    }
    scale = 0.3 / softcap if softcap else 0.3 * LOG2_E
    zero, at = np.zeros(1, np.int32), np.array([position], np.int32)
    arguments = [
        q,
        q.nbytes,
        keys,
        values,
        table,
        12,
        zero,
        at,
        scale,
        softcap * LOG2_E,
        window,
        sink * np.float32(LOG2_E),
    ]
    arguments += [partials, counters, out, out.nbytes, codes, heads, kv_heads]
    for _ in range(2):  # counters are left as they were
        run(attend, constants, (kv_heads, spans, 1), 64, arguments, 8192)
        assert not counters.any()
    expected = np.empty((heads, dims))
    for h in range(heads):
        seen = np.arange(max(0, position - window + 1) if window else 0, position + 1)
        k = keys[table[0, seen // 64], h // 2, seen % 64, :dims].astype(np.float64)
        v = values[table[0, seen // 64], h // 2, seen % 64, :dims].astype(np.float64)
        scores = 0.3 * k @ q[0, h * dims : (h + 1) * dims]
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        weights = np.exp(scores)
        expected[h] = weights @ v / (weights.sum() + (np.exp(sink[h]) if sinks else 0))
    np.testing.assert_allclose(out.reshape(heads, dims), expected, rtol=1e-4, atol=1e-5)
    if dims % 32 == 0:
        np.testing.assert_allclose(decoded(codes, heads * dims, 1, 8)[0], out, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("window", [0, 50])
def test_attend_prompt(window):
    rng, heads, dims, first, rows = np.random.default_rng(0), 2, 64, 70, 67
    keys, values = (rng.standard_normal((4, 1, 64, dims)).astype(np.float16) for _ in range(2))
    q = rng.standard_normal((rows, heads * dims)).astype(np.float32)
    table, sequences = np.array([[2, 0, 1]], np.int32), np.zeros(rows, np.int32)
    positions = np.arange(first, first + rows, dtype=np.int32)
    out = np.full((rows, heads * dims), np.nan, np.float32)
    constants = {"HD": dims, "GROUP": 2, "WINDOW": int(window > 0), "PDL": 0}
    arguments = [q, 4 * heads * dims, keys, values, table, 12, sequences, positions, 0.3 * LOG2_E, window]
    run(attend_prompt, constants, (2, heads), 128, [*arguments, out, 4 * heads * dims, rows, 1], 512 * dims)
    for row in range(0, rows, 11):
        at = first + row
        seen = np.arange(max(0, at - window + 1) if window else 0, at + 1)
        k, v = (x[table[0, seen // 64], 0, seen % 64].astype(np.float64) for x in (keys, values))
        for h in range(heads):
            weights = np.exp(0.3 * k @ q[row, h * dims : (h + 1) * dims])
            expected = weights @ v / weights.sum()
            np.testing.assert_allclose(out[row, h * dims : (h + 1) * dims], expected, rtol=5e-3, atol=5e-3)
