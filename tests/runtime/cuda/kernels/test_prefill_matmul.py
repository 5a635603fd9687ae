"""Prefill products against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.kernels.common.common import SILU
from kukri.runtime.cuda.kernels.matmul.prefill_sm80 import prefill_matmul_sm80
from kukri.runtime.cuda.kernels.matmul.prefill_sm90 import prefill_matmul_sm90
from kukri.runtime.cuda.kernels.matmul.quantize import convert_to_f16
from kukri.runtime.cuda.kernels.matmul.unpack import READERS
from kukri.runtime.cuda.lowering.tuning import GATED_TILE, PrefillTile

from ..simulator import run
from .test_unpack import packed, random_tensor

SHARED = 65536


def as_f16(x: np.ndarray, warpgroups: int, parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """x as `convert_to_f16` stores it, and the scales of its rows."""
    out = np.zeros((len(x), -(-x.shape[1] // 128) * 128), np.float16)
    scales = np.zeros(len(x), np.float32)
    arguments = [x, 4 * x.shape[1], x.shape[1], out, 2 * out.shape[1], scales, 0, 0.0, 0.0]
    run(convert_to_f16, {"WARPGROUPS": warpgroups, "PARTS": parts, "PDL": 0}, (1, len(x)), 256, arguments, 64)
    return out, scales


def close(got, expected):
    assert np.linalg.norm(got - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width", "bias"),
    [("Q4_0", 160, 1), ("Q6_K", 256, 0), ("Q4_K", 256, 1), ("Q2_K", 256, 0), ("NVFP4", 192, 0)],
)
def test_sm80(name, width, bias):
    rng, tensor = np.random.default_rng(0), random_tensor(name, 37, width)
    x = rng.standard_normal((9, width)).astype(np.float32) * 30000
    biases = rng.standard_normal(37).astype(np.float32)
    before = rng.standard_normal((9, 37)).astype(np.float32)
    out, rows = before.copy(), packed(tensor)
    h, scales = as_f16(x, 0)
    arguments = [rows, rows.shape[1], width // 32, 37, h, 2 * h.shape[1], scales, 9, biases, out, 4 * 37]
    arguments += [0, 0, 0]
    constants = READERS[name] | {"BIAS": bias, "ACCUMULATE": 1, "EXPERTS": 0, "PDL": 0}
    run(prefill_matmul_sm80, constants, (1, 1), 256, arguments, SHARED)
    close(out, x.astype(np.float64) @ tensor.dequantize().astype(np.float64).T + biases * bias + before)


@pytest.mark.parametrize("parts", [0, 2])
def test_long_rows(parts):
    """Rows that are read twice and rows that stay in registers; the scales of large numbers."""
    x = np.random.default_rng(1).standard_normal((2, 1040)).astype(np.float32) * [[1], [1e6]]
    got, scales = as_f16(x.astype(np.float32), 1, parts)
    assert scales[0] == 1
    assert 32768 / 2 < np.abs(x[1]).max() / scales[1] <= 32768
    plain = got.reshape(2, 72, 2, 4, 2).transpose(0, 1, 3, 4, 2).reshape(2, -1)
    np.testing.assert_array_equal(plain[:, :1040], (x / scales[:, None]).astype(np.float16))
    assert not plain[:, 1040:].any()


def test_norm_to_f16():
    rng, width = np.random.default_rng(2), 1184
    x, weight = (
        rng.standard_normal((2, width)).astype(np.float32),
        rng.uniform(1, 2, width).astype(np.float32),
    )
    out, scales = np.zeros((2, 1280), np.float16), np.zeros(2, np.float32)
    arguments = [x, 4 * width, width, out, 2 * 1280, scales, weight, 1 / width, 1e-3]
    constants = {"WARPGROUPS": 1, "PARTS": 2, "NORMED": 1, "PDL": 0}
    run(convert_to_f16, constants, (1, 2), 256, arguments, 64)
    plain = out.reshape(2, 80, 2, 4, 2).transpose(0, 1, 3, 4, 2).reshape(2, -1)[:, :width]
    expected = x / np.sqrt((x.astype(float) ** 2).mean(1, keepdims=True) + 1e-3) * weight
    np.testing.assert_allclose(plain * scales[:, None], expected, 1e-3, 1e-6)


def test_column_order():
    x = np.random.default_rng(0).standard_normal((2, 272)).astype(np.float32)
    plain = np.zeros((2, 384), np.float16)
    plain[:, :272] = x
    got, scales = as_f16(x, 0)  # from [b, h, s, k, j]
    turned = plain.reshape(2, 3, 4, 2, 4, 2, 2).transpose(0, 1, 4, 2, 3, 6, 5)
    np.testing.assert_array_equal(got, turned.reshape(2, -1))
    np.testing.assert_array_equal(scales, 1)
    got, _ = as_f16(x, 1)  # from [s, k, j]
    turned = plain.reshape(2, 24, 4, 2, 2).transpose(0, 1, 4, 2, 3)
    np.testing.assert_array_equal(got, turned.reshape(2, -1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "n_out", "width", "shape", "bias", "accumulate"),
    [
        ("Q4_0", 9, 37, 96, (1, 128), 1, 1),
        ("Q4_0", 1, 130, 544, (2, 128), 0, 0),
        ("Q6_K", 129, 70, 256, (1, 128), 0, 1),
        ("Q4_K", 257, 129, 256, (1, 256), 1, 0),
        ("Q8_0", 256, 200, 160, (1, 256), 0, 0),
        ("Q2_K", 127, 257, 512, (2, 128), 1, 1),
        ("NVFP4", 9, 70, 320, (1, 128), 0, 1),
    ],
)
def test_sm90(name, n, n_out, width, shape, bias, accumulate):
    rng, tensor = np.random.default_rng(0), random_tensor(name, n_out, width)
    x = rng.standard_normal((n, width)).astype(np.float32) * 30000
    biases = rng.standard_normal(n_out).astype(np.float32)
    before = rng.standard_normal((n, n_out)).astype(np.float32)
    out, rows = before.copy(), packed(tensor)
    h, scales = as_f16(x, 1)
    arguments = [rows, rows.shape[1], width // 32, n_out, h, 2 * h.shape[1], scales, n, biases]
    arguments += [out, 4 * n_out, 0, 0, 0, 0, 0]
    constants = READERS[name] | {"BIAS": bias, "ACCUMULATE": accumulate, "EXPERTS": 0, "PDL": 0}
    tile = PrefillTile(*shape, 1, 1.0)
    run(
        prefill_matmul_sm90,
        constants | tile.constants,
        tile.grid(n, n_out),
        256,
        arguments,
        tile.shared_bytes,
    )
    expected = x.astype(np.float64) @ tensor.dequantize().astype(np.float64).T
    close(out, expected + biases * bias + before * accumulate)


@pytest.mark.slow
@pytest.mark.parametrize("tile", [PrefillTile(1, 128, 2, 1.0), PrefillTile(2, 64, 1, 1.0)])
def test_sm90_of_experts(tile):
    """Tiles of pairs sorted by expert, with x sorted as well or read through `sources`."""
    rng, n_out, width, experts = np.random.default_rng(1), 40, 96, 3
    tensors = [random_tensor("Q4_0", n_out, width) for _ in range(experts)]
    matrices = np.stack([packed(t) for t in tensors])
    counts = [5, 0, 3]
    sources = rng.permutation(8).astype(np.int32)
    tiles = np.array([2, 0, 0, 0, 0, 0, 5, 0, 2, 5, 3, 0, 0, 0, 0, 0], np.int32)
    x = rng.standard_normal((8, width)).astype(np.float32) * 30000
    biases = rng.standard_normal((experts, n_out)).astype(np.float32)
    which = np.repeat(np.arange(experts), counts)
    for kind in (1, 2):
        h, scales = as_f16(x, 1)
        out = np.zeros((8, n_out), np.float32)
        arguments = [matrices, matrices.shape[2], width // 32, n_out, h, 2 * h.shape[1], scales, 8, biases]
        arguments += [out, 4 * n_out, tiles, sources, matrices[0].nbytes, 0, 0]
        constants = READERS["Q4_0"] | {
            "BIAS": 1,
            "ACCUMULATE": 0,
            "EXPERTS": kind,
            "PDL": 0,
            **tile.constants,
        }
        run(prefill_matmul_sm90, constants, (3, 1), 256, arguments, tile.shared_bytes)
        taken = x[sources] if kind == 2 else x
        expected = [tensors[e].dequantize() @ v + biases[e] for e, v in zip(which, taken, strict=True)]
        close(out, np.array(expected))


@pytest.mark.slow
def test_sm90_of_two_matrices():
    rng, n, n_out, width = np.random.default_rng(2), 5, 130, 160
    gate, up = (random_tensor("Q4_1", n_out, width, seed) for seed in (0, 1))
    rows = [packed(gate), packed(up)]
    x = rng.standard_normal((n, width)).astype(np.float32)
    biases = rng.standard_normal((2, n_out)).astype(np.float32)
    h, scales = as_f16(x, 1)
    out = np.zeros((n, n_out), np.float32)
    arguments = [rows[0], rows[0].shape[1], width // 32, n_out, h, 2 * h.shape[1], scales, n, biases[0]]
    arguments += [out, 4 * n_out, 0, 0, 0, rows[1], biases[1]]
    constants = READERS["Q4_1"] | {
        "BIAS": 1,
        "ACCUMULATE": 0,
        "EXPERTS": 0,
        "PDL": 0,
        "GATED": 1,
        "KIND": SILU,
    }
    grid = GATED_TILE.grid(n, 2 * n_out)
    constants |= GATED_TILE.constants
    run(prefill_matmul_sm90, constants, grid, 256, arguments, GATED_TILE.shared_bytes)
    a, b = (x.astype(float) @ m.dequantize().T + bias for m, bias in zip((gate, up), biases, strict=True))
    close(out, a / (1 + np.exp(-a)) * b)
