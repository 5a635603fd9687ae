"""Programs in two parts on two machines, against the whole program on one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.split import (
    JoinedStates,
    SplitMachine,
    balanced_cuts,
    cuts,
    layer_bytes,
    split,
    split_at,
    weight_bytes,
)
from kukri.runtime.engine.state import UNKNOWN, SavedState, SequenceStates
from kukri.runtime.ops import (
    Attend,
    Buffer,
    CacheLayer,
    CausalConv,
    DeltaRule,
    Embed,
    HeadMatMul,
    MatMul,
    Program,
    StateLayer,
    StateScan,
)
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program


@pytest.fixture(scope="module")
def program_of(conformance):
    return lambda name: open_program(conformance(name))[1]


@dataclass(frozen=True)
class Config:
    vocab_size: int


FIXTURES = ["llama", "gemma3", "qwen3-moe", "gemma3n", "gemma4", "qwen3-next", "granite4-h", "deepseek-v3"]


@pytest.mark.parametrize("name", FIXTURES)
def test_both_parts_are_the_whole(program_of, feed, name):
    program = program_of(name)
    ids = np.arange(23) * 7 % 40
    expected = feed(ReferenceMachine(program, 1), PageTable(1), ids, (9, 1, 4), known=True)
    possible = cuts(program)
    assert possible
    for layer in possible:
        machine = SplitMachine(*(ReferenceMachine(part, 1) for part in split(program, layer)))
        got = feed(machine, PageTable(1), ids, (9, 1, 4), known=True)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["llama", "gemma4", "qwen3-next"])
def test_on_the_cpu(program_of, feed, name):
    program = program_of(name)
    ids = np.arange(23) * 7 % 40
    layer = cuts(program)[-1]
    machine = SplitMachine(*(CpuMachine(part, 1, threads=2) for part in split(program, layer)))
    whole = CpuMachine(program, 1, threads=2)
    got, expected = (feed(m, PageTable(1), ids, (9, 1, 4), known=True) for m in (machine, whole))
    np.testing.assert_array_equal(got, expected)
    machine.close()
    whole.close()


def test_generations_are_the_same(program_of):
    """With states on both sides, whose copies let a prompt go on from where it differs."""
    program = program_of("falcon-h1")
    front, back = split(program, cuts(program)[0])
    assert front.state_layers
    assert back.state_layers
    prompts = [list(range(1, 30)), [*range(1, 25), 3, 4], list(range(1, 33))]
    params = SamplingParams(seed=3, max_tokens=6, ignore_eos=True)
    answers, cached = [], []
    parts = SplitMachine(ReferenceMachine(front, 2), ReferenceMachine(back, 2))
    for machine in (ReferenceMachine(program, 2), parts):
        engine = Engine(machine, PageTable(2), Config(program.logits.width), states=machine.states)
        answers.append([list(engine.generate(prompt, params)) for prompt in prompts])
        cached.append(engine.stats.cached_tokens)
    assert answers[0] == answers[1]
    assert cached[0] == cached[1] > 0


# ---- programs and machines made by hand


def matrix(outputs, inputs):
    return QTensor("", FORMATS["F32"], (outputs, inputs), np.zeros((outputs, 4 * inputs), np.uint8))


X, PER_LAYER, Y, LOGITS = Buffer("x", 8), Buffer("per_layer", 4), Buffer("y", 8), Buffer("logits", 10, True)
CACHES = tuple(CacheLayer(1, dim) for dim in (8, 16, 24))
STATES = tuple(StateLayer((n,)) for n in (3, 4, 5))
ONE = np.ones(1, np.float32)


def attend(layer):
    return Attend(X, X, X, Y, layer, heads=1, kv_heads=1, head_dim=8, scale=1.0)


@pytest.fixture
def by_hand():
    """Four layers from op 1 on; the second and the third share a KV cache layer."""
    ops = (
        Embed(X, matrix(10, 8)),
        attend(0),
        CausalConv(X, Y, np.ones((8, 2), np.float32), None, state=0),
        attend(1),
        attend(1),
        DeltaRule(X, X, X, Y, ONE, ONE, groups=1, heads=1, key_dim=2, state=1),
        attend(2),
        StateScan(X, X, Y, ONE, ONE, ONE, groups=1, heads=1, state_size=2, state=2),
        MatMul(X, LOGITS, matrix(10, 8)),
    )
    buffers, residual = (X, Y, LOGITS), (X, PER_LAYER)
    return Program(ops, buffers, CACHES, LOGITS, STATES, (1, 3, 4, 6, 8), residual)


def test_no_cut_parts_layers_that_share_a_cache(by_hand):
    assert cuts(by_hand) == [1, 3]


def test_structure_of_the_parts(by_hand):
    first, second = split(by_hand, 3)
    assert first.ops[0] is by_hand.ops[0]
    assert (len(first.ops), len(second.ops)) == (6, 3)
    assert (first.layers, second.layers) == ((1, 3, 4, 6), (0, 2))
    assert (first.cache_layers, second.cache_layers) == (CACHES[:2], CACHES[2:])
    assert (first.state_layers, second.state_layers) == (STATES[:2], STATES[2:])
    assert [op.layer for op in first.ops if isinstance(op, Attend)] == [0, 1, 1]
    assert [op.layer for op in second.ops if isinstance(op, Attend)] == [0]
    assert [op.state for op in (first.ops[2], first.ops[5], second.ops[1])] == [0, 1, 0]
    assert (first.buffers, second.buffers) == ((X, Y), (X, Y, LOGITS))
    assert (first.logits, second.logits) == (X, LOGITS)
    assert first.boundary_out == second.boundary_in == (X, PER_LAYER)
    assert first.boundary_in == second.boundary_out == ()


def test_layers_of_a_part_begin_at_its_first_op(by_hand):
    first, second = split(by_hand, 1)
    assert (first.layers, second.layers) == ((1, 3), (0, 1, 3, 5))
    assert cuts(second) == [2]


def test_three_parts(by_hand):
    first, second, third = split_at(by_hand, [1, 3])
    assert [len(part.ops) for part in (first, second, third)] == [3, 3, 3]
    assert (first.boundary_in, first.boundary_out) == ((), (X, PER_LAYER))
    assert second.boundary_in == second.boundary_out == (X, PER_LAYER)
    assert (third.boundary_in, third.boundary_out) == ((X, PER_LAYER), ())
    assert (second.layers, third.layers) == ((0, 1, 3), (0, 2))
    assert split_at(by_hand, [])[0] is by_hand


@pytest.mark.parametrize(
    ("costs", "possible", "n", "expected"),
    [
        ([1, 1, 1, 1], [1, 2, 3], 2, (2,)),
        ([1, 1, 1, 3], [1, 2, 3], 2, (3,)),
        ([5, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5], 3, (1, 3)),
        ([5, 1, 1, 1, 1], [1, 2, 3, 4], 3, (1, 3)),
        ([1, 1, 1, 1], [1, 3], 2, (1,)),
        ([2, 2], [1], 4, (1,)),
        ([1, 1], [], 2, ()),
        ([1, 1, 1], [1, 2], 1, ()),
    ],
)
def test_cuts_where_the_costliest_part_costs_least(costs, possible, n, expected):
    assert balanced_cuts(costs, possible, n) == expected


def test_bytes_of_layers_are_those_of_the_steps(by_hand):
    sizes = layer_bytes(by_hand)
    assert len(sizes) == 4
    assert sizes == [0, 0, 0, 320]  # the output matrix belongs to the last layer's part


def test_weight_bytes_count_each_matrix_once():
    tied, other, heads = matrix(10, 8), matrix(8, 8), (matrix(2, 4), matrix(2, 4))
    ops = (
        Embed(X, tied),
        MatMul(X, Y, other, np.zeros(8, np.float32)),
        HeadMatMul(X, PER_LAYER, heads),
        MatMul(X, LOGITS, tied),
    )
    assert weight_bytes(Program(ops, (), (), LOGITS)) == 320 + 256 + 2 * 32
    assert weight_bytes(Program((), (), (), LOGITS)) == 0


class Recorder:
    """A machine that writes down what it is asked for."""

    def __init__(self, name, calls, max_rows, max_logits):
        self.name, self.calls, self.max_rows, self.max_logits = name, calls, max_rows, max_logits
        self.states = SequenceStates(())

    def step(self, batch, table):
        self.calls.append((self.name, "step", batch.logits_indices.tolist()))
        return np.full((1, 10), 5.0, np.float32)

    def top_k(self, batch, table, k, n_tokens):
        self.calls.append((self.name, "top_k", batch.logits_indices.tolist(), k, n_tokens))
        return ["top"]

    def read_boundary(self, n_rows):
        self.calls.append((self.name, "read", n_rows))
        return ["x", "per_layer"]

    def write_boundary(self, values):
        self.calls.append((self.name, "write", values))

    def close(self):
        self.calls.append((self.name, "close"))


def test_calls_of_the_machines():
    calls = []
    machine = SplitMachine(Recorder("front", calls, 8, 8), Recorder("back", calls, 8, 8))
    rows = np.arange(3, dtype=np.int32)
    batch = Batch(rows, np.zeros_like(rows), rows, np.array([2], np.int32))
    begin = [("front", "step", []), ("front", "read", 3), ("back", "write", ["x", "per_layer"])]
    assert machine.step(batch, PageTable(1)).tolist() == [[5.0] * 10]
    assert calls == [*begin, ("back", "step", [2])]
    calls.clear()
    assert machine.top_k(batch, PageTable(1), 7, 9) == ["top"]
    assert calls == [*begin, ("back", "top_k", [2], 7, 9)]
    calls.clear()
    machine.close()
    assert calls == [("front", "close"), ("back", "close")]


@pytest.mark.parametrize(
    ("front", "back", "expected"),
    [
        ((8, 1), (16, 4), (8, 4)),  # the front computes no logits: how many it could does not matter
        ((16, 16), (8, 8), (8, 8)),
        ((4, 4), (16, 16), (4, 4)),
    ],
)
def test_limits_of_a_step(front, back, expected):
    machine = SplitMachine(Recorder("front", [], *front), Recorder("back", [], *back))
    assert (machine.max_rows, machine.max_logits) == expected


def states(layers, *lengths):
    """States whose arrays are 1, 2, … times the length."""
    made = SequenceStates(layers, len(lengths))
    made.lengths[:] = lengths
    for i, array in enumerate(made.arrays, 1):
        array[:] = i * made.lengths[:, None]
    return made


def test_lengths_are_known_where_both_machines_agree():
    joined = JoinedStates(states(STATES[:2], 5, 6, 3, UNKNOWN), states(STATES[2:], 5, 4, 9, UNKNOWN))
    assert joined.layers == STATES
    assert joined.lengths.tolist() == [5, UNKNOWN, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("of_front", [True, False])
def test_states_on_one_machine_only(of_front):
    """The lengths of the machine without states stay 0, and say nothing."""
    with_states, without = states(STATES[:2], 7, 2), states((), 0, 0)
    joined = JoinedStates(with_states, without) if of_front else JoinedStates(without, with_states)
    assert joined.lengths.tolist() == [7, 2]
    saved = joined.save(0)
    assert saved.length == 7
    assert [array.tolist() for array in saved.arrays] == [[7] * 3, [14] * 4]
    joined.restore(1, saved)
    assert joined.lengths.tolist() == [7, 7]
    assert [array[1].tolist() for array in with_states.arrays] == [[7] * 3, [14] * 4]
    assert without.lengths.tolist() == [0, 0]


def test_states_of_neither_machine():
    joined = JoinedStates(states((), 0, 0), states((), 0, 0))
    assert joined.lengths.tolist() == [0, 0]
    assert joined.save(1) == SavedState(0, ())


def test_saved_states_go_back_to_their_machines():
    front, back = states(STATES[:2], 5, 0), states(STATES[2:], 5, 0)
    joined = JoinedStates(front, back)
    saved = joined.save(0)
    assert [array.tolist() for array in saved.arrays] == [[5] * 3, [10] * 4, [5] * 5]
    joined.restore(1, saved)
    assert joined.lengths.tolist() == [5, 5]
    assert [array[1].tolist() for array in front.arrays] == [[5] * 3, [10] * 4]
    assert [array[1].tolist() for array in back.arrays] == [[5] * 5]
