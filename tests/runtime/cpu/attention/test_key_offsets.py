"""What a quantised cache leaves out of keys, against the reference machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kukri.runtime import ops
from kukri.runtime.cpu import key_offsets as module
from kukri.runtime.cpu.abi.sizes import CACHE_TYPES, rotated
from kukri.runtime.cpu.key_balance import key_balance
from kukri.runtime.cpu.key_offsets import biased_layers, key_offsets
from kukri.runtime.cpu.machine import CpuMachine, cache_type
from kukri.runtime.engine.cache import Batch
from kukri.runtime.reference import attention
from kukri.runtime.reference.machine import ReferenceMachine

from ..programs import batches_of_sequences, program, run


def biased(whole: ops.Program, bias: np.ndarray, **changes) -> ops.Program:
    """The program with a bias for the keys of every layer, and other attention ops."""

    def changed(op: ops.Op) -> ops.Op:
        if isinstance(op, ops.MatMul) and op.out.name == "k":
            return replace(op, bias=bias)
        return replace(op, **changes) if isinstance(op, ops.Attend) else op

    return replace(whole, ops=tuple(changed(op) for op in whole.ops))


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_mean_of_the_bias_behind_rope(monkeypatch, interleaved):
    monkeypatch.setattr(module, "POSITIONS", 100)
    bias = np.random.default_rng(1).normal(size=64).astype(np.float32)
    whole = biased(program(1, interleaved=interleaved), bias)
    rope = next(op for op in whole.ops if isinstance(op, ops.RoPE) and op.x.name == "k")
    keys = {"k": np.repeat(bias[None], 100, axis=0)}
    zeros = np.zeros(100, np.int32)
    attention.rope(rope, keys, Batch(zeros, zeros, np.arange(100, dtype=np.int32), zeros))
    offsets = key_offsets(whole)
    assert biased_layers(whole) == offsets.keys() == {0, 1}
    for offset in offsets.values():
        np.testing.assert_allclose(offset, keys["k"].mean(axis=0).reshape(2, 32), atol=1e-5)


def test_biases_of_adapters_count():
    """A product beside that of the keys, with a bias of its own (`lora_bias`): as if there were one."""
    one, other = np.random.default_rng(4).normal(size=(2, 64)).astype(np.float32) * 5
    flow: list[ops.Op] = []
    for op in biased(program(1), one).ops:
        keys = isinstance(op, ops.MatMul) and op.out.name == "k"
        flow += [op, replace(op, bias=other, accumulate=True)] if keys else [op]
    apart, together = replace(program(1), ops=tuple(flow)), biased(program(1), one + other)
    offsets, wanted = key_offsets(apart), key_offsets(together)
    factors, balance = key_balance(apart, offsets), key_balance(together, wanted)
    assert offsets.keys() == factors.keys() == {0, 1}
    for layer in offsets:
        np.testing.assert_allclose(offsets[layer], wanted[layer], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(factors[layer], balance[layer], rtol=0.1)


def test_none_where_scores_must_not_shift():
    bias = np.ones(64, np.float32)
    plain = program(1)
    assert key_offsets(plain) == {}
    assert biased_layers(plain) == set()
    for changes in ({"softcap": 2.0}, {"sinks": np.zeros(6, np.float32)}):
        whole = biased(plain, bias, **changes)
        assert key_offsets(whole) == {}
        assert biased_layers(whole) == {0, 1}
        assert cache_type(biased(program(1, "Q8_0"), bias, **changes), "auto") == "F16"
    assert cache_type(biased(program(1, "Q8_0"), bias), "auto") == "Q8_0"


def test_none_where_a_norm_comes_between():
    whole = biased(program(1), np.ones(64, np.float32))
    flow = []
    for op in whole.ops:
        if isinstance(op, ops.Attend):
            flow.append(ops.RMSNorm(op.k, op.k, np.ones(32, np.float32), 1e-6, groups=2))
        flow.append(op)
    assert key_offsets(replace(whole, ops=tuple(flow))) == {}


@pytest.mark.parametrize("kv_heads", [2, 6])
def test_keys_with_a_large_bias_in_8_bits(monkeypatch, kv_heads):
    """In dimensions that RoPE leaves where they are, a bias of a hundred costs next to nothing."""
    bias = np.random.default_rng(2).normal(size=32 * kv_heads).astype(np.float32)
    bias.reshape(kv_heads, 32)[:, [20, 31]] += [100, -60]
    whole = biased(program(2, kv_heads=kv_heads), bias)
    steps = batches_of_sequences(np.random.default_rng(3), [150, 40])
    steps += [[(0, 1)], [(1, 1)], [(0, 1), (1, 1)]]
    expected = run(ReferenceMachine(whole, 40, max_sequences=4), steps, 5, 64)

    def error() -> float:
        machine = CpuMachine(whole, 40, threads=2, kv_type="q8_0", max_sequences=4)
        got = run(machine, steps, 5, 64)
        machine.close()
        return max(float(np.abs(a - b).max()) for a, b in zip(got, expected, strict=True))

    monkeypatch.setattr("kukri.runtime.cpu.machine.key_balance", lambda program, offsets: {})
    centred = error()
    monkeypatch.setattr("kukri.runtime.cpu.machine.key_offsets", lambda program: {})
    assert centred < error() / 3
    assert centred < 0.05


def test_which_caches_are_rotated():
    """What has 8 or 4 bits is; what a machine did not rotate, one that does must not take for its own."""
    never, values, both = (False, False), (False, True), (True, True)
    assert {kind: rotated(kind) for kind in CACHE_TYPES} == {
        **dict.fromkeys(("F32", "F16"), never),
        **dict.fromkeys(("F16/Q8_0", "F16/Q4_0"), values),
        **dict.fromkeys(("Q8_0", "Q8_0/Q4_0", "Q4_0"), both),
    }
    layouts = [CpuMachine(program(1, "Q8_0"), 4, kv_type=kind).page_layout for kind in ("q8_0", "f16/q8_0")]
    assert [" rotated" in layouts[0], " values rotated" in layouts[1]] == [True, True]


def test_pages_of_other_offsets_or_factors_are_of_another_layout():
    """As of another version of kukri. Offsets count where there are no factors, too."""

    def layout(kind: str, by: float, weight: float) -> str:
        plain = biased(program(1), np.full(64, by, np.float32))
        flow = [
            replace(op, bias=None) if isinstance(op, ops.MatMul) and op.out.name == "q" else op
            for op in plain.ops
            if not (isinstance(op, ops.RMSNorm) and op.x.name == "q")
        ]
        norm = ops.RMSNorm(flow[2].out, flow[2].out, np.linspace(1, weight, 32, dtype=np.float32), 1e-6, 6)
        whole = replace(plain, ops=(*flow[:3], norm, *flow[3:]) if weight else tuple(flow))
        machine = CpuMachine(whole, 4, kv_type=kind, threads=1)
        found = machine.page_layout
        machine.close()
        return found

    changed = [layout("q8_0", by, weight) for by in (1, 2) for weight in (0, 5, 6)]
    assert len(set(changed)) == 6
    assert layout("q8_0", 1, 0) == changed[0]
    assert layout("f16", 1, 0) == layout("f16", 2, 5)
