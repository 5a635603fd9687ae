"""Products of few rows, and what brings their activations into 8 bits, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.activations import silu
from kukri.runtime.cuda.kernels.common import SILU
from kukri.runtime.cuda.kernels.matvec import matvec
from kukri.runtime.cuda.kernels.quantize import quantize, to_halves
from kukri.runtime.cuda.kernels.unpack import READERS

from .simulator import run
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
    "EXACT": 0,
}


def eight_bits(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows in 8 bits as `quantize` is to write them, and what they stand for."""
    blocks = x.reshape(len(x), -1, 32)
    peak = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        codes = np.rint(blocks * np.where(peak > 0, np.float32(127) / peak, 0).astype(np.float32))
    d = peak[..., 0] * np.float32(1 / 127)
    halves = codes.reshape(*d.shape, 2, 16).sum(-1)
    scales = np.stack([d, d * halves.sum(-1), d * halves[..., 0], d * halves[..., 1]], -1).astype(np.float32)
    raw = [
        codes.astype(np.int8).reshape(len(x), -1).view(np.uint8),
        scales.reshape(len(x), -1).view(np.uint8),
    ]
    return np.concatenate(raw, axis=1), (codes * d[..., None]).reshape(x.shape).astype(np.float32)


def test_quantize():
    x = np.random.default_rng(0).standard_normal((2, 160)).astype(np.float32)
    x[1, 32:64] = 0
    weight = np.random.default_rng(1).standard_normal(160).astype(np.float32)
    out, partials = np.full((2, 160 + 5 * 16), 0xFF, np.uint8), np.full((2, 5), np.nan, np.float32)
    arguments = [x, 640, 5, weight, out, out.shape[1], partials]
    run(quantize, {"NORMED": 0, "PDL": 0}, (2, 2), 128, arguments)
    expected, _ = eight_bits(x)
    assert np.abs(out[:, :160].view(np.int8).astype(int) - expected[:, :160].view(np.int8)).max() <= 1
    np.testing.assert_allclose(out[:, 160:].view(np.float32), expected[:, 160:].view(np.float32), rtol=0.02)
    run(quantize, {"NORMED": 1, "PDL": 0}, (2, 2), 128, arguments)
    np.testing.assert_allclose(partials, (x * x).reshape(2, 5, 32).sum(-1), rtol=1e-5)
    expected, _ = eight_bits(x * weight)
    assert np.abs(out[:, :160].view(np.int8).astype(int) - expected[:, :160].view(np.int8)).max() <= 1


def test_to_halves():
    x = np.random.default_rng(0).standard_normal((2, 72)).astype(np.float32)
    x[1] *= 1e6
    out, scales = np.zeros((2, 128), np.float16), np.zeros(2, np.float32)
    run(to_halves, {"PDL": 0}, (1, 2), 256, [x, 288, 72, out, 256, scales], 64)
    np.testing.assert_allclose(out[:, :72].astype(np.float32) * scales[:, None], x, rtol=1e-3, atol=1e-2)
    assert scales[0] == 1
    assert scales[1] > 1


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("name", READERS)
def test_formats(name, n):
    width = 512 if READERS[name]["HALVES"] or name in ("Q4_K", "Q5_K", "IQ4_XS") else 480
    rng, tensor = np.random.default_rng(2), random_tensor(name, 19, width)
    rows, (x, values) = packed(tensor), eight_bits(rng.standard_normal((n, width)).astype(np.float32))
    out = np.full((n, 19), np.nan, np.float32)
    sizes = {"N": n, "R": 2, "U": 2, "KS": 2, "WARPS": 4}
    arguments = [
        rows,
        0,
        rows.shape[1],
        width // 32,
        19,
        x,
        x.shape[1],
        0,
        0,
        1.0,
        1.0,
        0,
        out,
        4 * 19,
        0,
        0,
        0,
        0,
    ]
    run(matvec, READERS[name] | PLAIN | sizes, (5,), 128, arguments, 4096)
    expected = values.astype(np.float64) @ tensor.dequantize().astype(np.float64).T
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("ks", "u"), [(1, 4), (4, 1)])
def test_what_follows(ks, u):
    """Gate, up and activation of a normed row; then a residual add that emits the next norm's codes."""
    rng = np.random.default_rng(3)
    gate, up = random_tensor("Q4_0", 64, 256, 1), random_tensor("Q4_0", 64, 256, 2)
    x = rng.standard_normal((1, 256)).astype(np.float32) * 4
    coded, values = eight_bits(x)
    partials = (x * x).reshape(1, 8, 32).sum(-1).astype(np.float32)
    out, codes = np.full((1, 64), np.nan, np.float32), np.zeros((1, 64 + 32), np.uint8)
    sizes = {"N": 1, "R": 4, "U": u, "KS": ks, "WARPS": 8 * ks, "EXACT": 0}
    how = READERS["Q4_0"] | PLAIN | sizes | {"GATED": 1, "NORMED": 1, "EMIT": 1, "KIND": SILU}
    a, b = packed(gate), packed(up)
    arguments = [a, b, a.shape[1], 8, 64, coded, coded.shape[1], partials, 8, 1 / 256, 1e-5, 0, out, 256]
    run(matvec, how, (2,), 256 * ks, [*arguments, codes, codes.shape[1], 0, 0], 4096)
    normed = values / np.sqrt((x * x).mean() + 1e-5)
    expected = silu(normed @ gate.dequantize().T) * (normed @ up.dequantize().T)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        codes[:, 64:].view(np.float32), eight_bits(out)[0][:, 64:].view(np.float32), rtol=1e-2
    )

    down, bias = random_tensor("Q8_0", 64, 64, 3), rng.standard_normal(64).astype(np.float32)
    weight, x = rng.standard_normal(64).astype(np.float32), rng.standard_normal((1, 64)).astype(np.float32)
    coded, values = eight_bits(out)
    out, codes, partials = x.copy(), np.zeros((1, 64 + 32), np.uint8), np.zeros((1, 2), np.float32)
    how = READERS["Q8_0"] | PLAIN | sizes | {"BIAS": 1, "ACCUMULATE": 1, "EMIT": 2}
    a = packed(down)
    arguments = [a, 0, a.shape[1], 2, 64, coded, coded.shape[1], 0, 0, 1.0, 1.0, bias, out, 256]
    run(matvec, how, (2,), 256 * ks, [*arguments, codes, codes.shape[1], weight, partials], 4096)
    np.testing.assert_allclose(out, x + bias + values @ down.dequantize().T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(partials, (out * out).reshape(1, 2, 32).sum(-1), rtol=1e-5)
    expected = eight_bits(out * weight)[0]
    np.testing.assert_allclose(
        codes[:, 64:].view(np.float32), expected[:, 64:].view(np.float32), rtol=1e-2, atol=1e-3
    )
