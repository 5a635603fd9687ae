"""HeadMatMul on the CPU machine against the reference machine, with float and quantised weights."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime import ops
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.reference.machine import ReferenceMachine

from .programs import matrix

VOCAB, HEADS, INPUTS, REST, OUTPUTS = 30, 3, 32, 4, 20


def program(kind: str) -> ops.Program:
    """Embedding, HeadMatMul, logits; each head has REST columns that are not multiplied."""
    rng = np.random.default_rng(5)
    x = ops.Buffer("x", HEADS * (INPUTS + REST), logits_rows=False)
    y = ops.Buffer("y", HEADS * (OUTPUTS + REST))
    last = ops.Buffer("last", y.width, logits_rows=True)
    logits = ops.Buffer("logits", VOCAB, logits_rows=True)
    flow = (
        ops.Embed(x, matrix(rng, VOCAB, x.width, "F32")),
        ops.HeadMatMul(x, y, tuple(matrix(rng, OUTPUTS, INPUTS, kind) for _ in range(HEADS))),
        ops.SelectRows(y, last),
        ops.MatMul(last, logits, matrix(rng, VOCAB, y.width, "F32")),
    )
    return ops.Program(flow, (x, y, last, logits), (), logits)


@pytest.mark.parametrize(
    "kind", ["F32", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("Q8_0", "Q4_0"))]
)
@pytest.mark.parametrize("n", [1, 9])
def test_products_of_heads(kind, n):
    """Quantised weights are rounded to F16, which is far finer than their own codes."""
    whole, rows = program(kind), np.arange(n, dtype=np.int32)
    batch = Batch(rows + 3, 0 * rows, rows, rows)
    results = []
    for machine in (ReferenceMachine(whole, 1), CpuMachine(whole, 1, threads=2)):
        table = PageTable(1)
        table.extend(0, n)
        results.append(machine.step(batch, table).copy())
        machine.close()
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-3 * np.abs(results[0]).max())
