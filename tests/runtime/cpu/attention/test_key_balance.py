"""What keys of a quantised cache are multiplied by, against queries and keys of the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kukri.runtime import ops
from kukri.runtime.cpu import key_balance as module
from kukri.runtime.cpu.key_balance import key_balance
from kukri.runtime.cpu.key_offsets import key_offsets
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import Batch
from kukri.runtime.reference import attention, dense, norm
from kukri.runtime.reference.machine import ReferenceMachine

from ..programs import program, run
from .test_key_offsets import biased

RNG = np.random.default_rng(5)
SIZES = np.exp(RNG.uniform(-2, 4, 64)).astype(np.float32)  # of what the keys of two heads have


def with_norms(whole: ops.Program, weight: np.ndarray, groups: int) -> ops.Program:
    """The program with norms of keys behind RoPE or, if they are of the whole row, in front of it."""
    flow: list[ops.Op] = []
    for op in whole.ops:
        of_keys = isinstance(op, ops.RoPE) and op.x.name == "k"
        if of_keys and groups == 1:
            flow += [ops.RMSNorm(op.x, op.x, weight, 1e-6, groups), op]
        elif of_keys:
            flow += [op, ops.RMSNorm(op.x, op.x, weight, 1e-6, groups)]
        else:
            flow.append(op)
    return replace(whole, ops=tuple(flow))


def measured(whole: ops.Program, offsets: dict[int, np.ndarray]) -> np.ndarray:
    """√(query / key) of root mean squares in the first layer, [kv_heads, head_dim]; its mean is 1."""
    at, attend = next((i, op) for i, op in enumerate(whole.ops) if isinstance(op, ops.Attend))
    n = module.POSITIONS * 40
    rows = np.arange(n, dtype=np.int32)
    batch = Batch(0 * rows, 0 * rows, rows % module.POSITIONS, rows)
    buffers = {"x": RNG.normal(size=(n, 64)).astype(np.float32)}
    for op in whole.ops[1:at]:
        if isinstance(op, ops.RoPE):
            attention.rope(op, buffers, batch)
        elif isinstance(op, ops.RMSNorm):
            norm.rms_norm(op, buffers)
        elif isinstance(op, ops.MatMul):
            dense.matmul(op, buffers, lambda weight: [(0, weight.dequantize())])
    keys = buffers["k"].reshape(n, attend.kv_heads, -1) - offsets.get(0, 0)
    queries = buffers["q"].reshape(n, attend.kv_heads, -1, attend.head_dim)
    ratio = (np.mean(queries**2, (0, 2)) / np.mean(keys**2, 0)) ** 0.25
    return ratio / ratio.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("keys", ["bias", "bias, interleaved", "norms", "norms of rows"])
def test_factors_are_those_of_queries_and_keys(monkeypatch, keys):
    """Within a third, where the largest is many times the smallest: rows of weights differ, too."""
    for name in ("key_balance", "key_offsets"):
        monkeypatch.setattr(f"kukri.runtime.cpu.{name}.POSITIONS", 50)
    whole = program(1, interleaved="interleaved" in keys)
    if "bias" in keys:
        whole = biased(whole, SIZES * RNG.choice([-1, 1], 64).astype(np.float32))
    else:
        whole = with_norms(whole, *((SIZES[:32], 2) if keys == "norms" else (SIZES, 1)))
    offsets = key_offsets(whole)
    assert len(offsets) == (2 if "bias" in keys else 0)
    factors = key_balance(whole, offsets)
    assert factors.keys() == {0, 1}
    want = measured(whole, offsets)
    assert want.max() > 3 * want.min()
    np.testing.assert_allclose(factors[0], want, rtol=0.3)
    assert np.abs(np.log(factors[0] / want)).mean() < 0.1


def test_none_where_nothing_is_known():
    """Queries and keys without biases and norms, keys that are also values, and what other ops make."""
    whole = program(1)
    assert key_balance(whole, {}).keys() == {0, 1}  # queries have norms and biases
    flow: list[ops.Op] = []
    for op in whole.ops:
        if isinstance(op, ops.MatMul) and op.out.name == "q":
            op = replace(op, bias=None)
        if not (isinstance(op, ops.RMSNorm) and op.x.name == "q"):
            flow.append(op)
    assert key_balance(replace(whole, ops=tuple(flow)), {}) == {}
    latent = [replace(op, v=op.k) if isinstance(op, ops.Attend) else op for op in whole.ops]
    assert key_balance(replace(whole, ops=tuple(latent)), {}) == {}
    added = []
    for op in whole.ops:
        added += [ops.Add(op.k, op.k), op] if isinstance(op, ops.Attend) else [op]
    assert key_balance(replace(whole, ops=tuple(added)), {}) == {}


@pytest.mark.parametrize("of", ["q", "k"])
def test_heads_of_zeros_have_finite_factors(of):
    """A norm whose weights are all 0, and what comes behind it: every key has the same score, and no NaN."""
    whole = with_norms(program(1), SIZES, groups=1)
    zeros = [
        replace(op, weight=0 * op.weight) if isinstance(op, ops.RMSNorm) and op.x.name == of else op
        for op in whole.ops
    ]
    flow: list[ops.Op] = []
    for op in zeros:
        twice = of == "k" and isinstance(op, ops.RMSNorm) and op.x.name == "k"
        flow += [op, replace(op, weight=SIZES)] if twice else [op]
    factors = key_balance(replace(whole, ops=tuple(flow)), {})
    assert factors.keys() == {0, 1}
    assert all(np.isfinite(each).all() and each.all() for each in factors.values())


def test_keys_whose_bias_stays(monkeypatch):
    """A bias that sinks keep in the keys costs less where factors divide it."""
    bias = RNG.normal(size=64).astype(np.float32)
    bias.reshape(2, 32)[:, [4, 13, 20, 31]] += [80, 90, 100, -60]
    whole = biased(program(2), bias, sinks=np.zeros(6, np.float32))
    steps = [[(0, 40)], [(0, 30)], [(0, 1)], [(0, 1)]]
    expected = run(ReferenceMachine(whole, 40, max_sequences=4), steps, 5, 64)

    def error() -> float:
        machine = CpuMachine(whole, 40, threads=2, kv_type="q8_0", max_sequences=4)
        got = run(machine, steps, 5, 64)
        layouts.append(machine.page_layout)
        machine.close()
        return float(np.mean([np.abs(a - b).mean() for a, b in zip(got, expected, strict=True)]))

    layouts: list[str] = []
    balanced = error()
    monkeypatch.setattr("kukri.runtime.cpu.machine.key_balance", lambda program, offsets: {})
    assert balanced < error() / 1.5
    assert layouts[0] != layouts[1]
