"""Attention of a prompt over pages: windows, soft caps and sinks against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.kernels.attention.prefill import PrefillAttentionArguments, prefill_attention
from kukri.runtime.cuda.kernels.attention.prefill_sm90 import (
    WidePrefillAttentionArguments,
    prefill_attention_sm90,
    shared_bytes,
)

from ..simulator import run
from .paged_attention import matrix, paged_cache, quantised, score_arguments


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
