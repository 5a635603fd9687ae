"""The search for NVFP4's scales against a trial of all there are."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.formats import FORMATS
from kukri.quant.formats.nvfp4 import E4M3, LARGEST_WEIGHT
from kukri.quant.rounding.codebook import encode_blocks, fit_scales
from kukri.quant.rounding.codebooks import CODEBOOKS
from kukri.quant.rounding.encode import encode

RNG = np.random.default_rng(5)
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
CODEBOOK = CODEBOOKS["NVFP4"]


def errors(groups: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """The error of each group of 16 weights with each scale, float64 [groups, 127]."""
    found = []
    for s in E4M3[:127].astype(np.float64):
        distance = np.abs(np.abs(groups)[..., None] - s * VALUES).min(axis=-1)
        found.append((importance * distance**2).sum(axis=1))
    return np.stack(found, axis=1)


@pytest.mark.parametrize("spread", [1e-4, 0.01, 1.0, 50.0, 700.0, 1e6])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_other_scale_is_better(spread: float, weighted: bool) -> None:
    """Or only a little, where importance makes it worth while to clip the largest weights away."""
    weights = (RNG.laplace(size=(60, 64)) * spread).astype(np.float32)
    weights[3, 16:32], weights[4] = 0, 0
    importance = np.exp(RNG.standard_normal((3, 64))).astype(np.float32) if weighted else None
    codes = fit_scales(CODEBOOK, weights, importance)["d"]
    every = np.ones((60, 64)) if importance is None else np.tile(importance, (20, 1))
    error = errors(weights.reshape(-1, 16), every.reshape(-1, 16))
    found = error[np.arange(240), codes.reshape(-1)]
    assert found.sum() <= error.min(axis=1).sum() * (1.02 if weighted else 1.001)
    assert (codes[4] == 0).all()


def test_blocks_hold_the_scales_and_the_nearest_codes() -> None:
    weights = (RNG.standard_normal((300, 64)) * 20).astype(np.float32)
    blocks = fit_scales(CODEBOOK, weights)
    packed = encode_blocks(CODEBOOK, weights)
    np.testing.assert_array_equal(packed[:, :4], blocks["d"])
    groups = weights.reshape(-1, 16)
    distance = (FORMATS["NVFP4"].dequantize(packed).reshape(-1, 16) - groups) ** 2
    least = errors(groups, np.ones(16))[np.arange(len(groups)), blocks["d"].reshape(-1)]
    np.testing.assert_allclose(distance.sum(axis=1), least, rtol=1e-4, atol=1e-6)


def test_less_is_lost_than_by_dividing_the_peak_by_6() -> None:
    """As llama.cpp chooses scales."""
    weights = RNG.standard_normal((500, 64)).astype(np.float32) * 100
    groups = weights.reshape(-1, 16)
    plain = np.abs(E4M3[:127] - np.abs(groups).max(axis=1, keepdims=True) / 6).argmin(axis=1)
    lost = errors(groups, np.ones(16))[np.arange(len(groups)), plain].sum()
    back = FORMATS["NVFP4"].dequantize(encode(weights, FORMATS["NVFP4"]).reshape(-1, 36)).reshape(500, 64)
    assert ((back - weights) ** 2).sum() < 0.85 * lost


def test_the_largest_and_the_smallest_weights() -> None:
    weights = np.zeros((3, 64), np.float32)
    weights[0, 0], weights[1, 5], weights[2, 7] = LARGEST_WEIGHT, 3e38, 1e-40
    back = FORMATS["NVFP4"].dequantize(encode(weights, FORMATS["NVFP4"]).reshape(-1, 36))
    np.testing.assert_array_equal(back[:2].max(axis=1), LARGEST_WEIGHT)
    assert not back[2].any()
