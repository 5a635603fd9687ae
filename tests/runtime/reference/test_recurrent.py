"""The recurrent ops by formulas written out number by number, and the states that they keep."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kukri.runtime import ops
from kukri.runtime.engine.cache import Batch
from kukri.runtime.engine.state import UNKNOWN, SequenceStates, state_bytes
from kukri.runtime.ops.buffer import Buffer
from kukri.runtime.ops.recurrent import CausalConv, DeltaRule, StateLayer, StateScan
from kukri.runtime.reference.recurrent import causal_conv, delta_rule, softplus, state_scan

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def conv(channels: int = 3, taps: int = 4, bias: bool = True, silu: bool = True) -> CausalConv:
    b = Buffer("x", channels)
    return CausalConv(b, b, normal(channels, taps), normal(channels) if bias else None, 0, silu)


def delta(
    groups: int = 2, heads: int = 4, key_dim: int = 3, head_dim: int = 5, tiled: bool = False
) -> DeltaRule:
    qkv, one = Buffer("qkv", 2 * groups * key_dim + heads * head_dim), Buffer("one", heads)
    rates = (-np.exp(normal(heads)), normal(heads))
    return DeltaRule(qkv, one, one, Buffer("y", heads * head_dim), *rates, groups, heads, key_dim, 0, tiled)


def scan(groups: int = 2, heads: int = 4, size: int = 3, head_dim: int = 5) -> StateScan:
    xbc, one = Buffer("xbc", 2 * groups * size + heads * head_dim), Buffer("one", heads)
    rates = (-np.exp(normal(heads)), normal(heads), normal(heads))
    return StateScan(xbc, one, Buffer("y", heads * head_dim), *rates, groups, heads, size, 0, 0.5)


def inputs(op: CausalConv | DeltaRule | StateScan, rows: int) -> list[np.ndarray]:
    match op:
        case CausalConv():
            return [normal(rows, op.x.width)]
        case DeltaRule():
            return [normal(rows, op.qkv.width), normal(rows, op.heads), normal(rows, op.heads)]
        case StateScan():
            return [normal(rows, op.xbc.width), normal(rows, op.heads)]


def zeros(op: CausalConv | DeltaRule | StateScan) -> np.ndarray:
    match op:
        case CausalConv():
            return np.zeros((op.weight.shape[1] - 1, op.x.width), np.float32)
        case DeltaRule():
            return np.zeros((op.heads, op.key_dim, op.head_dim), np.float32)
        case StateScan():
            return np.zeros((op.heads, op.head_dim, op.state_size), np.float32)


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize(("bias", "silu"), [(True, True), (False, False)])
def test_causal_conv(taps, bias, silu):
    op = conv(taps=taps, bias=bias, silu=silu)
    (x,) = inputs(op, 6)
    state = zeros(op)
    out = causal_conv(op, state, x)
    for p in range(6):
        for c in range(3):
            total = float(op.bias[c]) if bias else 0.0
            for j in range(taps):
                if p - taps + 1 + j >= 0:
                    total += float(op.weight[c, j]) * float(x[p - taps + 1 + j, c])
            assert out[p, c] == pytest.approx(total * sigmoid(total) if silu else total, abs=1e-5)
    np.testing.assert_array_equal(state, x[6 - taps + 1 :])


@pytest.mark.parametrize("tiled", [False, True])
def test_delta_rule(tiled):
    op = delta(tiled=tiled)
    qkv, beta, step = inputs(op, 5)
    out = delta_rule(op, zeros(op), qkv, beta, step).reshape(5, 4, 5)
    for h in range(4):
        group = h % 2 if tiled else h // 2
        memory = np.zeros((3, 5))
        for p in range(5):
            q, k = (qkv[p, start + 3 * group :][:3].astype(np.float64) for start in (0, 6))
            v = qkv[p, 12 + 5 * h :][:5].astype(np.float64)
            q = q / math.sqrt((q @ q) + 1e-6) / math.sqrt(3)
            k = k / math.sqrt((k @ k) + 1e-6)
            memory *= math.exp(float(op.a[h]) * math.log1p(math.exp(step[p, h] + op.step_bias[h])))
            known = memory.T @ k
            for i in range(3):
                memory[i] += k[i] * sigmoid(beta[p, h]) * (v - known)
            np.testing.assert_allclose(out[p, h], memory.T @ q, atol=1e-5)


def test_a_delta_rule_that_keeps_all_and_trusts_its_input_answers_with_the_latest_value():
    op = replace(delta(1, 1), a=np.full(1, -1e-9, np.float32), eps=0.0)
    key = normal(3)
    key /= np.linalg.norm(key)
    values = normal(2, 5)
    qkv = np.stack([np.concatenate([key, key, value]) for value in values])
    out = delta_rule(op, zeros(op), qkv, np.full((2, 1), 50, np.float32), np.zeros((2, 1), np.float32))
    np.testing.assert_allclose(out, values / math.sqrt(3), atol=1e-6)


def test_state_scan():
    op = scan()
    xbc, step = inputs(op, 5)
    out = state_scan(op, zeros(op), xbc, step).reshape(5, 4, 5)
    for h in range(4):
        memory = np.zeros((5, 3))
        for p in range(5):
            x = xbc[p, 5 * h :][:5].astype(np.float64)
            b, c = (xbc[p, start + 3 * (h // 2) :][:3].astype(np.float64) for start in (20, 26))
            time = math.log1p(math.exp(0.5 * step[p, h] + op.step_bias[h]))
            memory = math.exp(op.a[h] * time) * memory + time * np.outer(x, b)
            np.testing.assert_allclose(out[p, h], memory @ c + op.skip[h] * x, atol=1e-5)


@pytest.mark.parametrize(("make", "run"), [(conv, causal_conv), (delta, delta_rule), (scan, state_scan)])
@pytest.mark.parametrize("cuts", [[1, 2, 3, 4, 5, 6, 7], [3], [1, 6]])
def test_where_a_prompt_is_cut_makes_no_difference(make, run, cuts):
    op = make()
    whole, state, pieces = zeros(op), zeros(op), []
    read = inputs(op, 8)
    expected = run(op, whole, *read)
    for part in zip(*(np.split(x, cuts) for x in read), strict=True):
        pieces.append(run(op, state, *part))
    np.testing.assert_array_equal(np.concatenate(pieces), expected)
    np.testing.assert_array_equal(state, whole)


def test_softplus_of_any_number():
    x = np.float32([-200, -20, 0, 1, 20, 200])
    np.testing.assert_allclose(softplus(x), np.logaddexp(0, x.astype(np.float64)), rtol=1e-6, atol=1e-30)
    assert softplus(x).dtype == np.float32


# ---- the states of sequences


def batch(sequences: list[int], positions: list[int]) -> Batch:
    n = len(positions)
    arrays = (np.zeros(n), sequences, positions, [])
    return Batch(*(np.array(array, np.int32) for array in arrays))


def step(states: SequenceStates, sequences: list[int], positions: list[int]) -> None:
    """A step that counts the rows of each sequence."""
    rows = batch(sequences, positions)
    states.begin(rows)
    for sequence in sequences:
        for array in states.arrays:
            array[sequence] += 1
    states.end(rows)


def test_states_start_go_on_and_start_again():
    states = SequenceStates([StateLayer((2, 3)), StateLayer((4,))], max_sequences=2)
    step(states, [0, 0, 1], [0, 1, 0])
    step(states, [1, 0], [1, 2])
    assert states.lengths.tolist() == [3, 2]
    assert [array[:, ..., 0].reshape(2, -1)[:, 0].tolist() for array in states.arrays] == [[3, 2], [3, 2]]
    step(states, [0], [0])
    assert states.arrays[1][:, 0].tolist() == [1, 2]
    assert state_bytes(states.layers) == 4 * (6 + 4)


@pytest.mark.parametrize(
    ("sequences", "positions", "message"),
    [
        ([0], [1], "goes on at 1, but its state is of 3"),
        ([0], [4], "goes on at 4"),
        ([0, 0], [3, 5], "not consecutive"),
        ([0, 0], [4, 3], "not consecutive"),
        ([2], [0], "states for 2 sequences"),
    ],
)
def test_steps_that_do_not_go_on_where_the_state_is(sequences, positions, message):
    states = SequenceStates([StateLayer((1,))], max_sequences=2)
    step(states, [0] * 3, [0, 1, 2])
    with pytest.raises(ValueError, match=message):
        states.begin(batch(sequences, positions))
    step(states, [0], [3])  # nothing is lost


def test_a_step_that_breaks_off_leaves_no_known_state():
    states = SequenceStates([StateLayer((1,))])
    step(states, [0, 0], [0, 1])
    saved = states.save(0)
    states.begin(batch([0], [2]))
    assert states.lengths[0] == UNKNOWN
    states.arrays[0][0] = 77
    with pytest.raises(ValueError, match="not known"):
        states.save(0)
    with pytest.raises(ValueError, match="goes on at 2"):
        states.begin(batch([0], [2]))
    states.restore(0, saved)
    step(states, [0], [2])
    assert states.arrays[0].tolist() == [[3]]
    assert saved.arrays[0].tolist() == [2]  # a copy


def test_a_model_without_states_takes_any_step():
    states = SequenceStates([])
    for rows in (batch([5, 5], [9, 3]), batch([], [])):
        states.begin(rows)
        states.end(rows)
    assert ops.Program((), (), (), Buffer("logits", 1)).state_layers == ()
