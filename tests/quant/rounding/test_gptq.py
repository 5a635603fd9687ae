"""GPTQ against its twin, and against rounding to nearest."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.formats import FORMATS
from kukri.quant.rounding.codebook import encode_blocks
from kukri.quant.rounding.codebooks import CODEBOOKS
from kukri.quant.rounding.gptq import ColumnBlock, compensate, compensate_reference, encode_compensated
from kukri.quant.rounding.hessian import prepare_hessian


def correlated(width: int, seed: int = 0) -> np.ndarray:
    """Second moments of inputs whose columns have much in common."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * width, width // 4)) @ rng.standard_normal((width // 4, width))
    x += 0.3 * rng.standard_normal(x.shape)
    return (x.T @ x / len(x)).astype(np.float32)


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "IQ4_NL", "Q8_0"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 64), (37, 33)])
def test_kernel_is_its_twin(name: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    width = shape[1]
    codebook = CODEBOOKS[name]
    weights, before, scale, minimum = (rng.standard_normal(shape).astype(np.float32) for _ in range(4))
    scale[0, 0] = 0
    compensation = np.tril(rng.standard_normal((width, width)).astype(np.float32), -1)
    fast, slow = (
        run(ColumnBlock(weights.copy(), weights, before, compensation, scale, minimum), codebook)
        for run in (compensate, compensate_reference)
    )
    assert np.array_equal(fast[0], slow[0])
    assert np.array_equal(fast[1], slow[1])


@pytest.mark.parametrize(
    "name",
    [
        "Q4_0",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("IQ4_NL", "Q4_1", "Q3_K", "Q4_K", "Q6_K")),
    ],
)
def test_loses_less_than_nearest(name: str) -> None:
    codebook, moments = CODEBOOKS[name], correlated(256)
    weights = np.random.default_rng(2).standard_normal((40, 256)).astype(np.float32)
    size = codebook.form.block_size

    def loss(data: np.ndarray) -> float:
        error = weights - codebook.form.dequantize(data.reshape(-1, codebook.form.type_size)).reshape(
            weights.shape
        )
        return float(((error @ moments) * error).sum())

    diagonal = np.diagonal(moments).copy().reshape(-1, size)
    nearest = loss(encode_blocks(codebook, weights.reshape(-1, size), diagonal))
    assert loss(encode_compensated(weights, codebook, prepare_hessian(moments.copy()))) < 0.8 * nearest


def test_threads_make_no_difference() -> None:
    weights = np.random.default_rng(3).standard_normal((600, 64)).astype(np.float32)
    hessian = prepare_hessian(correlated(64))
    one = encode_compensated(weights, CODEBOOKS["Q4_0"], hessian, threads=1)
    assert np.array_equal(one, encode_compensated(weights, CODEBOOKS["Q4_0"], hessian, threads=3))


def test_inputs_that_are_never_there() -> None:
    moments = correlated(64)
    moments[:, :7] = moments[:7] = 0
    weights = np.random.default_rng(4).standard_normal((8, 64)).astype(np.float32)
    data = encode_compensated(weights, CODEBOOKS["Q8_0"], prepare_hessian(moments))
    back = FORMATS["Q8_0"].dequantize(data.reshape(-1, 34)).reshape(weights.shape)
    assert np.abs(back - weights).max() < 0.2
    zeros = encode_compensated(weights * 0, CODEBOOKS["Q4_0"], prepare_hessian(moments * 0))
    assert not FORMATS["Q4_0"].dequantize(zeros.reshape(-1, 18)).any()
