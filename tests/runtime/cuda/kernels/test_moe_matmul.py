"""Mixtures of experts against the reference: routing, decode products of pairs, and prefill by expert."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.formats import FORMATS
from kukri.runtime import ops
from kukri.runtime.cuda.kernels.common.common import CLIPPED, SILU
from kukri.runtime.cuda.kernels.experts.moe_matmul import moe_decode_matmul, moe_float_matmul, quantize_pairs
from kukri.runtime.cuda.kernels.experts.moe_permute import combine_experts, permute_by_expert
from kukri.runtime.cuda.kernels.experts.moe_routing import route
from kukri.runtime.cuda.kernels.matmul.prefill_sm80 import prefill_matmul_sm80
from kukri.runtime.cuda.kernels.matmul.quantize import convert_to_f16
from kukri.runtime.cuda.kernels.matmul.unpack import READERS
from kukri.runtime.reference.activations import sigmoid, silu
from kukri.runtime.reference.moe import route as expected_route

from ..simulator import run
from .test_unpack import packed, random_tensor

PLAIN = {"CHOSEN": 1, "M": 1, "KS": 2, "WARPS": 2, "GATED": 0, "BIAS": 0, "EMIT": 0, "STORE": 1, "KIND": 0}
PLAIN |= {"TOKENS": 1, "PDL": 0}


@pytest.mark.parametrize(
    ("scoring", "n", "top", "groups", "extras"),
    [("softmax", 7, 3, 1, False), ("sigmoid", 48, 4, 4, True), ("softmax", 70, 6, 1, True)],
)
def test_route(scoring, n, top, groups, extras):
    rng, rows = np.random.default_rng(n), 3
    scores = np.round(rng.standard_normal((rows, n)) * 4).astype(np.float32) / 4  # many are equal
    bias = np.round(rng.standard_normal(n) * 4).astype(np.float32) / 16 if extras else None
    scales = rng.uniform(0.5, 2, n).astype(np.float32) if extras else None
    s, e, w = ops.Buffer("s", n), ops.Buffer("e", top), ops.Buffer("w", top)
    op = ops.Route(s, e, w, scoring, bias, extras, 1.5, groups, 2, 2, scales)
    buffers = {"s": scores}
    expected_route(op, buffers)
    experts, routing_weights = np.full((2, rows, top), np.nan, np.float32)
    constants = {"SIGMOID": int(scoring == "sigmoid"), "BIAS": int(extras), "SCALES": int(extras), "PDL": 0}
    constants |= {"NORMALISED": int(extras), "GROUPS": groups, "TOP_GROUPS": 2, "GROUP_BEST": 2}
    arguments = [scores, 4 * n, n, 0 if bias is None else bias, 0 if scales is None else scales, 1.5]
    shared = 4 * (2 * n + 2 * top + groups)
    run(route, constants, (rows,), 32, [*arguments, experts, 4 * top, routing_weights, 4 * top, top], shared)
    np.testing.assert_array_equal(experts, buffers["e"])
    np.testing.assert_allclose(routing_weights, buffers["w"], rtol=1e-5)


def test_nan_scores_select_an_expert_that_exists():
    scores, (experts, routing_weights) = np.full((1, 5), np.nan, np.float32), np.zeros((2, 1, 2), np.float32)
    constants = {"SIGMOID": 0, "BIAS": 0, "SCALES": 0, "NORMALISED": 1, "GROUPS": 1, "PDL": 0}
    run(route, constants, (1,), 32, [scores, 20, 5, 0, 0, 1.0, experts, 8, routing_weights, 8, 2], 64)
    np.testing.assert_array_equal(experts, 0)
    assert np.isnan(routing_weights).all()


def quantized(x: np.ndarray, top: int = 1) -> np.ndarray:
    """Rows as `moe_decode_matmul` reads them."""
    width = x.shape[1]
    out = np.zeros((len(x), 2 * width + 64 * -(-width // 128)), np.uint8)
    arguments = [x, 4 * width, 0, top, width // 32, out, out.shape[1]]
    run(quantize_pairs, {"PDL": 0, "TOKENS": 1}, (-(-width // 128), len(x)), 128, arguments)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_formats(name):
    """Two rows, each with two of three experts."""
    width = {32: 96, 64: 448}.get(FORMATS[name].block_size, 512)
    rng, tensors = np.random.default_rng(2), [random_tensor(name, 21, width, seed) for seed in range(3)]
    x = rng.standard_normal((2, width)).astype(np.float32)
    x[0, 3] = 40  # an outlier
    rows, chosen = np.stack([packed(t) for t in tensors]), np.array([[2, 0], [1, 2]], np.float32)
    codes_of_x, out = quantized(x), np.full((4, 21), np.nan, np.float32)
    arguments = [rows, 0, rows[0].size, rows.shape[2], width // 32, 21, chosen, 8, 2]
    arguments += [codes_of_x, codes_of_x.shape[1], 0, 0, 0, out, 2 * 84, 84, 0, 0]
    run(moe_decode_matmul, READERS[name] | PLAIN, (2, 4), 64, arguments, 128)
    weights = np.stack([t.dequantize() for t in tensors]).astype(np.float64)
    expected = np.einsum("pow,pw->po", weights[[2, 0, 1, 2]], x[[0, 0, 1, 1]])
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("kind", [SILU, CLIPPED])
def test_gate_and_up(kind):
    """Biases, activation, and the quantised result, which the next product reads."""
    rng, width, inner = np.random.default_rng(3), 64, 32
    gate, up = (random_tensor("Q8_0", 2 * inner, width, i) for i in range(2))
    downs = [random_tensor("Q8_0", 6, inner, 2 + i) for i in range(2)]
    biases = rng.standard_normal((2, 2, inner)).astype(np.float32)
    x, chosen = rng.standard_normal((1, width)).astype(np.float32), np.array([[1, 0]], np.float32)
    a, b, codes_of_x = packed(gate), packed(up), quantized(x)
    codes = np.zeros((2, 2 * inner + 64), np.uint8)
    constants = {"GATED": 1, "BIAS": 1, "EMIT": 1, "STORE": 0, "KIND": kind, "LIMIT": 0.5, "ALPHA": 1.7}
    arguments = [
        a,
        b,
        inner // 16 * a.shape[1],
        a.shape[1],
        2,
        inner,
        chosen,
        8,
        2,
        codes_of_x,
        codes_of_x.shape[1],
        0,
    ]
    arguments += [biases[0], biases[1], 0, 0, 0, codes, codes.shape[1]]
    run(
        moe_decode_matmul,
        READERS["Q8_0"] | PLAIN | constants | {"M": 4, "KS": 1, "WARPS": 1},
        (1, 2),
        32,
        arguments,
        512,
    )
    c, out = np.stack([packed(down) for down in downs]), np.full((2, 6), np.nan, np.float32)
    arguments = [c, 0, c[0].size, c.shape[2], 1, 6, chosen, 8, 2]
    arguments += [codes, 2 * codes.shape[1], codes.shape[1], 0, 0, out, 48, 24, 0, 0]
    run(moe_decode_matmul, READERS["Q8_0"] | PLAIN, (1, 2), 64, arguments, 128)
    for pair, expert in enumerate((1, 0)):
        part = slice(expert * inner, expert * inner + inner)
        g = gate.dequantize()[part] @ x[0] + biases[0, expert]
        u = up.dequantize()[part] @ x[0] + biases[1, expert]
        if kind == SILU:
            h = silu(g) * u
        else:
            g, u = np.minimum(g, 0.5), u.clip(-0.5, 0.5)
            h = g * sigmoid(np.float32(1.7) * g) * (u + 1)
        expected = downs[expert].dequantize() @ h
        np.testing.assert_allclose(out[pair], expected, atol=1e-3 * np.abs(expected).max())


def test_floats_and_heads():
    """Without a choice, pair `choice` of a row takes matrix `choice`, out of one row into one row."""
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((3, 9, 8)).astype(np.float32)
    x = rng.standard_normal((2, 36)).astype(np.float32)
    out = np.full((2, 33), np.nan, np.float32)
    arguments = [weights, 9 * 32, 32, 8, 9, 0, 0, 3, x, 4 * 36, 48, 0, out, 4 * 33, 44]
    run(moe_float_matmul, {"FLOAT": 32, "CHOSEN": 0, "BIAS": 0, "PDL": 0}, (2, 6), 256, arguments)
    expected = np.einsum("hoi,rhi->rho", weights, x.reshape(2, 3, 12)[..., :8])
    np.testing.assert_allclose(out.reshape(2, 3, 11)[..., :9], expected, rtol=1e-4, atol=1e-5)
    assert np.isnan(out.reshape(2, 3, 11)[..., 9:]).all()


@pytest.mark.slow
@pytest.mark.parametrize(("n_experts", "size"), [(3, 64), (300, 128)])
def test_prefill(n_experts, size):
    """Pairs sorted by expert, multiplied in tiles, and their results added up for each row."""
    rng, rows, top, width, outputs = np.random.default_rng(5), 130, 2, 64, 20
    used = [0, 1, 2] if n_experts == 3 else [7, 299, 0]
    first = random_tensor("Q4_0", outputs, width)
    weights = packed(first)
    matrices = np.zeros((n_experts, *weights.shape), np.uint8)
    dequantized = {}
    for e in used:
        tensor = random_tensor("Q4_0", outputs, width, e)
        matrices[e], dequantized[e] = packed(tensor), tensor.dequantize()
    x = rng.standard_normal((rows, width)).astype(np.float32)
    chosen = np.array([rng.permutation(used)[:top] for _ in range(rows)], np.float32)
    chosen[:, 0] = used[0]
    chosen[:, 1] = np.where(chosen[:, 1] == used[0], used[1], chosen[:, 1])
    routing_weights = rng.uniform(0, 1, (rows, top)).astype(np.float32)
    biases = rng.standard_normal((n_experts, outputs)).astype(np.float32)
    counts, tiles = np.full(n_experts, -1, np.int32), np.full((8, 4), -1, np.int32)
    sources, places = np.full((2, rows * top), -1, np.int32)
    arguments = [chosen, 4 * top, rows, top, n_experts, counts, tiles, sources, places]
    run(permute_by_expert, {"ROWS": size, "PDL": 0}, (1,), 256, arguments, 8 * n_experts)
    n_tiles = {64: 6, 128: 4}[size]  # more than 128 pairs of one expert
    assert tiles[0, 0] == n_tiles
    assert sorted(places) == list(range(rows * top))
    np.testing.assert_array_equal(sources[places.reshape(rows, top)], np.arange(rows)[:, None].repeat(top, 1))
    rows_f16, scales = np.zeros((rows, 128), np.float16), np.zeros(rows, np.float32)
    run(
        convert_to_f16,
        {"PDL": 0},
        (1, rows),
        256,
        [x, 4 * width, width, rows_f16, 256, scales, 0, 0.0, 0.0],
        64,
    )
    product = np.full((rows * top, outputs), np.nan, np.float32)
    arguments = [matrices, weights.shape[1], width // 32, outputs, rows_f16, 256, scales, rows, biases]
    arguments += [product, 4 * outputs, tiles, sources, weights.size]
    constants = READERS["Q4_0"] | {"BIAS": 1, "ACCUMULATE": 0, "EXPERTS": 2, "PDL": 0}
    run(prefill_matmul_sm80, constants, (n_tiles, 1), 256, arguments, 65536)
    out = np.full((rows, outputs), np.nan, np.float32)
    arguments = [routing_weights, 4 * top, places, top, product, 4 * outputs, out, 4 * outputs, outputs]
    run(combine_experts, {"PERMUTED": 1, "PDL": 0}, (1, rows), 256, arguments)
    expected = np.zeros((rows, outputs))
    for row in range(rows):
        for j in range(top):
            e = int(chosen[row, j])
            expected[row] += routing_weights[row, j] * (dequantized[e] @ x[row] + biases[e])
    assert np.linalg.norm(out - expected) < 1e-3 * np.linalg.norm(expected)
