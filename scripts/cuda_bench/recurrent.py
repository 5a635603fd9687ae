"""Recurrent ops over a prompt's rows, in the shape of published models: see `bench_cuda.py recurrent`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kukri.runtime import ops
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.launch import Launch
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.reference.machine import ReferenceMachine

# kind, groups, heads, head_dim, and the other side of a head's state
LAYERS = {
    "qwen3-next-80b-a3b": ("delta", 16, 32, 128, 128),
    "granite-4.0-h-small": ("scan", 1, 128, 64, 128),
    "nemotron-h-8b": ("scan", 8, 128, 64, 128),
}
Seconds = Callable[[Device, list[Launch]], float]


def recurrent_program(kind: str, groups: int, heads: int, head_dim: int, size: int) -> ops.Program:
    """A convolution and a scan, with random parameters, over rows that are given."""
    rng = np.random.default_rng(0)
    inner, taps = heads * head_dim, 4
    mix = ops.Buffer("mix", inner + 2 * groups * size)
    step, beta, y = ops.Buffer("step", heads), ops.Buffer("beta", heads), ops.Buffer("y", inner)
    logits = ops.Buffer("logits", inner, logits_rows=True)
    a = -rng.uniform(0.05, 2, heads).astype(np.float32)
    bias, skip = rng.standard_normal((2, heads)).astype(np.float32)
    weight = rng.standard_normal((mix.width, taps)).astype(np.float32)
    conv = ops.CausalConv(mix, mix, weight, None, 0, silu=True)
    scan: ops.DeltaRule | ops.StateScan
    given: tuple[ops.Buffer, ...]
    if kind == "delta":
        scan = ops.DeltaRule(mix, beta, step, y, a, bias, groups, heads, size, 1)
        given, shape = (mix, step, beta), (heads, size, head_dim)
    else:
        scan = ops.StateScan(mix, step, y, a, skip, bias, groups, heads, size, 1)
        given, shape = (mix, step), (heads, head_dim, size)
    states = ops.StateLayer((taps - 1, mix.width)), ops.StateLayer(shape)
    steps = conv, scan, ops.SelectRows(y, logits)
    return ops.Program(steps, (mix, step, beta, y, logits), (), logits, states, boundary_in=given)


def run(machine: CudaMachine | ReferenceMachine, chunks: tuple[int, ...]) -> np.ndarray:
    """What comes out of one prompt in steps of so many random rows, [rows, heads · head_dim]."""
    rng, n = np.random.default_rng(1), sum(chunks)
    given = [rng.standard_normal((n, b.width)).astype(np.float32) for b in machine.program.boundary_in]
    table, found, at = PageTable(-(-n // machine.page_size)), [], 0
    for rows in chunks:
        table.extend(0, rows)
        order = np.arange(rows, dtype=np.int32)
        machine.write_boundary([values[at : at + rows] for values in given])
        # Last row first: rows that are wanted in order would not be copied to where the machine finds them.
        batch = Batch(order, np.zeros(rows, np.int32), order + at, order[::-1])
        found.append(machine.step(batch, table)[::-1].copy())
        at += rows
    return np.concatenate(found)


def recurrent(seconds: Seconds, rows: int = 512) -> None:
    """One layer's ops over a prompt's rows: how right, and each launch's time; then the same row by row, as
    rows of several sequences go.
    """
    for name, (kind, *sizes) in LAYERS.items():
        program = recurrent_program(kind, *sizes)
        machine = CudaMachine(program, 2, max_rows=max(rows, 67))
        chunks = 67, 61
        expected = run(ReferenceMachine(program, 2), chunks)
        got, again = run(machine, chunks), run(machine, chunks)
        single = run(machine, (16,) * (sum(chunks) // 16))
        peak = np.abs(expected).max()
        off, off_single = (np.abs(found - expected).max() for found in (got, single))
        repeated = "the same twice" if (got == again).all() else "NOT REPEATABLE"
        print(f"{name}: off by {off:.1e}, row by row by {off_single:.1e}, of {peak:.1f}; {repeated}")
        for prompt in (False, True):
            launches = machine.plan(rows, 0, False, prompt)
            parts = [f"{one.name} {seconds(machine.device, [one]) * 1e6:.1f}" for one in launches]
            total = seconds(machine.device, launches) * 1e6
            how = "one prompt" if prompt else "row by row"
            print(f"  {rows} rows, {how}: {total:.1f} us; {', '.join(parts)}")
        machine.close()
