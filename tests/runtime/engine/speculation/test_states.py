"""Speculation of models with recurrent states, which go back to where a draft was wrong."""

from __future__ import annotations

import pytest

import kukri
from kukri.runtime.model.model import Model

PROMPTS = [[1, 2, 3, 4, 5] * 6, [7, 8, 9] * 9, list(range(60))]


def always_draft(model: Model) -> Model:
    """As if further rows cost nothing, so that how many drafts there are does not depend on the clock."""
    costs = model.engine._scheduler.times.costs
    costs.observe = lambda n_rows, seconds: None
    costs._seconds.update(dict.fromkeys(range(1, 80), 1.0))
    return model


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["lfm2", "qwen3-next", "falcon-h1"])
def test_the_ids_are_those_without(conformance, name, device):
    folder = conformance(name)
    few = {"logit_bias": [(id_, 6.0) for id_ in range(5)]}  # so that n-grams come back
    kinds = [{"temperature": 0, **few}, {"temperature": 1.2, "seed": 3, **few}]
    expected = []
    with kukri.load(folder, device=device, speculate="off", parallel=2) as plain:
        for more in kinds:
            expected += [list(plain.generate(ids, max_tokens=40, ignore_eos=True, **more)) for ids in PROMPTS]
    with kukri.load(folder, device=device, parallel=2) as model:
        always_draft(model)
        got, drafted = [], 0
        for more in kinds:
            for ids in PROMPTS:
                got.append(list(model.generate(ids, max_tokens=40, ignore_eos=True, **more)))
                drafted += model.stats.drafted_tokens
        assert got == expected
        assert drafted > 20
        together = [
            model.engine.submit(ids, kukri.SamplingParams(max_tokens=40, ignore_eos=True, **kinds[0]))
            for ids in PROMPTS
        ]
        assert [list(generation) for generation in together] == expected[:3]
