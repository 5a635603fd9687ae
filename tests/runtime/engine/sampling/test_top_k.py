"""The largest logits of a row: those of a stable sort, and what is not finite first."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kukri.runtime.engine.sampling.top_k import largest, largest_if_finite, top_k_of

SIZES = [1, 7, 300, 8191, 8192, 9000, 20_011]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("k", [1, 2, 40, 256, 300])
def test_it_is_the_beginning_of_a_stable_sort(n: int, k: int) -> None:
    random = np.random.default_rng(n + k)
    for values in (
        random.standard_normal(n),
        random.integers(0, 5, n),
        np.where(random.random(n) < 0.999, -np.inf, 1.0),
        np.arange(n),
        -np.arange(n),
    ):
        logits = values.astype(np.float32)
        order = np.argsort(-logits, kind="stable")[:k]
        wanted = order[logits[order] > -np.inf]
        assert largest(logits, k).tolist() == wanted.tolist()
        (top,) = top_k_of([logits], k)
        assert top.ids.tolist() == (wanted if len(wanted) else order[:1]).tolist()
        assert (top.logits == logits[top.ids]).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("k", [1, 2, 40])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_comes_first(n: int, k: int, bad: float) -> None:
    random = np.random.default_rng(n)
    for place in {0, n // 2, n - 1}:
        logits = random.standard_normal(n).astype(np.float32)
        logits[place] = bad
        assert largest_if_finite(logits, k) is None
        (top,) = top_k_of([logits], k)
        assert top.ids[0] == place
        assert not math.isfinite(top.logits[0])
