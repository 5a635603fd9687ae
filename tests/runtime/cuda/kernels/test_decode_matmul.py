"""Decode products, and the quantisation of their activations, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kukri.quant.formats import FORMATS
from kukri.runtime.cuda.kernels.common.common import SILU
from kukri.runtime.cuda.kernels.common.sums import SumArguments
from kukri.runtime.cuda.kernels.matmul.decode_matmul import decode_matmul, two_matmuls
from kukri.runtime.cuda.kernels.matmul.quantize import convert_to_f16, quantize
from kukri.runtime.cuda.kernels.matmul.unpack import READERS
from kukri.runtime.reference.activations import silu

from ..simulator import run
from .codes import dequantized, empty, quantized
from .test_unpack import packed, random_tensor

PLAIN = {
    "GATED": 0,
    "NORMED": 0,
    "BIAS": 0,
    "ACCUMULATE": 0,
    "EMIT": 0,
    "STORE": 1,
    "PDL": 0,
    "KIND": 0,
}


@pytest.mark.parametrize("tokens", [1, 8])
def test_quantize(tokens):
    rows = min(tokens, 2)
    x = np.random.default_rng(0).standard_normal((rows, 160)).astype(np.float32)
    x[0, 32:64] = 0
    x[-1, 96] = 300
    weight = np.random.default_rng(1).standard_normal(160).astype(np.float32)
    out, partials = empty(160, tokens), np.full((rows, 5), np.nan, np.float32)
    arguments = [x, 640, 5, weight, out, partials]
    for normed in (0, 1):
        run(quantize, {"NORMED": normed, "PDL": 0, "TOKENS": tokens}, (2, rows), 128, arguments)
        expected = x * weight if normed else x
        peak = np.abs(expected).reshape(rows, 5, 32).max(-1)
        got, scales = dequantized(out, 160, rows, tokens)
        np.testing.assert_allclose(scales[0], peak / 32512, rtol=1e-5)
        assert (np.abs(got - expected).reshape(rows, 5, 32) <= peak[..., None] / 60000).all()
        assert len(out) == len(quantized(x, tokens)[0])
    np.testing.assert_allclose(partials, (x * x).reshape(rows, 5, 32).sum(-1), rtol=1e-5)


def test_to_halves():
    x = np.random.default_rng(0).standard_normal((2, 160)).astype(np.float32)
    x[1] *= 1e6
    out, scales = np.zeros((2, 256), np.float16), np.zeros(2, np.float32)
    run(convert_to_f16, {"PDL": 0}, (1, 2), 256, [x, 640, 160, out, 512, scales, 0, 0.0, 0.0], 64)
    # s, b, h, and of four columns the first and third before the others
    values = out.reshape(2, 2, 4, 4, 2, 2, 2).transpose(0, 1, 3, 4, 2, 6, 5).reshape(2, 256)
    np.testing.assert_allclose(values[:, :160].astype(np.float32) * scales[:, None], x, rtol=1e-3, atol=1e-2)
    assert not values[:, 160:].any()
    assert scales[0] == 1
    assert scales[1] > 1


def padded(n):
    """TOKENS for n rows."""
    return 1 << (n - 1).bit_length()


def multiply(n, constants, weights, n_out, x, epilogue):
    """A product of n rows; `epilogue` are the fields of EpilogueArguments but the last."""
    rows = packed(weights[0])
    others = packed(weights[1]) if len(weights) > 1 else 0
    blocks = weights[0].shape[1] // 32
    constants = READERS[weights[0].format.name] | PLAIN | constants | {"TOKENS": padded(n)}
    grid = -(-n_out * len(weights) // (16 * constants["M"] * (constants["WARPS"] // constants["KS"])))
    shared = 64 * constants["WARPS"] * constants["M"] * constants["TOKENS"]
    arguments = [rows, others, rows.shape[1], blocks, n_out, x, n, *epilogue, *SumArguments()]
    run(decode_matmul, constants, (grid,), 32 * constants["WARPS"], arguments, shared)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("name", READERS)
def test_formats(name, n):
    constants = {"M": 2, "KS": 1, "WARPS": 1} if n == 2 else {"M": 1, "KS": 2, "WARPS": 4}
    width = {32: 480, 64: 448}.get(FORMATS[name].block_size, 512)
    rng, tensor = np.random.default_rng(2), random_tensor(name, 19, width)
    x = rng.standard_normal((n, width)).astype(np.float32)
    x[0, 7] = 100
    raw, values = quantized(x, padded(n))
    out = np.full((n, 19), np.nan, np.float32)
    multiply(n, constants, [tensor], 19, raw, [0, 0, 1.0, 1.0, 0, out, 4 * 19, 0, 0, 0])
    expected = values.astype(np.float64) @ tensor.dequantize().astype(np.float64).T
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_joined_matrices_have_factors_of_their_own():
    """NVFP4 matrices that one product multiplies by, as queries, keys and values."""
    rng = np.random.default_rng(4)
    tensors = [
        replace(random_tensor("NVFP4", 16, 128, seed), factors=(f,)) for seed, f in ((0, 0.1), (1, 2.0))
    ]
    x = rng.standard_normal((1, 128)).astype(np.float32)
    raw, values = quantized(x, 1)
    rows, out = np.concatenate([packed(t) for t in tensors]), np.full((1, 32), np.nan, np.float32)
    constants = READERS["NVFP4"] | PLAIN | {"M": 1, "KS": 1, "WARPS": 2, "TOKENS": 1}
    arguments = [rows, 0, rows.shape[1], 4, 32, raw, 1, 0, 0, 1.0, 1.0, 0, out, 4 * 32, 0, 0, 0]
    run(decode_matmul, constants, (1,), 64, [*arguments, *SumArguments()], 64 * 2)
    expected = values.astype(np.float64) @ np.concatenate([t.dequantize() for t in tensors]).T
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("formats", "n"), [(("Q4_K", "Q6_K"), 1), (("Q8_0", "Q4_0"), 3)])
def test_two_formats(formats, n):
    """Two products in one launch, with matrices of different formats and sizes."""
    rng, tokens = np.random.default_rng(2), padded(n)
    tensors = [random_tensor(formats[0], 48, 512, 1), random_tensor(formats[1], 19, 512, 2)]
    x = rng.standard_normal((n, 512)).astype(np.float32)
    raw, values = quantized(x, tokens)
    constants = PLAIN | {"M": 1, "KS": 2, "WARPS": 2, "TOKENS": tokens} | READERS[formats[0]]
    constants |= {f"{name}_SECOND": value for name, value in READERS[formats[1]].items()}
    outs = [np.full((n, t.shape[0]), np.nan, np.float32) for t in tensors]
    arguments: list[object] = []
    matrices = [packed(t) for t in tensors]
    for matrix, out in zip(matrices, outs, strict=True):
        n_out = out.shape[1]
        epilogue = [0, 0, 1.0, 1.0, 0, out, 4 * n_out, 0, 0, 0, *SumArguments()]
        arguments += [matrix, 0, matrix.shape[1], 16, n_out, raw, n, *epilogue]
    run(two_matmuls, constants, (3 + 2,), 64, [*arguments, 3], 64 * 2 * tokens)
    for tensor, out in zip(tensors, outs, strict=True):
        expected = values.astype(np.float64) @ tensor.dequantize().astype(np.float64).T
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "gated", "plain"),
    [
        (1, {"M": 4, "KS": 2, "WARPS": 2}, {"M": 1, "KS": 2, "WARPS": 4}),
        (
            1,
            {"M": 2, "KS": 1, "WARPS": 2},
            {"M": 2, "KS": 8, "WARPS": 8},
        ),  # more parts than chunks
        (9, {"M": 2, "KS": 1, "WARPS": 2}, {"M": 2, "KS": 2, "WARPS": 2}),
    ],
    ids=["1", "1 in parts", "9"],
)
def test_epilogue(n, gated, plain):
    """Gate, up and activation of normed rows; then a residual add that emits the quantised input of
    the next norm's product.
    """
    rng = np.random.default_rng(3)
    gate, up = random_tensor("Q4_0", 64, 256, 1), random_tensor("Q4_0", 64, 256, 2)
    x = rng.standard_normal((n, 256)).astype(np.float32) * 4
    raw, values = quantized(x, padded(n))
    partials = (x * x).reshape(n, 8, 32).sum(-1).astype(np.float32)
    out, codes = np.full((n, 64), np.nan, np.float32), empty(64, padded(n))
    epilogue = [partials, 8, 1 / 256, 1e-5, 0, out, 256, codes, 0, 0]
    constants = gated | {"GATED": 1, "NORMED": 1, "EMIT": 1, "KIND": SILU}
    multiply(n, constants, [gate, up], 64, raw, epilogue)
    normed = values / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    expected = silu(normed @ gate.dequantize().T) * (normed @ up.dequantize().T)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        dequantized(codes, 64, n, padded(n))[0], out, rtol=1e-4, atol=1e-4 * np.abs(out).max()
    )

    down, bias = random_tensor("Q8_0", 64, 64, 3), rng.standard_normal(64).astype(np.float32)
    weight, x = rng.standard_normal(64).astype(np.float32), rng.standard_normal((n, 64)).astype(np.float32)
    raw, values = quantized(out, padded(n))
    out, codes, partials = x.copy(), empty(64, padded(n)), np.zeros((n, 2), np.float32)
    epilogue = [0, 0, 1.0, 1.0, bias, out, 256, codes, weight, partials]
    multiply(n, plain | {"BIAS": 1, "ACCUMULATE": 1, "EMIT": 2}, [down], 64, raw, epilogue)
    np.testing.assert_allclose(out, x + bias + values @ down.dequantize().T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(partials, (out * out).reshape(n, 2, 32).sum(-1), rtol=1e-5)
    expected = out * weight
    np.testing.assert_allclose(
        dequantized(codes, 64, n, padded(n))[0], expected, atol=1e-4 * np.abs(expected).max()
    )
