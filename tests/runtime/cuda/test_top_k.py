"""The top k logits of a row as the kernels select them, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.abi.arguments import Region
from kukri.runtime.cuda.driver.allocator import Memory
from kukri.runtime.cuda.top_k import TopKKernels, read_top_k, size_for
from kukri.runtime.engine.sampling.top_k import TopK, top_k_of

from .stand_in import StandInDevice, StandInKernels


def top_k(logits: np.ndarray, k: int, n_tokens: int, blocks: int = 2) -> list[TopK]:
    """What the kernels select of rows that have NaN behind them."""
    device = StandInDevice()
    memory = Memory(device)
    padded = np.full((len(logits), logits.shape[1] + 3), np.nan, np.float32)
    padded[:, :-3] = logits
    region = Region(memory.array(padded), padded.strides[0])
    size = size_for(k)
    out = np.zeros((len(logits), 2 * size), np.int32)
    kernels = TopKKernels(memory, StandInKernels(device), device.capability, blocks)
    plan = kernels.plan(region, len(logits), size, n_tokens, Region(out.ctypes.data, out.strides[0]))
    for launch in plan.launches:
        device.launch(launch)
    return read_top_k(out, size, k, n_tokens)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "blocks", "n_tokens"), [(1, 4, 1), (1, 2, 900), (40, 2, 37), (64, 3, 1900), (100, 1, 2600)]
)
def test_top_k(k, blocks, n_tokens):
    rng = np.random.default_rng(n_tokens)
    logits = rng.normal(size=(2, n_tokens + 5)).astype(np.float32) * 3
    logits[:, n_tokens:] = 100  # ids that are never generated
    logits[1, :n_tokens] = np.round(logits[1, :n_tokens])  # equal ones, 0 and -0 among them
    logits[1, :n_tokens:7] = -np.inf
    selected = top_k(logits, k, n_tokens, blocks)
    for got, expected in zip(selected, top_k_of(logits[:, :n_tokens], k), strict=True):
        finite = got.logits > -np.inf
        np.testing.assert_array_equal(got.ids[finite], expected.ids[: finite.sum()])
        np.testing.assert_array_equal(got.logits[finite], expected.logits[: finite.sum()])
        assert finite.sum() == (expected.logits > -np.inf).sum()


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_nan_and_infinity_come_first(bad):
    logits = np.arange(-40, 40, dtype=np.float32)[None]
    logits[0, 17] = bad
    logits[0, 70] = np.inf
    (got,) = top_k(logits, 3, 80)
    np.testing.assert_array_equal(got.logits[0], np.float32(bad))
    np.testing.assert_array_equal(got.ids[0], 17)


def test_nothing_but_minus_infinity():
    (got,) = top_k(np.full((1, 50), -np.inf, np.float32), 2, 50)
    assert got.logits[0] == -np.inf
