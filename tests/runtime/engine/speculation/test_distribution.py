"""The distribution of sampled answers is the model's, whatever drafts: χ² over 20,000 draws and more."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams

from ..test_engine import VOCAB, Config, HistoryMachine
from .test_draft_model import FreeDrafts, set_costs

TOKENS, ANSWERS = 100, 220  # draws: the product of both
N_LIKELY = 8


def fixed_logits(seed: int) -> np.ndarray:
    """Logits of N_LIKELY ids, whatever came before; those of others are far below."""
    logits = np.full(VOCAB, -30.0, np.float32)
    logits[:N_LIKELY] = np.random.default_rng(seed).normal(size=N_LIKELY)
    return logits


def engine_of(model: np.ndarray, draft: np.ndarray | None) -> Engine:
    table, small = PageTable(64, 2, page_size=4), PageTable(64, 2, page_size=4)
    machine, drafting = HistoryMachine(table, 64, 64), HistoryMachine(small, 32, 8)
    machine.logits_of, drafting.logits_of = lambda seen: model, lambda seen: draft
    drafter = FreeDrafts(drafting, small, context=256, n_tokens=VOCAB, chunk=16, relative_cost=0.1)
    engine = Engine(
        machine, table, Config(), speculate=draft is None, drafter=None if draft is None else drafter
    )
    set_costs(engine, 0.0)
    return engine


def chi_squared(counts: np.ndarray, expected: np.ndarray) -> float:
    """χ² in standard deviations above its mean."""
    freedom = counts.size - 1
    return (float(((counts - expected) ** 2 / expected).sum()) - freedom) / (2 * freedom) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["another model", "n-grams"])
def test_draws_follow_the_model(kind):
    model = fixed_logits(0)
    draft = fixed_logits(1) if kind == "another model" else None
    engine = engine_of(model, draft)
    singles, pairs = np.zeros(N_LIKELY), np.zeros((N_LIKELY, N_LIKELY))
    drafted = accepted = 0
    for seed in range(ANSWERS):
        params = SamplingParams(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, max_tokens=TOKENS, seed=seed)
        answer = list(engine.submit([1, 2, 3], params))
        np.add.at(singles, answer, 1)
        np.add.at(pairs, (answer[:-1], answer[1:]), 1)
        drafted += engine.stats.drafted_tokens
        accepted += engine.stats.accepted_tokens
    p = np.exp(model[:N_LIKELY].astype(np.float64) / 0.8)
    p /= p.sum()
    assert singles.sum() == TOKENS * ANSWERS >= 20_000
    assert drafted > 2000
    assert chi_squared(singles, p * singles.sum()) < 4
    assert chi_squared(pairs, np.outer(p, p) * pairs.sum()) < 4
    assert accepted > 1000
