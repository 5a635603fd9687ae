"""Gemma 3n and 4: streams, per-layer inputs, shared keys and values, and sizes that differ between layers."""

from __future__ import annotations

import json
import math
from statistics import NormalDist

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import DamagedFile, UnsupportedModel
from kukri.runtime import ops
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.program.build import build_program
from kukri.runtime.weights.binding import Weights
from kukri.tests.runtime.reference.test_machine import attend, batch, buffer, machine_of, matrix, run

RNG = np.random.default_rng(12)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def test_embedding_of_tokens_that_a_table_lacks():
    table = normal(5, 3)
    op = ops.Embed(buffer("x", 3), matrix(table))
    got = run(machine_of(op), batch([0, 1, 2], tokens=[4, 5, 99]), "x")
    np.testing.assert_array_equal(got, table[[4, 0, 0]])


def test_add_that_keeps_a_part():
    x, y = normal(2, 3), normal(2, 3)
    op = ops.Add(buffer("x", 3), buffer("y", 3), scale=0.5, keep=-2.0)
    got = run(machine_of(op, x=x, y=y), batch([0, 1]), "y")
    np.testing.assert_allclose(got, 0.5 * x - 2 * y, rtol=1e-6)


def test_gate_with_a_part_of_a_row():
    gate, up = normal(2, 3), normal(2, 9)
    op = ops.GatedActivation(buffer("g", 3), buffer("u", 9), buffer("g", 3), "silu", up_start=6)
    got = run(machine_of(op, g=gate, u=up), batch([0, 1]), "g")
    np.testing.assert_allclose(got, gate / (1 + np.exp(-gate)) * up[:, 6:], rtol=1e-5)


@pytest.mark.parametrize("std_multiplier", [-0.5, 0.0, 1.2])
def test_gaussian_top_k(std_multiplier):
    x = normal(3, 50) + 1
    got = run(machine_of(ops.GaussianTopK(buffer("x", 50), std_multiplier), x=x), batch([0, 1, 2]), "x")
    for row in range(3):
        values = x[row].astype(float)
        mean = sum(values) / 50
        cut = mean + std_multiplier * math.sqrt(sum((v - mean) ** 2 for v in values) / 50)
        np.testing.assert_allclose(got[row], [max(v - cut, 0.0) for v in values], atol=1e-5)
    assert (got == 0).any()


def test_match_magnitude():
    x, like = normal(3, 6), 5 * normal(3, 6)
    x[1] = 0
    op = ops.MatchMagnitude(buffer("x", 6), buffer("y", 6), floor=1e-3)
    got = run(machine_of(op, x=x, y=like), batch([0, 1, 2]), "x")
    np.testing.assert_allclose((got[[0, 2]] ** 2).mean(1), (like[[0, 2]] ** 2).mean(1), rtol=1e-5)
    np.testing.assert_allclose(got[0] / x[0], (got[0] / x[0])[0], rtol=1e-5)
    np.testing.assert_array_equal(got[1], 0)


def test_altup_predict_and_correct():
    n, active = 3, 1
    streams = {f"s{i}": normal(2, 4) for i in range(n)}
    names = tuple(buffer(name, 4) for name in streams)
    c, d, x, weight = normal(2, n * n), normal(2, n), normal(2, 4), normal(4)
    predict = ops.AltUpPredict(names, buffer("c", n * n), active, buffer("x", 4))
    machine = machine_of(predict, **streams, c=c)
    run(machine, batch([0, 1]), "x")
    predicted = [
        [streams[f"s{j}"][r] + sum(c[r, j * n + i] * streams[f"s{i}"][r] for i in range(n)) for r in range(2)]
        for j in range(n)
    ]
    for j in range(n):
        np.testing.assert_allclose(machine.buffers[f"s{j}"], predicted[j], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(machine.buffers["x"], machine.buffers["s1"])

    correct = ops.AltUpCorrect(names, buffer("d", n), active, buffer("x", 4), weight)
    machine = machine_of(correct, **streams, d=d, x=x)
    got = run(machine, batch([0, 1]), "x")
    for j in range(n):
        expected = streams[f"s{j}"] + (1 + d[:, j, None]) * (x - streams["s1"])
        np.testing.assert_allclose(machine.buffers[f"s{j}"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got, machine.buffers["s1"] * weight)


def test_attention_over_keys_of_an_earlier_layer():
    """In one step and in several; its own k and v are not looked at."""
    n, heads, d = 7, 2, 4
    q, k, v = normal(n, heads, d), normal(n, 1, d), normal(n, 1, d)
    sizes = {"layer": 0, "heads": heads, "kv_heads": 1, "head_dim": d, "scale": 0.5}
    names = (buffer("k", d), buffer("v", d))
    first = ops.Attend(buffer("q", heads * d), *names, buffer("a", heads * d), **sizes)
    later = ops.Attend(
        *(buffer("p", heads * d), buffer("none", d), buffer("nor", d), buffer("b", heads * d)),
        **sizes,
        window=3,
        append=False,
    )
    p = normal(n, heads, d)
    expected = attend(p, k, v, window=3)
    for chunks in ((7,), (2, 1, 4)):
        machine = machine_of(first, later, layers=[ops.CacheLayer(1, d)])
        got, start = [], 0
        for size in chunks:
            rows = slice(start, start + size)
            flat = {"q": q[rows], "k": k[rows], "v": v[rows], "p": p[rows]}
            machine.buffers.update({name: values.reshape(size, -1) for name, values in flat.items()})
            got.append(run(machine, batch(list(range(start, start + size))), "b"))
            start += size
        np.testing.assert_allclose(np.concatenate(got), expected, rtol=1e-5, atol=1e-6)


def test_route_with_scales_of_experts_and_groups_by_their_best():
    scores = np.log(np.array([[0.1, 0.4, 0.3, 0.2]], np.float32))
    names = buffer("s", 4), buffer("e", 2), buffer("w", 2)
    op = ops.Route(*names, "softmax", expert_scales=np.array([1, 2, 3, 4], np.float32))
    machine = machine_of(op, s=scores)
    np.testing.assert_allclose(run(machine, batch([0]), "w"), [[2 * 4 / 7, 3 * 3 / 7]], rtol=1e-5)
    # {0.45, 0.01} against {0.3, 0.24}: by the best one the first group wins, by two the second
    scores = np.log(np.array([[0.45, 0.01, 0.3, 0.24]], np.float32))
    for best, expected in ((1, [0, 1]), (2, [2, 3])):
        op = ops.Route(*names, "softmax", groups=2, top_groups=1, group_best=best)
        np.testing.assert_array_equal(run(machine_of(op, s=scores), batch([0]), "e"), [expected])


def config_of(conformance, name, **changes):
    config = json.loads((conformance(name) / "config.json").read_text())
    return config_from_hf({**config, **changes}, Checkpoint.open(conformance(name)).tensors)


def test_layers_of_gemma4(conformance):
    config = config_of(conformance, "gemma4")
    assert [config.sizes(layer) for layer in config.layers] == [
        (32, 1, 64),
        (64, 1, 64),
        (32, 1, 64),
        (32, 1, 128),
        (64, 1, 128),
    ]
    assert [layer.kv_from for layer in config.layers] == [None, None, None, 2, 1]
    rope = config.layers[1].rope
    assert (rope.dims, config.layers[0].rope.dims) == (64, 32)
    assert np.count_nonzero(rope.inv_freq()) == 8
    np.testing.assert_allclose(rope.inv_freq()[:8], 1e6 ** -(np.arange(8) / 32), rtol=1e-6)
    moe = config_of(conformance, "gemma4-moe")
    assert [layer.values_are_keys for layer in moe.layers] == [False, False, True]
    assert [moe.sizes(layer)[1] for layer in moe.layers] == [2, 2, 1]
    assert (moe.per_layer_input, moe.moe.parallel_dense, moe.attention_scale) == (None, True, 1.0)


def test_layers_of_gemma3n(conformance):
    config = config_of(conformance, "gemma3n", intermediate_size=[64, 64, 80, 64, 64])
    assert [config.sizes(layer)[2] for layer in config.layers] == [64, 64, 80, 64, 64]
    deviations = NormalDist().inv_cdf(0.8)
    assert [layer.std_multiplier for layer in config.layers] == [deviations] * 2 + [None] * 3
    assert (
        config_of(conformance, "gemma3n", activation_sparsity_pattern=None).layers[0].std_multiplier is None
    )
    unshared = config_of(conformance, "gemma3n", num_kv_shared_layers=0)
    assert all(layer.kv_from is None for layer in unshared.layers)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gemma3n", {"num_kv_shared_layers": 4}),  # no full layer before them
        ("gemma3n", {"num_kv_shared_layers": 5}),
        ("gemma3n", {"num_kv_shared_layers": 2**30}),
        ("gemma3n", {"num_kv_shared_layers": -1}),
        ("gemma3n", {"intermediate_size": [64] * 4}),
        ("gemma3n", {"intermediate_size": [64, 64, 64, 64, "64"]}),
        ("gemma3n", {"activation_sparsity_pattern": [0.5] * 4}),
        ("gemma3n", {"activation_sparsity_pattern": [1.0] * 5}),
        ("gemma3n", {"activation_sparsity_pattern": [math.nan] * 5}),
        ("gemma3n", {"altup_num_inputs": 1}),
        ("gemma3n", {"altup_num_inputs": 10**6}),
        ("gemma3n", {"altup_active_idx": 4}),
        ("gemma3n", {"laurel_rank": 0}),
        ("gemma4", {"hidden_size_per_layer_input": -1}),
        ("gemma4", {"vocab_size_per_layer_input": 0}),
        ("gemma4", {"global_head_dim": 0}),
        ("gemma4", {"num_key_value_heads": 3}),
        ("gemma4-moe", {"num_global_key_value_heads": 3}),
        ("gemma4-moe", {"top_k_experts": 5}),
        ("gemma4", {"per_layer_config": 3}),
        ("gemma4", {"per_layer_config": {"1": {"head_dim": "64"}, "4": {"head_dim": 64}}}),
    ],
    ids=str,
)
def test_damaged_settings(conformance, name, changes):
    with pytest.raises(DamagedFile) as error:
        config_of(conformance, name, **changes)
    assert "\n" not in str(error.value)
    assert not isinstance(error.value, UnsupportedModel)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_layer_config": {"1": {"head_dim": 64}}}, "layers without a window"),
        ({"per_layer_config": {"1": {"head_dim": 64}, "4": {"head_dim": 32}}}, "layer to layer"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
    ],
    ids=str,
)
def test_unsupported_settings(conformance, changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        config_of(conformance, "gemma4", **changes)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("gemma3n", "model.altup_projections.1.weight"),
        ("gemma3n", "model.altup_unembed_projections.2.weight"),
        ("gemma3n", "model.layers.4.altup.correct_output_scale"),
        ("gemma3n", "model.layers.1.laurel.linear_left.weight"),
        ("gemma4", "model.embed_tokens_per_layer.weight"),
        ("gemma4", "model.layers.0.layer_scalar"),
        ("gemma4", "model.layers.2.self_attn.k_proj.weight"),
        ("gemma4-moe", "model.layers.0.router.scale"),
        ("gemma4-moe", "model.layers.2.router.per_expert_scale"),
        ("gemma4-moe", "model.layers.1.mlp.up_proj.weight"),
        ("gemma4-moe", "model.layers.1.post_feedforward_layernorm_1.weight"),
    ],
)
def test_tensors_are_needed_in_their_shape(conformance, name, tensor):
    checkpoint = Checkpoint.open(conformance(name))
    config, tensors = config_from_hf(checkpoint.config, checkpoint.tensors), dict(checkpoint.tensors)
    Weights(config, tensors)
    with pytest.raises(DamagedFile, match=f"{tensor} has shape"):
        Weights(config, {**tensors, tensor: matrix(np.zeros((63, 65)))})
    del tensors[tensor]
    with pytest.raises(DamagedFile, match=f"{tensor} is missing"):
        Weights(config, tensors)


def test_tensors_of_layers_that_share_keys(conformance):
    """Files have them or not; those of other layers are no left-overs."""
    checkpoint = Checkpoint.open(conformance("gemma4"))
    config, tensors = config_from_hf(checkpoint.config, checkpoint.tensors), dict(checkpoint.tensors)
    for stem in ("k_proj", "v_proj", "k_norm"):
        del tensors[f"model.layers.3.self_attn.{stem}.weight"]
    program = build_program(config, Weights(config, tensors))
    appending = [op.append for op in program.ops if isinstance(op, ops.Attend)]
    assert appending == [True, True, True, False, False]
    assert [op.layer for op in program.ops if isinstance(op, ops.Attend)] == [0, 1, 2, 2, 1]
    assert program.cache_layers == tuple(ops.CacheLayer(1, d) for d in (32, 64, 32))
    stray = {"model.layers.5.self_attn.k_proj.weight": matrix(np.zeros((1, 1)))}
    with pytest.raises(DamagedFile, match=r"layers\.5\.self_attn\.k_proj\.weight has no place"):
        Weights(config, {**tensors, **stray})


def test_buffers_of_layers_of_several_sizes(conformance):
    """Names are unique, and each has one width."""
    checkpoint = Checkpoint.open(conformance("gemma4"))
    config = config_from_hf(checkpoint.config, checkpoint.tensors)
    program = build_program(config, Weights(config, checkpoint.tensors))
    assert len({b.name for b in program.buffers}) == len(program.buffers)
    for op in program.ops:
        if isinstance(op, ops.MatMul):
            assert (op.out.width, op.x.width) == op.weight.shape
    assert all(b.width for b in program.buffers)
