"""Pooling of hidden states that come in parts."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.embedding.pooling import MODES, Pool, wanted_by

ROWS = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
WEIGHTS = np.arange(1, 8)[:, None]
EXPECTED = {
    "cls": ROWS[0],
    "lasttoken": ROWS[-1],
    "max": ROWS.max(0),
    "mean": ROWS.mean(0),
    "mean_sqrt_len_tokens": ROWS.sum(0) / 7**0.5,
    "weightedmean": (ROWS * WEIGHTS).sum(0) / WEIGHTS.sum(),
}


def pooled(modes: tuple[str, ...], cuts: tuple[int, ...], skip: int = 0) -> np.ndarray:
    pool, at = Pool(modes, skip), 0
    for end in (*cuts, len(ROWS)):
        pool.add(at, ROWS[at:end])
        at = end
    return pool.vector(4)


@pytest.mark.parametrize("cuts", [(), (1,), (3, 6), (1, 2, 3, 4, 5, 6)])
@pytest.mark.parametrize("mode", MODES)
def test_each_mode(mode: str, cuts: tuple[int, ...]) -> None:
    np.testing.assert_allclose(pooled((mode,), cuts), EXPECTED[mode], rtol=1e-5, atol=1e-6)


def test_modes_are_joined_in_their_own_order() -> None:
    vector = pooled(("mean", "cls"), (2,))
    np.testing.assert_allclose(vector, np.concatenate([EXPECTED["cls"], EXPECTED["mean"]]), atol=1e-6)


@pytest.mark.parametrize("cuts", [(), (2,), (3,), (4,)])
def test_skipped_tokens(cuts: tuple[int, ...]) -> None:
    np.testing.assert_allclose(pooled(("mean",), cuts, skip=3), ROWS[3:].mean(0), atol=1e-6)
    weights = np.arange(4, 8)
    expected = (ROWS[3:] * weights[:, None]).sum(0) / weights.sum()
    np.testing.assert_allclose(pooled(("weightedmean",), cuts, skip=3), expected, atol=1e-6)
    np.testing.assert_allclose(pooled(("cls",), cuts, skip=3), ROWS[0])


def test_no_tokens() -> None:
    np.testing.assert_array_equal(Pool(("mean", "cls")).vector(4), np.zeros(8))


def test_wanted() -> None:
    assert wanted_by(("cls",)) == "first"
    assert wanted_by(("lasttoken",)) == "last"
    assert wanted_by(("mean",)) == wanted_by(("cls", "lasttoken")) == "all"
