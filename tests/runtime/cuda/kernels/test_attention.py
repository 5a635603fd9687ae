"""Attention of single rows over pages: splits, windows, soft caps and sinks against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.kernels.attention.decode import DecodeAttentionArguments, decode_attention
from kukri.runtime.cuda.kernels.attention.prepare_qk import (
    PrepareArguments,
    QKPreparation,
    prepare_qk,
    rope_angles,
)
from kukri.runtime.cuda.kernels.attention.simt import SimtAttentionArguments, simt_attention
from kukri.runtime.cuda.kernels.attention.split_kv_merge import SplitOutput

from ..simulator import run
from .codes import dequantized, empty
from .paged_attention import NO_PREPARATION, matrix, paged_cache, quantised, score_arguments


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
