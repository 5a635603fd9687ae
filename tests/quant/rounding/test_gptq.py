"""GPTQ against its twin, and against rounding to nearest."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kukri.quant.formats import FORMATS
from kukri.quant.rounding import gptq
from kukri.quant.rounding.codebook import Codebook, encode_blocks
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


@pytest.mark.parametrize("run", [compensate, compensate_reference])
@pytest.mark.parametrize(
    ("targets", "previous", "scale", "minimum", "codes", "errors"),
    [
        ([0.4, 2.4], [0, 0], [1, 1], [0, 0], [9, 10], [-0.6, 0.4]),  # 0.4 + 0.5 · 0.4 is rounded up
        ([0.4, 2.4], [0, 0.3], [1, 1], [0, 0], [8, 10], [0.4, 0.4]),  # accounted for: all but 0.1
        ([0.4, 2.4], [9, 0], [1, 1], [0, 0], [9, 10], [-0.6, 0.4]),  # of its own, nothing
        ([0.6, 2.6], [0, 0], [1, 1], [0, 0], [8, 11], [0.6, -0.4]),
        ([0.4, 2.4], [0, 0], [2, 2], [1, 1], [9, 10], [-0.6, -0.6]),
        ([-99, 99], [0, 92], [1, 1], [0, 0], [0, 15], [-91, 92]),  # levels end at -8 and 7
        ([-8.4, 7.4], [0, 0.4], [1, 1], [0, 0], [0, 15], [-0.4, 0.4]),
        ([2.4, 2.4], [0, 2.9], [0, 0], [0, 0.5], [10, 11], [2.4, 2.9]),  # a scale of zero counts as one
    ],
)
def test_compensation_by_hand(
    run: Callable[[ColumnBlock, Codebook], tuple[np.ndarray, np.ndarray]],
    targets: list[float],
    previous: list[float],
    scale: list[float],
    minimum: list[float],
    codes: list[int],
    errors: list[float],
) -> None:
    row, before, s, m = (np.array([part], np.float32) for part in (targets, previous, scale, minimum))
    factors = np.array([[0, 0], [0.5, 0]], np.float32)
    found_errors, found = run(ColumnBlock(row.copy(), row, before, factors, s, m), CODEBOOKS["Q4_0"])
    assert found.tolist() == [codes]
    np.testing.assert_allclose(found_errors, [errors], atol=1e-5)


def test_a_pass_and_two_sweeps_of_64_columns_and_256_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def counted(block: ColumnBlock, codebook: Codebook) -> tuple[np.ndarray, np.ndarray]:
        shapes.append(block.weights.shape)
        return compensate(block, codebook)

    monkeypatch.setattr(gptq, "compensate", counted)
    weights = np.random.default_rng(5).standard_normal((260, 160)).astype(np.float32)
    encode_compensated(weights, CODEBOOKS["Q4_0"], prepare_hessian(correlated(160)), threads=1)
    first, last = ([(rows, columns) for columns in (64, 64, 32)] for rows in (256, 4))
    assert shapes == first * 3 + last * 3


def test_without_correlation_it_rounds_to_nearest() -> None:
    weights = np.random.default_rng(6).standard_normal((7, 96)).astype(np.float32)
    moments = np.diag(np.linspace(1, 2, 96)[::-1]).astype(np.float32)
    hessian = prepare_hessian(moments)
    data = encode_compensated(weights, CODEBOOKS["Q4_0"], hessian)
    importance = hessian.importance.reshape(-1, 32)
    nearest = encode_blocks(CODEBOOKS["Q4_0"], weights.reshape(-1, 32), importance)
    assert data.shape == (7, 54)
    assert np.array_equal(data, nearest.reshape(7, 54))


def steps_and_loss(weights: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of Q8_0: each weight's step and code, its part of half the gradient, H, and the loss it should have."""
    hessian = prepare_hessian(moments.copy())
    data = encode_compensated(weights, CODEBOOKS["Q8_0"], hessian).reshape(-1, 34)
    step = np.abs(data[:, :2].copy().view(np.float16).astype(np.float64)).repeat(32, axis=1)
    step = step.reshape(weights.shape)
    codes = data[:, 2:].copy().view(np.int8).reshape(weights.shape)
    error = weights - FORMATS["Q8_0"].dequantize(data).reshape(weights.shape).astype(np.float64)
    full = moments * 0.7  # as `prepare_hessian` shrinks and damps
    np.fill_diagonal(full, np.diagonal(moments) * 1.0 + 0.01 * np.diagonal(moments).mean())
    expected = (hessian.importance * step**2 / 12).sum()
    return step, codes, error @ full, full, ((error @ full) * error).sum() / expected


def test_one_pass_loses_what_theory_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column is up to half a step from its target: step² R_ii² / 12, less what choosing steps saves."""
    monkeypatch.setattr(gptq, "SWEEPS", 0)
    weights = np.random.default_rng(7).standard_normal((50, 160)).astype(np.float32)
    assert 0.75 < steps_and_loss(weights, correlated(160))[-1] < 0.9


def test_sweeps_end_where_no_single_step_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gptq, "SWEEPS", 30)
    weights = np.random.default_rng(8).standard_normal((6, 160)).astype(np.float32)
    step, codes, gradient, full, loss = steps_and_loss(weights, correlated(160))
    change = step**2 * np.diagonal(full) - 2 * step * np.abs(gradient)
    assert (change > -1e-2 * step**2)[np.abs(codes) < 127].all()
    assert loss < 1


@pytest.mark.parametrize(("threads", "cores", "expected"), [(3, 5, 3), (None, 5, 5), (None, None, 1)])
def test_the_number_of_threads(
    threads: int | None, cores: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, n: int) -> None:
            started.append(n)
            super().__init__(n)

    monkeypatch.setattr(gptq, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    weights = np.ones((2, 32), np.float32)
    encode_compensated(weights, CODEBOOKS["Q4_0"], prepare_hessian(correlated(32)), threads)
    assert started == [expected]
