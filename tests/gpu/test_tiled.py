"""Products of many rows against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.kernels.tiled import tiled_matmul
from kukri.runtime.cuda.kernels.unpack import READERS

from .simulator import run
from .test_unpack import packed, random_tensor


@pytest.mark.parametrize(("name", "width", "bias"), [("Q4_0", 96, 1), ("Q6_K", 256, 0), ("Q4_K", 256, 1)])
def test_tiled(name, width, bias):
    rng, tensor = np.random.default_rng(0), random_tensor(name, 37, width)
    x = np.zeros((9, -(-width // 64) * 64), np.float16)
    x[:, :width] = rng.standard_normal((9, width))
    scales, biases = rng.uniform(1, 2, 9).astype(np.float32), rng.standard_normal(37).astype(np.float32)
    before = rng.standard_normal((9, 37)).astype(np.float32)
    out, rows = before.copy(), packed(tensor)
    arguments = [rows, rows.shape[1], width // 32, 37, x, 2 * x.shape[1], scales, 9, biases, out, 4 * 37]
    arguments += [0, 0, 0]
    how = READERS[name] | {"BIAS": bias, "ACCUMULATE": 1, "EXPERTS": 0, "PDL": 0}
    run(tiled_matmul, how, (1, 1), 256, arguments, 65536)
    product = x[:, :width].astype(np.float64) @ tensor.dequantize().astype(np.float64).T
    expected = product * scales[:, None] + biases * bias + before
    assert np.linalg.norm(out - expected) < 1e-3 * np.linalg.norm(expected)
