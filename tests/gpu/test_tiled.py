"""Products of many rows against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.kernels.tiled import tiled_matmul
from kukri.runtime.cuda.kernels.unpack import READERS

from .simulator import run
from .test_unpack import packed, random_tensor


def in_pieces(x: np.ndarray) -> np.ndarray:
    """Columns in the order of weights in pieces, as `to_halves` has them."""
    chunks = x.reshape(len(x), -1, 4, 2, 4, 4)  # b, h, s, k
    return np.ascontiguousarray(chunks.transpose(0, 1, 4, 2, 3, 5)).reshape(x.shape)


@pytest.mark.parametrize(
    ("name", "width", "bias"), [("Q4_0", 160, 1), ("Q6_K", 256, 0), ("Q4_K", 256, 1), ("Q2_K", 256, 0)]
)
def test_tiled(name, width, bias):
    rng, tensor = np.random.default_rng(0), random_tensor(name, 37, width)
    x = np.zeros((9, -(-width // 128) * 128), np.float16)
    x[:, :width] = rng.standard_normal((9, width))
    turned = in_pieces(x)
    scales, biases = rng.uniform(1, 2, 9).astype(np.float32), rng.standard_normal(37).astype(np.float32)
    before = rng.standard_normal((9, 37)).astype(np.float32)
    out, rows = before.copy(), packed(tensor)
    arguments = [rows, rows.shape[1], width // 32, 37, turned, 2 * x.shape[1], scales, 9, biases, out, 4 * 37]
    arguments += [0, 0, 0]
    how = READERS[name] | {"BIAS": bias, "ACCUMULATE": 1, "EXPERTS": 0, "PDL": 0}
    run(tiled_matmul, how, (1, 1), 256, arguments, 65536)
    product = x[:, :width].astype(np.float64) @ tensor.dequantize().astype(np.float64).T
    expected = product * scales[:, None] + biases * bias + before
    assert np.linalg.norm(out - expected) < 1e-3 * np.linalg.norm(expected)
