"""The reference machine's ops by hand-made examples, and its batches, pages and errors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.runtime import ops
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.reference.activations import ACTIVATIONS, sigmoid
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program

RNG = np.random.default_rng(7)


def matrix(values: np.ndarray) -> QTensor:
    values = np.ascontiguousarray(values, np.float32)
    return QTensor("m", FORMATS["F32"], values.shape, values.view(np.uint8))


def batch(positions, sequences=None, logits_indices=(), tokens=None) -> Batch:
    n = len(positions)
    arrays = (
        tokens if tokens is not None else [0] * n,
        sequences or [0] * n,
        positions,
        list(logits_indices),
    )
    return Batch(*(np.array(array, np.int32) for array in arrays))


def machine_of(*program_ops, layers=(), n_pages=4, page_size=64, **buffers: np.ndarray) -> ReferenceMachine:
    """A machine for a few ops, with buffers already filled."""
    out = ops.Buffer("out", 1)
    program = ops.Program(tuple(program_ops), (), tuple(layers), out)
    embed = ops.Embed(out, matrix(np.zeros((100, 1))))
    machine = ReferenceMachine(
        ops.Program((embed, *program_ops), (), program.cache_layers, out), n_pages, page_size
    )
    machine.buffers.update(buffers)
    return machine


def run(machine: ReferenceMachine, rows: Batch, name: str, page_size=64, n_pages=4) -> np.ndarray:
    table = PageTable(n_pages, max_sequences=4, page_size=page_size)
    for sequence in np.unique(rows.sequences):
        table.extend(sequence, int(rows.positions[rows.sequences == sequence].max()) + 1)
    machine.step(rows, table)
    return machine.buffers[name]


def buffer(name: str, width: int) -> ops.Buffer:
    return ops.Buffer(name, width)


def test_embed():
    table = RNG.normal(size=(100, 4)).astype(np.float32)
    machine = machine_of(ops.Embed(buffer("x", 4), matrix(table), scale=2.0))
    x = run(machine, batch([0, 1, 2], tokens=[7, 99, 7]), "x")
    np.testing.assert_array_equal(x, 2 * table[[7, 99, 7]])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_rms_norm(groups):
    x = RNG.normal(size=(3, 8)).astype(np.float32)
    weight = RNG.normal(size=8 // groups).astype(np.float32)
    op = ops.RMSNorm(buffer("x", 8), buffer("x", 8), weight, eps=0.5, groups=groups)
    expected = np.empty_like(x)
    for row in range(3):
        for part in np.split(np.arange(8), groups):
            scale = math.sqrt(sum(float(v) ** 2 for v in x[row, part]) / len(part) + 0.5)
            expected[row, part] = x[row, part] / scale * weight
    np.testing.assert_allclose(run(machine_of(op, x=x), batch([0, 1, 2]), "x"), expected, rtol=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [None, np.arange(8, dtype=np.float32)])
def test_layer_norm(groups, bias):
    x = RNG.normal(3, 2, size=(3, 8)).astype(np.float32)
    weight = RNG.normal(size=8).astype(np.float32)
    op = ops.LayerNorm(buffer("x", 8), buffer("y", 8), weight, bias, eps=0.5, groups=groups)
    expected = np.empty_like(x)
    for row in range(3):
        for part in np.split(np.arange(8), groups):
            values = [float(v) for v in x[row, part]]
            mean = sum(values) / len(values)
            scale = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) + 0.5)
            expected[row, part] = [(v - mean) / scale for v in values] * weight[part]
    expected += 0 if bias is None else bias
    np.testing.assert_allclose(run(machine_of(op, x=x), batch([0, 1, 2]), "y"), expected, atol=1e-6)


def test_add_positions():
    x, table = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(6, 4)).astype(np.float32)
    op = ops.AddPositions(buffer("x", 4), matrix(table))
    got = run(machine_of(op, x=x), batch([5, 0, 1], [1, 0, 0]), "x")
    np.testing.assert_array_equal(got, x + table[[5, 0, 1]])
    with pytest.raises(ValueError, match="6 positions"):
        run(machine_of(op, x=x[:1]), batch([6]), "x")


def test_scaled_add_and_activation():
    x, y = (RNG.normal(size=(2, 4)).astype(np.float32) for _ in range(2))
    add = ops.Add(buffer("x", 4), buffer("y", 4), scale=0.25)
    np.testing.assert_allclose(run(machine_of(add, x=x, y=y), batch([0, 1]), "y"), y + x / 4, rtol=1e-6)
    activation = ops.Activation(buffer("x", 4), buffer("x", 4), "gelu")
    expected = ACTIVATIONS["gelu"](x)
    np.testing.assert_array_equal(run(machine_of(activation, x=x), batch([0, 1]), "x"), expected)


def test_scale_queries():
    q = np.ones((4, 2), np.float32)
    op = ops.ScaleQueries(buffer("q", 2), beta=0.5, length=8)
    got = run(machine_of(op, q=q), batch([0, 7, 8, 31]), "q")
    expected = [1.0, 1.0, 1 + 0.5 * math.log(2), 1 + 0.5 * math.log(4)]
    np.testing.assert_allclose(got, np.repeat(np.array(expected)[:, None], 2, axis=1), rtol=1e-6)


@pytest.mark.parametrize("width", [1, 4])
def test_sigmoid_gate(width):
    gate, x = RNG.normal(size=(3, width)).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32)
    op = ops.SigmoidGate(buffer("gate", width), buffer("x", 4))
    got = run(machine_of(op, gate=gate, x=x), batch([0, 1, 2]), "x")
    np.testing.assert_allclose(got, x / (1 + np.exp(-gate)), rtol=1e-6)


def route(scores, top=2, **how) -> tuple[list[list[int]], np.ndarray]:
    """The experts chosen for each row of scores, and their routing_weights."""
    scores = np.array(scores, np.float32)
    op = ops.Route(*(buffer("s", scores.shape[1]), buffer("e", top), buffer("w", top)), **how)
    machine = machine_of(op, s=scores)
    chosen = run(machine, batch(range(len(scores))), "e").astype(int).tolist()
    return chosen, machine.buffers["w"]


def test_route_by_softmax():
    scores = np.log([[1.0, 4.0, 3.0, 2.0], [2.0, 2.0, 1.0, 2.0]])
    chosen, routing_weights = route(scores, scoring="softmax", normalised=False)
    assert chosen == [[1, 2], [0, 1]]  # lower numbers first among equals
    np.testing.assert_allclose(routing_weights, [[0.4, 0.3], [2 / 7, 2 / 7]], rtol=1e-6)
    _, routing_weights = route(scores, scoring="softmax", scale=2.0)
    np.testing.assert_allclose(routing_weights, [[8 / 7, 6 / 7], [1, 1]], rtol=1e-6)


def test_route_with_a_bias_for_the_choice_only():
    scores = [[-1.0, 0.0, 1.0, 2.0]]
    bias = np.array([1.0, 0.0, 0.0, 0.0], np.float32)
    chosen, routing_weights = route(scores, scoring="sigmoid", bias=bias, normalised=False)
    assert chosen == [[0, 3]]
    np.testing.assert_allclose(routing_weights, [[1 / (1 + math.e), 1 / (1 + math.exp(-2))]], rtol=1e-6)


def test_route_within_groups():
    """The two best of a group decide, not the best: the second group has 0.9 and nothing else."""
    probabilities = np.array([[0.6, 0.55, 0.9, 0.1, 0.5, 0.45]])
    scores = np.log(probabilities / (1 - probabilities))
    how = {"scoring": "sigmoid", "groups": 3, "normalised": False}
    assert route(scores, top_groups=1, **how)[0] == [[0, 1]]
    assert route(scores, top_groups=2, **how)[0] == [[2, 0]]
    assert route(scores, top=3, top_groups=3, **how)[0] == [[2, 0, 1]]


@pytest.mark.parametrize("limit", [0.0, 0.5])
@pytest.mark.parametrize("biased", [False, True])
def test_moe(limit, biased):
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    gate, up = (RNG.normal(size=(5, 6, 4)).astype(np.float32) for _ in range(2))
    down = RNG.normal(size=(5, 3, 6)).astype(np.float32)
    biases = [RNG.normal(size=(5, n)).astype(np.float32) if biased else None for n in (6, 6, 3)]
    chosen = np.array([[4, 0], [0, 2], [2, 4]], np.float32)  # never 1 or 3
    routing_weights = RNG.normal(size=(3, 2)).astype(np.float32)
    op = ops.MoE(
        *(buffer("x", 4), buffer("e", 2), buffer("w", 2), buffer("y", 3)),
        *(tuple(matrix(m) for m in stack) for stack in (gate, up, down)),
        "silu",
        *biases,
        limit=limit,
        alpha=1.5,
    )
    expected = np.zeros((3, 3))
    for row in range(3):
        for e, share in zip(chosen[row].astype(int), routing_weights[row], strict=True):
            g, u = gate[e] @ x[row], up[e] @ x[row]
            if biased:
                g, u = g + biases[0][e], u + biases[1][e]
            if limit:
                g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
            inner = g * sigmoid(1.5 * g) * (u + 1) if limit else g * sigmoid(g) * u
            expected[row] += share * (down[e] @ inner + (biases[2][e] if biased else 0))
    got = run(machine_of(op, x=x, e=chosen, w=routing_weights), batch([0, 1, 2]), "y")
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_sinks_take_their_share_of_attention():
    """With keys of zeros all scores are equal: n tokens and exp(sink) share what there is."""
    heads, n = 2, 3
    sinks = np.log(np.array([1.0, 5.0], np.float32))
    q, k = np.ones((n, heads * 2), np.float32), np.zeros((n, 2), np.float32)
    v = np.ones((n, 2), np.float32)
    op = ops.Attend(
        *(buffer("q", 4), buffer("k", 2), buffer("v", 2), buffer("a", 4)),
        layer=0,
        heads=heads,
        kv_heads=1,
        head_dim=2,
        scale=1.0,
        sinks=sinks,
    )
    machine = machine_of(op, layers=[ops.CacheLayer(1, 2)], q=q, k=k, v=v)
    got = run(machine, batch([0, 1, 2]), "a")
    expected = [[m / (m + s) for s in (1, 1, 5, 5)] for m in (1, 2, 3)]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_rope_by_length():
    """Each sequence by its own length; that a step is told of goes before what it can see."""
    x = np.tile(np.array([1.0, 0.0], np.float32), (5, 1))
    plain = np.array([0.1], np.float32)
    op = ops.RoPE(
        *(buffer("x", 2), 1, plain, True),
        original_context=4,
        long_inv_freq=lambda length: np.array([length / 100], np.float32),
    )
    rows = batch([2, 3, 5, 6, 1], [0, 0, 1, 1, 2])
    angles = np.array([0.2, 0.3, 5 * 0.07, 6 * 0.07, 0.1])  # sequences of 4, 7 and 2 tokens
    got = run(machine_of(op, x=x), rows, "x")
    np.testing.assert_allclose(got, np.stack([np.cos(angles), np.sin(angles)], axis=1), rtol=1e-6)
    told = replace(rows, lengths=np.array([4, 4, 7, 7, 9], np.int32))
    angles[4] = 0.09
    got = run(machine_of(op, x=x), told, "x")
    np.testing.assert_allclose(got, np.stack([np.cos(angles), np.sin(angles)], axis=1), rtol=1e-6)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("bias", [None, np.arange(5, dtype=np.float32)])
def test_matmul(accumulate, bias):
    x, y, w = (RNG.normal(size=s).astype(np.float32) for s in [(3, 4), (3, 5), (5, 4)])
    op = ops.MatMul(buffer("x", 4), buffer("y", 5), matrix(w), bias, accumulate)
    expected = x @ w.T + (bias if bias is not None else 0) + (y if accumulate else 0)
    np.testing.assert_allclose(run(machine_of(op, x=x, y=y), batch([0, 1, 2]), "y"), expected, rtol=1e-5)


def test_matmul_without_keeping(monkeypatch):
    """A matrix beyond the budget is dequantised in blocks at every use, with the same result."""
    monkeypatch.setattr("kukri.runtime.reference.machine._CHUNK_WEIGHTS", 12)  # 3 + 3 + 1 rows
    x, w = RNG.normal(size=(2, 4)).astype(np.float32), RNG.normal(size=(7, 4)).astype(np.float32)
    op = ops.MatMul(buffer("x", 4), buffer("y", 7), matrix(w))
    machine = machine_of(op, x=x)
    kept = run(machine, batch([0, 1]), "y")
    frugal = ReferenceMachine(machine.program, 4, keep_bytes=100)
    frugal.buffers["x"] = x
    # Each of two sums of four products, in whatever order, is off by up to 4 · 2⁻²⁴ of their magnitudes.
    assert (
        np.abs(run(frugal, batch([0, 1]), "y") - kept) <= 2 * 4 * 2.0**-24 * (np.abs(x) @ np.abs(w).T)
    ).all()


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(interleaved):
    """Pairs are complex numbers that turn; dimensions beyond the pairs stay."""
    x = RNG.normal(size=(2, 2 * 6)).astype(np.float32)
    inv_freq = np.array([1.0, 0.25], np.float32)
    op = ops.RoPE(buffer("x", 12), 2, inv_freq, interleaved, attention_factor=1.5)
    got = run(machine_of(op, x=x), batch([3, 40]), "x").reshape(2, 2, 6)
    pairs = [(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)]
    for row, position in enumerate([3, 40]):
        for head in range(2):
            before = x.reshape(2, 2, 6)[row, head]
            np.testing.assert_array_equal(got[row, head, 4:], before[4:])
            for (i, j), frequency in zip(pairs, inv_freq, strict=True):
                turned = complex(before[i], before[j]) * np.exp(1j * position * float(frequency)) * 1.5
                assert got[row, head, i] == pytest.approx(turned.real, abs=1e-5)
                assert got[row, head, j] == pytest.approx(turned.imag, abs=1e-5)


def attend(q, k, v, window=0, softcap=0.0, scale=0.5):
    """One query at a time, over the keys it sees: q [n, heads, d], k and v [n, kv_heads, d]."""
    out = np.empty(q.shape)
    group = q.shape[1] // k.shape[1]
    for p in range(len(q)):
        first = max(0, p - window + 1) if window else 0
        for h in range(q.shape[1]):
            scores = scale * k[first : p + 1, h // group].astype(float) @ q[p, h]
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max())
            out[p, h] = weights / weights.sum() @ v[first : p + 1, h // group]
    return out.reshape(len(q), -1)


@pytest.mark.parametrize("page_size", [1, 3, 64])
@pytest.mark.parametrize(
    "kwargs", [{}, {"window": 1}, {"window": 4}, {"window": 50}, {"softcap": 0.5}], ids=str
)
def test_attend(kwargs, page_size):
    n, heads, kv_heads, d = 11, 6, 2, 4
    q, k, v = (RNG.normal(size=(n, h, d)).astype(np.float32) for h in (heads, kv_heads, kv_heads))
    names = [
        buffer("q", heads * d),
        buffer("k", kv_heads * d),
        buffer("v", kv_heads * d),
        buffer("a", heads * d),
    ]
    op = ops.Attend(*names, layer=0, heads=heads, kv_heads=kv_heads, head_dim=d, scale=0.5, **kwargs)
    flat = {"q": q.reshape(n, -1), "k": k.reshape(n, -1), "v": v.reshape(n, -1)}
    layers = [ops.CacheLayer(kv_heads, d)]
    whole = machine_of(op, layers=layers, n_pages=20, page_size=page_size, **flat)
    expected = attend(q, k, v, **kwargs)
    got = run(whole, batch(list(range(n))), "a", page_size, 20)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)

    table = PageTable(20, page_size=page_size)
    table.extend(0, n)
    stepwise = machine_of(op, layers=layers, n_pages=20, page_size=page_size)
    for start, stop in ((0, 5), (5, 6), (6, 11)):
        stepwise.buffers.update({name: values[start:stop] for name, values in flat.items()})
        stepwise.step(batch(list(range(start, stop))), table)
        np.testing.assert_allclose(stepwise.buffers["a"], expected[start:stop], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("silu", lambda x: x / (1 + math.exp(-x)) if x > -700 else 0.0),
        ("gelu", lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("relu2", lambda x: max(x, 0.0) ** 2),
        ("identity", lambda x: x),
    ],
)
def test_gated_activation(kind, function):
    gate = np.array([[-1e4, -90, -3, -0.5, 0, 0.5, 3, 90]], np.float32)
    up = np.full_like(gate, 2.0)
    op = ops.GatedActivation(buffer("gate", 8), buffer("up", 8), buffer("gate", 8), kind)
    got = run(machine_of(op, gate=gate, up=up), batch([0]), "gate")
    np.testing.assert_allclose(got[0], [2 * function(float(x)) for x in gate[0]], rtol=1e-5, atol=1e-6)
    assert got.dtype == np.float32
    assert set(ACTIVATIONS) == {"silu", "gelu", "gelu_tanh", "relu2", "identity", "tanh"}


def test_add_select_and_soft_cap():
    x, y = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32)
    names = buffer("x", 4), buffer("y", 4), buffer("z", 4)
    machine = machine_of(
        ops.Add(*names[:2]), ops.SelectRows(*names[1:]), ops.SoftCap(names[2], 2.0), x=x, y=y
    )
    z = run(machine, batch([0, 1, 2], logits_indices=[0, 2]), "z")
    np.testing.assert_allclose(z, 2 * np.tanh((x + y)[[0, 2]] / 2), rtol=1e-6)


@pytest.fixture
def gemma3(conformance):
    return open_program(conformance("gemma3"))[1]


def test_sequences_do_not_see_each_other(gemma3, feed):
    """Three sequences of different lengths, their rows mixed in every step, on scattered small pages."""
    prompts = [RNG.integers(3, 256, size=n).astype(np.int32) for n in (37, 9, 23)]
    alone = [feed(ReferenceMachine(gemma3, 2), PageTable(2), prompt) for prompt in prompts]

    machine, table = ReferenceMachine(gemma3, 40, page_size=4), PageTable(40, max_sequences=3, page_size=4)
    table.extend(1, 30)
    table.truncate(1, 0)  # the free pages are now out of order
    fed, got = [0, 0, 0], [[], [], []]
    for chunk in ([5, 1, 3], [1, 2, 20], [16, 6, 0], [15, 0, 0]):
        owners = [s for s in range(3) for _ in range(chunk[s])]
        positions = [fed[s] + i for s in range(3) for i in range(chunk[s])]
        order = np.argsort(positions, kind="stable")  # mixes the sequences, keeps each in order
        owners, positions = np.array(owners, np.int32)[order], np.array(positions, np.int32)[order]
        for s in range(3):
            table.extend(s, chunk[s])
            fed[s] += chunk[s]
        tokens = np.array([prompts[s][p] for s, p in zip(owners, positions, strict=True)], np.int32)
        logits = machine.step(Batch(tokens, owners, positions, np.arange(len(tokens), dtype=np.int32)), table)
        for s in range(3):
            got[s].append(logits[owners == s])
    for s in range(3):
        assert fed[s] == len(prompts[s])
        np.testing.assert_allclose(np.concatenate(got[s]), alone[s], rtol=0, atol=5e-5)


def test_wanted_rows(gemma3, feed):
    ids = RNG.integers(3, 256, size=12).astype(np.int32)
    every = feed(ReferenceMachine(gemma3, 1), PageTable(1), ids)
    for logits_indices in ([], [11], [0, 5, 6]):
        table = PageTable(1)
        table.extend(0, 12)
        logits = ReferenceMachine(gemma3, 1).step(
            batch(list(range(12)), logits_indices=logits_indices, tokens=ids), table
        )
        assert logits.dtype == np.float32
        assert logits.shape == (len(logits_indices), 256)
        np.testing.assert_allclose(logits, every[logits_indices], rtol=0, atol=5e-5)


def test_rewritten_positions(gemma3, feed):
    """After a truncation the same pages take other tokens."""
    ids = RNG.integers(3, 256, size=20).astype(np.int32)
    machine, table = ReferenceMachine(gemma3, 3, page_size=8), PageTable(3, page_size=8)
    feed(machine, table, np.flip(ids))
    table.truncate(0, 0)
    expected = feed(machine, table, ids)
    table.truncate(0, 11)
    feed(machine, table, [5, 6, 7])
    table.truncate(0, 11)
    np.testing.assert_allclose(feed(machine, table, ids[11:]), expected[11:], rtol=0, atol=5e-5)


def test_impossible_batches(gemma3):
    table = PageTable(1)
    table.extend(0, 4)
    machine = ReferenceMachine(gemma3, 1)
    for rows, message in (
        (batch([4]), "out of the range of its sequence"),
        (batch([-1]), "out of the range of its sequence"),
        (batch([0], tokens=[256]), "vocabulary of 256"),
        (batch([0], tokens=[-1]), "vocabulary of 256"),
        (batch([0] * 513), "512 rows"),
        (batch([0, 1], tokens=[3]), "rows"),
        (batch([0], logits_indices=[0] * 513), "512 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            machine.step(rows, table)
    with pytest.raises(ValueError, match="pages of 8"):
        machine.step(batch([0]), PageTable(1, page_size=8))
