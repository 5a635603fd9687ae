"""Recurrent ops and ops of several streams against the reference machine's."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime import ops
from kukri.runtime.cuda.abi.arguments import Region
from kukri.runtime.cuda.kernels.common.altup import (
    correct_streams,
    match_magnitude,
    predict_streams,
    sparsify,
)
from kukri.runtime.cuda.kernels.recurrent.conv import ConvArguments, causal_conv
from kukri.runtime.cuda.kernels.recurrent.delta import DeltaArguments, delta_rule
from kukri.runtime.cuda.kernels.recurrent.scan import ScanArguments, state_scan
from kukri.runtime.cuda.kernels.recurrent.state import SequenceStates
from kukri.runtime.reference import activations as expected_activations
from kukri.runtime.reference import altup as expected
from kukri.runtime.reference.recurrent import causal_conv as expected_conv
from kukri.runtime.reference.recurrent import delta_rule as expected_delta
from kukri.runtime.reference.recurrent import state_scan as expected_scan

from ..simulator import run

SEQUENCES = np.array([0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1], np.int32)
POSITIONS = np.array([5, 0, 6, 7, 1, 8, 9, 10, 11, 12, 2], np.int32)  # one goes on, one begins
ROWS = len(SEQUENCES)


def matrix(array):
    """An array of rows as kernels take it."""
    return Region(array, array.strides[0])


def sequence_states(states):
    return SequenceStates(states=matrix(states), sequences=SEQUENCES, positions=POSITIONS)


def feed(scan, op, state, *inputs):
    """The reference over the rows of both sequences, and the states behind them."""
    state[1] = 0
    out = np.empty((ROWS, op.out.width), np.float32)
    for s in (0, 1):
        rows = s == SEQUENCES
        out[rows] = scan(op, state[s], *(x[rows] for x in inputs))
    return out


@pytest.mark.parametrize("bias", [0, 1])
def test_causal_conv(bias):
    rng, channels, taps = np.random.default_rng(0), 5, 4
    x = rng.standard_normal((ROWS, channels)).astype(np.float32)
    weight, b = rng.standard_normal((channels, taps)).astype(np.float32), np.arange(5, dtype=np.float32)
    buffer = ops.Buffer("x", channels)
    op = ops.CausalConv(buffer, buffer, weight, b if bias else None, 0, bool(bias))
    state = rng.standard_normal((2, taps - 1, channels)).astype(np.float32)
    held, out = state.copy(), x.copy()
    arguments = ConvArguments(
        x=matrix(out),
        out=matrix(out),
        weight=weight,
        bias=b,
        state=sequence_states(held),
        rows=ROWS,
        channels=channels,
    )
    constants = {"TAPS": taps, "BIAS": bias, "SILU": bias, "PDL": 0}
    run(causal_conv, constants, (1,), 128, arguments)
    np.testing.assert_allclose(out, feed(expected_conv, op, state, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(held, state)


def test_state_scan():
    rng, groups, heads, dim, size = np.random.default_rng(1), 2, 4, 6, 40
    xbc = rng.standard_normal((ROWS, heads * dim + 2 * groups * size)).astype(np.float32)
    step = rng.standard_normal((ROWS, heads)).astype(np.float32) * 4
    a, skip, bias = -rng.uniform(0.1, 2, heads), rng.standard_normal(heads), rng.standard_normal(heads) - 3
    a, skip, bias = (v.astype(np.float32) for v in (a, skip, bias))
    out_buffer = ops.Buffer("out", heads * dim)
    op = ops.StateScan(
        *(ops.Buffer("x", 1), ops.Buffer("s", 1), out_buffer, a, skip, bias, groups, heads, size, 0, 1.5)
    )
    state = rng.standard_normal((2, heads, dim, size)).astype(np.float32)
    held, out = state.copy(), np.full((ROWS, heads * dim), np.nan, np.float32)
    arguments = ScanArguments(
        xbc=matrix(xbc),
        step=matrix(step),
        out=matrix(out),
        a=a,
        skip=skip,
        step_bias=bias,
        step_scale=1.5,
        groups=groups,
        heads=heads,
        head_dim=dim,
        state_size=size,
        state=sequence_states(held),
        rows=ROWS,
    )
    run(state_scan, {"WARPS": 1, "R": 4, "PARTS": 2, "PDL": 0}, (2, heads), 32, arguments)
    np.testing.assert_allclose(out, feed(expected_scan, op, state, xbc, step), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(held, state, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("tiled", [0, 1])
def test_delta_rule(tiled):
    rng, groups, heads, dim, keys = np.random.default_rng(2), 2, 4, 6, 40
    qkv = rng.standard_normal((ROWS, 2 * groups * keys + heads * dim)).astype(np.float32)
    beta, step = rng.standard_normal((2, ROWS, heads)).astype(np.float32)
    a, bias = -rng.uniform(0.1, 2, heads).astype(np.float32), rng.standard_normal(heads).astype(np.float32)
    buffers = [ops.Buffer(name, 1) for name in ("qkv", "beta", "step")]
    op = ops.DeltaRule(*buffers, ops.Buffer("out", heads * dim), a, bias, groups, heads, keys, 0, bool(tiled))
    state = rng.standard_normal((2, heads, keys, dim)).astype(np.float32)
    held, out = state.copy(), np.full((ROWS, heads * dim), np.nan, np.float32)
    arguments = DeltaArguments(
        qkv=matrix(qkv),
        beta=matrix(beta),
        step=matrix(step),
        out=matrix(out),
        a=a,
        step_bias=bias,
        eps=op.eps,
        groups=groups,
        heads=heads,
        head_dim=dim,
        key_dim=keys,
        inverse_root=keys**-0.5,
        state=sequence_states(held),
        rows=ROWS,
    )
    constants = {"WARPS": 1, "R": 4, "PARTS": 2, "TILED": tiled, "PDL": 0}
    run(delta_rule, constants, (2, heads), 32, arguments)
    np.testing.assert_allclose(out, feed(expected_delta, op, state, qkv, beta, step), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(held, state, rtol=1e-4, atol=1e-5)


def test_streams():
    rng, n, width = np.random.default_rng(3), 3, 300
    streams = rng.standard_normal((2, n, width)).astype(np.float32)
    predict, correct = rng.standard_normal((2, n * n)), rng.standard_normal((2, n))
    predict, correct = predict.astype(np.float32), correct.astype(np.float32)
    weight, x = rng.standard_normal(width).astype(np.float32), np.full((2, width), np.nan, np.float32)
    names = tuple(ops.Buffer(f"s{i}", width) for i in range(n))
    a, b, c = ops.Buffer("x", width), ops.Buffer("p", n * n), ops.Buffer("c", n)
    buffers = {f"s{i}": streams[:, i].copy() for i in range(n)} | {"p": predict, "c": correct}
    constants = {"N": n, "ACTIVE": 1, "PDL": 0}
    where = [streams, streams[0].nbytes, 4 * width]
    run(predict_streams, constants, (2, 2), 256, [*where, predict, 4 * n * n, x, 4 * width, width])
    expected.altup_predict(ops.AltUpPredict(names, b, 1, a), buffers)
    np.testing.assert_allclose(x, buffers["x"], rtol=1e-5, atol=1e-5)
    x += 1
    buffers["x"] = x.copy()
    run(correct_streams, constants, (2, 2), 256, [*where, correct, 4 * n, x, 4 * width, weight, width])
    expected.altup_correct(ops.AltUpCorrect(names, c, 1, a, weight), buffers)
    np.testing.assert_allclose(x, buffers["x"], rtol=1e-5, atol=1e-5)
    for i in range(n):
        np.testing.assert_allclose(streams[:, i], buffers[f"s{i}"], rtol=1e-5, atol=1e-5)
    run(sparsify, {"PDL": 0}, (1, 2), 256, [x, 4 * width, width, 1 / width, 0.5], 64)
    expected_activations.gaussian_top_k(ops.GaussianTopK(a, 0.5), buffers)
    np.testing.assert_allclose(x, buffers["x"], rtol=1e-4, atol=1e-4)
    x[1] = 0
    buffers |= {"x": x.copy(), "like": weight[None].repeat(2, 0)}
    run(match_magnitude, {"PDL": 0}, (1, 2), 256, [x, 4 * width, weight, 0, width, 1 / width, 0.01], 64)
    expected.match_magnitude(ops.MatchMagnitude(a, ops.Buffer("like", width), 0.01), buffers)
    np.testing.assert_allclose(x, buffers["x"], rtol=1e-4, atol=1e-4)
