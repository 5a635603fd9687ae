"""Recurrent ops over the many rows of one prompt against the reference machine's, fed in two steps."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from kukri.runtime import ops
from kukri.runtime.cuda.abi.arguments import Region
from kukri.runtime.cuda.kernels.recurrent.conv import (
    SPLIT,
    ConvEdgesArguments,
    ConvPrefillArguments,
    conv_prefill,
    conv_prefill_edges,
)
from kukri.runtime.cuda.kernels.recurrent.delta_prefill import SIZE as DELTA_SIZE
from kukri.runtime.cuda.kernels.recurrent.delta_prefill import (
    DeltaChunksArguments,
    DeltaPrefillArguments,
    delta_chunks,
    delta_prefill,
)
from kukri.runtime.cuda.kernels.recurrent.scan_prefill import SIZE as SCAN_SIZE
from kukri.runtime.cuda.kernels.recurrent.scan_prefill import (
    ScanChunksArguments,
    ScanPrefillArguments,
    scan_chunks,
    scan_prefill,
)
from kukri.runtime.cuda.kernels.recurrent.state import SequenceStates
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.reference.recurrent import causal_conv as expected_conv
from kukri.runtime.reference.recurrent import delta_rule as expected_delta
from kukri.runtime.reference.recurrent import state_scan as expected_scan
from kukri.tests.script_modules import load_script

from ..simulator import run
from ..stand_in import StandInDevice, StandInKernels

SEQUENCE = np.array([1], np.int32)  # of three, so that the others' states must stay as they are
STEPS = [(1,), (2, 1), (3,), (4,), (5, 4), (15,), (16, 1), (17, 3)]
LONG_STEPS = [(63, 2), (64,), (65,)]


def matrix(array):
    """An array of rows as kernels take it."""
    return Region(array, array.strides[0])


def sequence_states(held, position):
    """The state of SEQUENCE, of which `position` rows were before."""
    return SequenceStates(states=matrix(held), sequences=SEQUENCE, positions=np.array([position], np.int32))


def states(rng, first, *shape):
    """States, and what the reference begins with: zeros, whatever is there, at position 0."""
    held = rng.standard_normal((3, *shape)).astype(np.float32)
    expected = held.copy()
    if first == 0:
        expected[1] = 0
    return held, expected


def cut(steps):
    """Where each step of a prompt begins and ends."""
    ends = np.cumsum(steps)
    return [(int(e - n), int(e)) for e, n in zip(ends, steps, strict=True)]


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("steps", [*STEPS, *LONG_STEPS, (31, 33), (2 * SPLIT + 2,)])
def test_causal_conv(steps, first):
    rng, channels, taps, n = np.random.default_rng(0), 5, 4, sum(steps)
    bias = int(first > 0)
    x = rng.standard_normal((n, channels)).astype(np.float32)
    weight, b = rng.standard_normal((channels, taps)).astype(np.float32), np.arange(5, dtype=np.float32)
    buffer = ops.Buffer("x", channels)
    op = ops.CausalConv(buffer, buffer, weight, b if bias else None, 0, bool(bias))
    held, state = states(rng, first, taps - 1, channels)
    out = x.copy()
    for start, end in cut(steps):
        splits = -(-(end - start) // SPLIT)
        edges = np.full((splits, taps - 1, channels), np.nan, np.float32)
        constants = {"TAPS": taps, "PDL": 0}
        arguments = ConvEdgesArguments(
            x=matrix(out[start:]),
            edges=matrix(edges),
            state=sequence_states(held, first + start),
            rows=end - start,
            channels=channels,
        )
        run(conv_prefill_edges, constants, (1, splits), 128, arguments)
        constants |= {"BIAS": bias, "SILU": bias}
        arguments = ConvPrefillArguments(
            x=matrix(out[start:]),
            out=matrix(out[start:]),
            weight=weight,
            bias=b,
            edges=matrix(edges),
            rows=end - start,
            channels=channels,
        )
        run(conv_prefill, constants, (1, splits), 128, arguments)
    np.testing.assert_allclose(out, expected_conv(op, state[1], x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(held, state)


def scan_inputs(rng, n, width, heads):
    x = rng.standard_normal((n, width)).astype(np.float32)
    step = rng.standard_normal((n, heads)).astype(np.float32) * 4
    a = -rng.uniform(0.1, 2, heads).astype(np.float32)
    a[0] = -300  # nothing is left of the state from row to row
    return x, step, a, rng.standard_normal(heads).astype(np.float32)


def check_delta(steps, first, tiled, groups, heads, dim, keys):
    rng, n = np.random.default_rng(2), sum(steps)
    qkv, step, a, bias = scan_inputs(rng, n, 2 * groups * keys + heads * dim, heads)
    qkv[0, :keys] = 0
    beta = rng.standard_normal((n, heads)).astype(np.float32)
    buffers = [ops.Buffer(name, 1) for name in ("qkv", "beta", "step")]
    op = ops.DeltaRule(*buffers, ops.Buffer("out", heads * dim), a, bias, groups, heads, keys, 0, bool(tiled))
    held, state = states(rng, first, heads, keys, dim)
    out = np.full((n + 1, heads * dim), np.nan, np.float32)
    for start, end in cut(steps):
        rows = end - start
        coefficients = np.full((-(-rows // 4), heads, DELTA_SIZE), np.nan, np.float32)
        part = matrix(qkv[start:end].copy())  # no rows lie behind it
        arguments = DeltaChunksArguments(
            qkv=part,
            beta=matrix(beta[start:]),
            step=matrix(step[start:]),
            a=a,
            step_bias=bias,
            eps=op.eps,
            groups=groups,
            heads=heads,
            key_dim=keys,
            inverse_root=keys**-0.5,
            coefficients=coefficients,
            rows=rows,
        )
        constants = {"WARPS": 1, "PARTS": -(-keys // 32), "TILED": tiled, "PDL": 0}
        run(delta_chunks, constants, (groups, -(-rows // 4)), 32, arguments)
        arguments = DeltaPrefillArguments(
            qkv=part,
            coefficients=coefficients,
            out=matrix(out[start:]),
            groups=groups,
            heads=heads,
            head_dim=dim,
            key_dim=keys,
            state=sequence_states(held, first + start),
            rows=rows,
        )
        constants |= {"PARTS": -(-keys // 64), "FULL": int(keys % 64 == 0)}
        run(delta_prefill, constants, (-(-dim // 8), heads), 32, arguments)
    np.testing.assert_allclose(out[:n], expected_delta(op, state[1], qkv, beta, step), rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(held, state, rtol=1e-4, atol=2e-5)
    assert np.isnan(out[n]).all()


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("steps", STEPS)
def test_delta_rule(steps, first):
    check_delta(steps, first, int(first > 0), groups=2, heads=4, dim=6, keys=40)


@pytest.mark.slow
@pytest.mark.parametrize("steps", LONG_STEPS)
def test_delta_rule_long(steps):
    check_delta(steps, 0, 0, groups=1, heads=2, dim=4, keys=8)


@pytest.mark.slow
def test_delta_rule_full():
    check_delta((6, 3), 3, 0, groups=1, heads=1, dim=11, keys=128)


def check_scan(steps, first, groups, heads, dim, size):
    rng, n = np.random.default_rng(1), sum(steps)
    xbc, step, a, bias = scan_inputs(rng, n, heads * dim + 2 * groups * size, heads)
    skip = rng.standard_normal(heads).astype(np.float32)
    buffers = [ops.Buffer("xbc", 1), ops.Buffer("step", 1), ops.Buffer("out", heads * dim)]
    op = ops.StateScan(*buffers, a, skip, bias, groups, heads, size, 0, 1.5)
    held, state = states(rng, first, heads, dim, size)
    out = np.full((n + 1, heads * dim), np.nan, np.float32)
    for start, end in cut(steps):
        rows = end - start
        coefficients = np.full((-(-rows // 4), heads, SCAN_SIZE), np.nan, np.float32)
        part = matrix(xbc[start:end].copy())
        arguments = ScanChunksArguments(
            xbc=part,
            step=matrix(step[start:]),
            a=a,
            skip=skip,
            step_bias=bias,
            step_scale=1.5,
            groups=groups,
            heads=heads,
            head_dim=dim,
            state_size=size,
            coefficients=coefficients,
            rows=rows,
        )
        constants = {"WARPS": 1, "PARTS": -(-size // 32), "PDL": 0}
        run(scan_chunks, constants, (groups, -(-rows // 4)), 32, arguments)
        arguments = ScanPrefillArguments(
            xbc=part,
            coefficients=coefficients,
            out=matrix(out[start:]),
            groups=groups,
            heads=heads,
            head_dim=dim,
            state_size=size,
            state=sequence_states(held, first + start),
            rows=rows,
        )
        constants |= {"PARTS": -(-size // 64), "FULL": int(size % 64 == 0)}
        run(scan_prefill, constants, (-(-dim // 8), heads), 32, arguments)
    np.testing.assert_allclose(out[:n], expected_scan(op, state[1], xbc, step), rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(held, state, rtol=1e-4, atol=2e-5)
    assert np.isnan(out[n]).all()


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("steps", STEPS)
def test_state_scan(steps, first):
    check_scan(steps, first, groups=2, heads=4, dim=6, size=40)


@pytest.mark.parametrize("steps", LONG_STEPS)
def test_state_scan_long(steps):
    check_scan(steps, 0, groups=1, heads=2, dim=4, size=8)


def test_state_scan_full():
    check_scan((6, 3), 3, groups=1, heads=1, dim=11, size=128)


@cache
def script():
    return load_script("cuda_bench/recurrent.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sizes", "together"),
    [
        ("delta", (2, 4, 8, 12), True),
        ("delta", (1, 2, 4, 10), False),  # 4 does not divide a key
        ("scan", (1, 3, 8, 12), True),
        ("scan", (1, 3, 5, 8), False),  # rows of B are not where 16 bytes can be read
        ("scan", (1, 1, 4, 132), False),  # more than fits in registers
    ],
)
def test_machine(kind, sizes, together):
    """Steps of many rows, of few, and of many again; twice, the same."""
    program, steps = script().recurrent_program(kind, *sizes), (19, 3, 18)
    device = StandInDevice()
    machine = CudaMachine(program, 1, max_rows=32, device=device, kernels=StandInKernels(device))
    expected = script().run(ReferenceMachine(program, 1), steps)
    got = script().run(machine, steps)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_array_equal(script().run(machine, steps), got)
    assert (f"{kind}_prefill" in device.launched) == together
    assert "conv_prefill" in device.launched
    assert "causal_conv" in device.launched
