"""How many ids a step drafts: as many as bring the most tokens a second."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.engine.speculation.policy import MARGIN, MOST_DRAFTED, Acceptance, StepCosts


@pytest.mark.parametrize("seed", range(40))
def test_the_best_length_is_that_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, then = random.random(2) ** random.choice([0.2, 1, 4])
    costs = 1 + np.cumsum(random.random(MOST_DRAFTED) * random.choice([0.02, 0.2, 1]))
    tokens = [1.0 + first * sum(then**i for i in range(n)) for n in range(1, MOST_DRAFTED + 1)]
    gains = [MARGIN, *(tokens / costs)]
    found = Acceptance({1: first, 0: then}).best_length(1, 0, lambda n: float(costs[n - 1]), MOST_DRAFTED)
    assert found == (int(np.argmax(gains)), pytest.approx(max(gains)))


def test_shares_of_a_step() -> None:
    costs = StepCosts()
    for n, seconds in ((1, 1.0), (4, 1.6), (16, 4.0)):
        costs.observe(n, 9.0)  # compiling
        costs.observe(n, seconds)
    for base in (1, 3, 4):
        share = costs.shares(base)
        assert [share(n) for n in range(1, 14)] == [costs.share(n, base) for n in range(1, 14)]
    assert costs.shares(1)(3) == pytest.approx(1.6)
