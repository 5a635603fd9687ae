"""Products of a batch's rows against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.kernels.common.common import SILU
from kukri.runtime.cuda.kernels.matmul.batch_sm90 import batch_matmul_sm90
from kukri.runtime.cuda.kernels.matmul.unpack import READERS
from kukri.runtime.cuda.lowering.tuning import BatchTile

from ..simulator import run
from .test_prefill_matmul import as_f16, close
from .test_unpack import packed, random_tensor


def product(tensors, x, tile, out, bias=None, **constants):
    """Run the product with one matrix, or with gate and up."""
    name, (n_out, width) = tensors[0].format.name, tensors[0].shape
    rows = [packed(t) for t in tensors]
    h, scales = as_f16(x, 1, 2)
    behind = np.full((-len(x) % tile.ROWS, h.shape[1]), np.nan, h.dtype)  # rows that are read all the same
    h = np.concatenate([h, behind])
    vectors = int(n_out % 4 == 0)
    arguments = [rows[0], rows[-1], rows[0].shape[1], width // 32, n_out, h, 2 * h.shape[1], scales, len(x)]
    arguments += [0 if bias is None else bias, out, 4 * n_out]
    constants = READERS[name] | {"BIAS": int(bias is not None), "PDL": 0, "VECTORS": vectors} | constants
    constants |= {"GATED": len(tensors) - 1, **tile.constants}
    grid, threads = tile.grid(len(x), n_out, len(tensors)), tile.threads
    run(batch_matmul_sm90, constants, grid, threads, arguments, tile.shared_bytes(name), tile.splits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "n_out", "width", "tile"),
    [
        ("Q4_0", 17, 37, 96, BatchTile(32, 1, 3, 1)),
        ("Q4_0", 15, 200, 1184, BatchTile(16, 2, 4, 3)),
        ("Q6_K", 33, 130, 1280, BatchTile(64, 2, 5, 2)),
        ("Q4_K", 65, 72, 768, BatchTile(128, 2, 4, 1)),
        ("Q8_0", 31, 260, 544, BatchTile(16, 4, 6, 5)),
        ("NVFP4", 15, 72, 1088, BatchTile(16, 2, 4, 2)),
    ],
)
def test_batch(name, n, n_out, width, tile):
    rng, tensor = np.random.default_rng(0), random_tensor(name, n_out, width)
    x = rng.standard_normal((n, width)).astype(np.float32) * 30000
    bias = rng.standard_normal(n_out).astype(np.float32)
    before = rng.standard_normal((n, n_out)).astype(np.float32)
    out = before.copy()
    product([tensor], x, tile, out, bias, ACCUMULATE=1)
    close(out, x.astype(np.float64) @ tensor.dequantize().astype(np.float64).T + bias + before)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_formats(name):
    rng, tensor = np.random.default_rng(0), random_tensor(name, 40, 512)
    x = rng.standard_normal((5, 512)).astype(np.float32)
    out = np.full((5, 40), np.nan, np.float32)
    product([tensor], x, BatchTile(16, 1, 3, 2), out)
    close(out, x @ tensor.dequantize().T)


@pytest.mark.slow
@pytest.mark.parametrize("tile", [BatchTile(16, 2, 4, 2), BatchTile(32, 4, 4, 1)])
def test_gated(tile):
    rng, n, n_out, width = np.random.default_rng(2), 7, 148, 416
    gate, up = (random_tensor("Q4_1", n_out, width, seed) for seed in (0, 1))
    x = rng.standard_normal((n, width)).astype(np.float32)
    out = np.full((n, n_out), np.nan, np.float32)
    product([gate, up], x, tile, out, KIND=SILU)
    a, b = (x.astype(float) @ m.dequantize().T for m in (gate, up))
    close(out, a / (1 + np.exp(-a)) * b)
