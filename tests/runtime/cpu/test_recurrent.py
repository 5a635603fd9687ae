"""Recurrent ops on the CPU machine against the reference machine: sizes that fit no vector, rows of several
sequences, threads, and states handed from one step to the next."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.runtime import ops
from kukri.runtime.config.recurrent import RecurrentConfig
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.reference.machine import ReferenceMachine

VOCAB, HIDDEN = 50, 32
KINDS = {
    "conv": RecurrentConfig("short_conv", taps=3, heads=1, head_dim=HIDDEN),
    "conv of one tap": RecurrentConfig("short_conv", taps=1, heads=1, head_dim=37),
    "delta": RecurrentConfig("gated_delta", taps=4, heads=6, head_dim=20, groups=3, state_size=12),
    "delta, tiled": RecurrentConfig(
        "gated_delta", taps=2, heads=6, head_dim=5, groups=2, state_size=7, tiled=True
    ),
    "delta of one head": RecurrentConfig(
        "gated_delta", taps=4, heads=1, head_dim=64, groups=1, state_size=32
    ),
    "scan": RecurrentConfig("mamba2", taps=4, heads=6, head_dim=10, groups=3, state_size=12),
    "scan of one group": RecurrentConfig("mamba2", taps=5, heads=5, head_dim=16, groups=1, state_size=33),
}


def program(r: RecurrentConfig, layers: int = 2) -> ops.Program:
    """Layers of a recurrence whose inputs are products of the stream."""
    rng = np.random.default_rng(5)

    def matrix(rows: int, width: int) -> QTensor:
        values = (rng.normal(size=(rows, width)) / np.sqrt(width)).astype(np.float32)
        return QTensor("w", FORMATS["F32"], values.shape, values.view(np.uint8))

    def vector(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    widths = {"x": HIDDEN, "mix": r.channels, "beta": r.heads, "step": r.heads, "y": r.inner}
    b = {name: ops.Buffer(name, width) for name, width in widths.items()}
    last, logits = (
        ops.Buffer("last x", HIDDEN, logits_rows=True),
        ops.Buffer("logits", VOCAB, logits_rows=True),
    )
    flow: list[ops.Op] = [ops.Embed(b["x"], matrix(VOCAB, HIDDEN), 4.0)]
    states = list[ops.StateLayer]()
    for _ in range(layers):
        at, sizes = len(states) + 1, (r.groups, r.heads, r.state_size)
        flow += [
            ops.MatMul(b["x"], b[name], matrix(widths[name], HIDDEN)) for name in ("mix", "beta", "step")
        ]
        bias, silu = (None, False) if r.kind == "short_conv" else (vector(r.channels), True)
        out = b["y"] if r.kind == "short_conv" else b["mix"]
        flow.append(ops.CausalConv(b["mix"], out, vector(r.channels, r.taps), bias, at - 1, silu))
        rates = -np.exp(vector(r.heads)), vector(r.heads), vector(r.heads)
        if r.kind == "gated_delta":
            read = b["mix"], b["beta"], b["step"], b["y"]
            flow.append(ops.DeltaRule(*read, *rates[:2], *sizes, at, r.tiled))
        elif r.kind == "mamba2":
            flow.append(ops.StateScan(b["mix"], b["step"], b["y"], *rates, *sizes, at, 0.7))
        states += r.states
        flow.append(ops.MatMul(b["y"], b["x"], matrix(HIDDEN, r.inner), accumulate=True))
        flow.append(ops.RMSNorm(b["x"], b["x"], vector(HIDDEN), 1e-5))
    flow += [ops.SelectRows(b["x"], last), ops.MatMul(last, logits, matrix(VOCAB, HIDDEN))]
    return ops.Program(tuple(flow), (*b.values(), last, logits), (), logits, tuple(states))


def steps() -> list[list[tuple[int, int, int]]]:
    """(sequence, first position, rows) of steps: a prompt, one row, two sequences, one that starts again."""
    return [
        [(0, 0, 9)],
        [(0, 9, 1)],
        [(0, 10, 1), (2, 0, 5)],
        [(2, 5, 3)],
        [(0, 11, 4), (1, 0, 1)],
        [(2, 0, 2)],
    ]


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", KINDS)
def test_equals_the_reference(name, threads):
    whole, table = program(KINDS[name]), PageTable(6, 3)
    reference = ReferenceMachine(whole, 6, max_sequences=3)
    machine = CpuMachine(whole, 6, threads=threads, max_sequences=3)
    rng = np.random.default_rng(2)
    for parts in steps():
        for sequence, first, rows in parts:
            table.truncate(sequence, first)
            table.extend(sequence, rows)
        n = sum(rows for _, _, rows in parts)
        batch = Batch(
            tokens=rng.integers(0, VOCAB, n).astype(np.int32),
            sequences=np.concatenate([np.full(rows, sequence, np.int32) for sequence, _, rows in parts]),
            positions=np.concatenate([np.arange(f, f + rows, dtype=np.int32) for _, f, rows in parts]),
            logits_indices=np.arange(n, dtype=np.int32),
        )
        got, expected = machine.step(batch, table), reference.step(batch, table)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-4)
        for mine, theirs in zip(machine.states.arrays, reference.states.arrays, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-4)
        assert machine.states.lengths.tolist() == reference.states.lengths.tolist()
    machine.close()
