"""Inspections of the fixtures: what transformers computed for them, and what must hold whatever the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.split import SplitMachine, cuts, split
from kukri.runtime.inspection.attention import AttentionChoice
from kukri.runtime.inspection.inspect import InspectOptions, inspect_ids
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program

DATA = Path(__file__).parents[2] / "data"
MANIFEST = json.loads((DATA / "conformance/manifest.json").read_text())
FIXTURES = {entry["name"]: entry for entry in MANIFEST["fixtures"]}
FLOATS = [name for name, entry in FIXTURES.items() if "packed" not in entry]
HYBRIDS = ["lfm2", "qwen3-next", "granite4-h", "nemotron-h", "falcon-h1"]
ATTENTION = np.load(DATA / "inspection/attention.npz")  # see generate.py there
ROWS = (0, 5, 21, 39)
KINDS = [*HYBRIDS, "llama", "gemma3n", "deepseek-v3", "gpt-oss", "gemma2", "qwen3-moe", "gpt-neox"]
EVERYTHING = InspectOptions(lens=True, attention=AttentionChoice(), residual=True, logits=True)


@pytest.fixture(scope="module")
def program_of(conformance):
    def load(name):
        return open_program(conformance(name))

    return load


@pytest.fixture(scope="module")
def engine_of(program_of):
    """engine_of(name, kind) → the engine of a fixture on a machine of that kind, with 3 pages."""
    machines = []

    def load(name, kind=ReferenceMachine):
        config, program = program_of(name)
        machine = kind(program, 3, threads=2) if kind is CpuMachine else kind(program, 3)
        machines.append(machine)
        return Engine(machine, PageTable(3), config, states=machine.states)

    yield load
    for machine in machines:
        machine.close()


def reference_of(conformance, name):
    return np.load(conformance(name) / "reference.npz")


@pytest.mark.parametrize("name", FLOATS)
def test_residual_streams_are_those_of_transformers(conformance, engine_of, name):
    """What enters each layer and what leaves the last, of every architecture."""
    reference, atol = reference_of(conformance, name), FIXTURES[name]["suggested_atol"]
    found = inspect_ids(engine_of(name), reference["input_ids"][:8], InspectOptions(residual=True))
    np.testing.assert_allclose(found.residual, reference["hidden"], rtol=0, atol=atol)
    rms = np.sqrt(np.mean(np.square(reference["hidden"]), axis=(1, 3) if name == "gemma3n" else 2))
    np.testing.assert_allclose(found.norms, rms, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ATTENTION.files)
def test_attention_is_that_of_transformers(conformance, engine_of, name):
    """In all layers that have some, of every architecture."""
    ids, expected = reference_of(conformance, name)["input_ids"][:40], ATTENTION[name] / 65535
    found = inspect_ids(engine_of(name), ids, InspectOptions(attention=AttentionChoice(rows=ROWS)))
    got = np.stack([found.attention[layer].weights for layer in sorted(found.attention)])
    np.testing.assert_allclose(got, expected, rtol=0, atol=FIXTURES[name]["suggested_atol"])


@pytest.mark.parametrize("kind", [ReferenceMachine, CpuMachine])
@pytest.mark.parametrize("name", KINDS)
def test_what_must_hold(conformance, engine_of, name, kind):
    """The lens of what leaves the last layer is the model's answer; rows of attention sum to 1; routers
    choose different experts; and an inspection leaves nothing behind."""
    engine, ids = engine_of(name, kind), reference_of(conformance, name)["input_ids"][:12]
    found = inspect_ids(engine, ids, EVERYTHING)
    np.testing.assert_allclose(found.logits, engine.logits(ids), rtol=0, atol=2e-3)
    assert found.lens.layers == tuple(range(found.n_layers + 1))
    np.testing.assert_array_equal(found.lens.top.ids[-1], found.top.ids)
    np.testing.assert_array_equal(found.lens.top.probabilities[-1], found.top.probabilities)
    for each in found.attention.values():
        sums = each.weights.sum(-1)
        assert sums.max() < 1 + 1e-5
        assert name == "gpt-oss" or sums.min() > 1 - 1e-5
        assert not np.triu(each.weights, 1).any()
    for each in found.experts.values():
        assert all(len(set(row)) == len(row) for row in each.experts.tolist())
        assert 0 <= each.experts.min() <= each.experts.max() < each.n_experts
    assert bool(found.states) == (name in HYBRIDS)
    assert found.attention
    assert not engine.table.lengths.any()


@pytest.mark.parametrize("name", ["llama", "gemma3n", "qwen3-moe", "falcon-h1", "deepseek-v3"])
def test_the_cpu_machine_shows_what_the_reference_does(conformance, engine_of, name):
    ids = reference_of(conformance, name)["input_ids"][:20]
    expected, got = (
        inspect_ids(engine_of(name, kind), ids, EVERYTHING) for kind in (ReferenceMachine, CpuMachine)
    )
    np.testing.assert_allclose(got.residual, expected.residual, rtol=0, atol=2e-3)
    np.testing.assert_allclose(got.updates, expected.updates, rtol=0, atol=2e-3)
    np.testing.assert_allclose(got.top.entropy, expected.top.entropy, rtol=0, atol=2e-3)
    for layer, each in expected.attention.items():
        np.testing.assert_allclose(got.attention[layer].weights, each.weights, rtol=0, atol=2e-3)
    for layer, each in expected.experts.items():
        np.testing.assert_array_equal(got.experts[layer].experts, each.experts)
        np.testing.assert_allclose(got.experts[layer].weights, each.weights, rtol=0, atol=2e-3)
    for layer, each in expected.states.items():
        np.testing.assert_allclose(got.states[layer].norms, each.norms, rtol=1e-3)


@pytest.mark.parametrize("name", ["llama", "gemma3n", "granite4-h"])
def test_of_a_split_model(conformance, program_of, engine_of, name):
    """Two machines show what one does, and have the same program together."""
    config, program = program_of(name)
    ids = reference_of(conformance, name)["input_ids"][:9]
    machine = SplitMachine(*(ReferenceMachine(part, 3) for part in split(program, cuts(program)[0])))
    engine = Engine(machine, PageTable(3), config, states=machine.states)
    got, expected = inspect_ids(engine, ids, EVERYTHING), inspect_ids(engine_of(name), ids, EVERYTHING)
    np.testing.assert_array_equal(got.residual, expected.residual)
    np.testing.assert_array_equal(got.lens.top.probabilities, expected.lens.top.probabilities)
    assert got.attention.keys() == expected.attention.keys()
    for layer, each in expected.attention.items():
        np.testing.assert_array_equal(got.attention[layer].weights, each.weights)
    for layer, each in expected.states.items():
        np.testing.assert_array_equal(got.states[layer].norms, each.norms)
    assert [type(op) for op in machine.program.ops] == [type(op) for op in program.ops]
    assert machine.program.layers == program.layers
    assert got.cache == expected.cache


def test_steps_make_no_difference(conformance, engine_of):
    """Norms of states behind every position come from steps of one row; everything else stays the same."""
    engine = engine_of("falcon-h1")
    ids = reference_of(conformance, "falcon-h1")["input_ids"][:10]
    whole = inspect_ids(engine, ids, EVERYTHING)
    each = inspect_ids(
        engine, ids, InspectOptions(lens=True, attention=AttentionChoice(), residual=True, states=True)
    )
    np.testing.assert_allclose(each.residual, whole.residual, rtol=0, atol=1e-4)
    for layer, states in whole.states.items():
        assert states.positions.tolist() == [9]
        assert each.states[layer].positions.tolist() == list(range(10))
        np.testing.assert_allclose(each.states[layer].norms[-1:], states.norms, rtol=1e-4)
        np.testing.assert_allclose(each.attention[layer].weights, whole.attention[layer].weights, atol=1e-4)


def test_choices(conformance, engine_of):
    """Of attention only what was chosen; numbers below 0 count from the end."""
    engine, ids = engine_of("gemma3"), reference_of(conformance, "gemma3")["input_ids"][:40]
    whole = inspect_ids(engine, ids, InspectOptions(attention=AttentionChoice()))
    choice = AttentionChoice(layers=(-1, 0), heads=(1,), rows=(-1, 3))
    some = inspect_ids(engine, ids, InspectOptions(attention=choice, lens=(-1, 2)))
    assert sorted(some.attention) == [0, whole.n_layers - 1]
    for layer, each in some.attention.items():
        assert (each.heads, each.rows) == ((1,), (3, 39))
        expected = whole.attention[layer].weights[1:2][:, [3, 39]]
        np.testing.assert_allclose(each.weights, expected, rtol=1e-5)
    assert some.lens.layers == (whole.n_layers, 2)
    windows = {layer: each.window for layer, each in whole.attention.items()}
    assert windows[0] == 16
    assert windows[5] == 0
    for layer, window in windows.items():
        far = np.tril(whole.attention[layer].weights, -(window or 99))
        assert not far.any()


def test_distributions(conformance, engine_of):
    """Entropy, probabilities and ranks by their definitions."""
    ids = reference_of(conformance, "llama")["input_ids"][:10]
    found = inspect_ids(engine_of("llama"), ids, InspectOptions(top=300, logits=True))
    logits = found.logits.astype(np.float64)
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
    np.testing.assert_allclose(found.top.entropy, -(p * np.log2(p)).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(found.top.ids, np.argsort(-logits, axis=-1, kind="stable"))
    np.testing.assert_allclose(found.top.probabilities, -np.sort(-p, axis=-1), rtol=1e-4)
    rows = np.arange(9)
    np.testing.assert_allclose(found.top.next_probability[:-1], p[rows, ids[1:]], rtol=1e-4)
    assert np.isnan(found.top.next_probability[-1])
    ranks = [int(np.flatnonzero(found.top.ids[i] == ids[i + 1])[0]) for i in rows]
    assert found.top.next_rank.tolist() == [*ranks, -1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (InspectOptions(attention=AttentionChoice(layers=(7,))), "2 layers"),
        (InspectOptions(attention=AttentionChoice(heads=(-9,))), "heads"),
        (InspectOptions(attention=AttentionChoice(rows=(4,))), "4 positions"),
        (InspectOptions(lens=(4,)), "3 layers"),
        (InspectOptions(top=0), "at least 1"),
    ],
)
def test_wrong_choices(engine_of, options, words):
    with pytest.raises(ValueError, match=words):
        inspect_ids(engine_of("llama"), [5, 6, 7, 8], options)


def test_too_much(engine_of, monkeypatch):
    monkeypatch.setattr("kukri.runtime.inspection.inspect.MOST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"attention weights of 8 positions take 2\.0 kB"):
        inspect_ids(engine_of("llama"), range(3, 11), InspectOptions(attention=AttentionChoice()))


def test_plain_data(conformance, engine_of):
    """JSON has the numbers of the arrays, and null where there is none."""
    ids = reference_of(conformance, "qwen3-moe")["input_ids"][:6]
    found = inspect_ids(engine_of("qwen3-moe"), ids, EVERYTHING)
    data = json.loads(json.dumps(found.data(), allow_nan=False))
    assert [token["id"] for token in data["tokens"]] == ids.tolist()
    assert data["tokens"][0]["probability"] is None
    assert data["tokens"][3]["probability"] == pytest.approx(float(found.top.next_probability[2]), rel=1e-3)
    assert data["next"][2]["top"][0]["id"] == int(found.top.ids[2, 0])
    assert data["lens"]["cells"][1][4][0]["id"] == int(found.lens.top.ids[1, 4, 0])
    assert np.allclose(data["attention"][0]["weights"], found.attention[0].weights, atol=1e-4)
    assert data["experts"][0]["experts"] == found.experts[0].experts.tolist()
    assert data["cache"]["bytes"] == sum(layer["bytes"] for layer in data["cache"]["layers"]) > 0
