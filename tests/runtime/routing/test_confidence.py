"""Signs of an answer, and the calibration that makes probabilities of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.errors import DamagedFile
from kukri.runtime.engine.sampling.logprobs import TokenLogprobs, token_logprobs
from kukri.runtime.routing.confidence import N_FIRST, N_TOP, Calibration, Signs
from kukri.runtime.routing.policy import Policy


def test_signs() -> None:
    half = TokenLogprobs(1, math.log(0.5), ((1, math.log(0.5)), (2, math.log(0.5))))
    sure = TokenLogprobs(1, 0.0, ((1, 0.0),))
    signs = Signs.of([half, sure])
    assert signs is not None
    assert signs.values() == pytest.approx([math.log(0.5) / 2, math.log(2) / 2, 0.5])
    assert Signs.of([]) is None
    # What is not among the likeliest counts as one token.
    third = TokenLogprobs(3, math.log(0.25), ((1, math.log(0.5)), (2, math.log(0.25))))
    found = Signs.of([third])
    assert found is not None
    assert found.first_entropy == pytest.approx(1.5 * math.log(2))
    many = Signs.of([half] * N_FIRST + [sure] * 100)
    assert many is not None
    assert many.first_entropy == pytest.approx(math.log(2))


def test_signs_of_logits() -> None:
    logits = np.random.default_rng(0).normal(0, 2, 50).astype(np.float32)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum()
    order = np.argsort(-p)
    signs = Signs.of([token_logprobs(logits, int(order[2]), N_TOP)])
    assert signs is not None
    kept = [*p[order[:N_TOP]], p[order[N_TOP:]].sum()]
    wanted = [math.log(p[order[2]]), -sum(x * math.log(x) for x in kept), p[order[0]] - p[order[1]]]
    assert signs.values() == pytest.approx(wanted, rel=1e-6)


def test_a_calibration_finds_the_probabilities() -> None:
    random = np.random.default_rng(1)
    signs = [Signs(*row) for row in random.normal([-1, 2, 0.5], [0.5, 1, 0.2], (4000, 3))]
    truth = [1 / (1 + math.exp(-(3 * s.mean_logprob - s.first_entropy + 4 * s.margin + 3))) for s in signs]
    right = random.random(4000) < truth
    found = Calibration.fit("m", signs, right.tolist())
    wrong_by = [abs(found.confidence(s) - p) for s, p in zip(signs, truth, strict=True)]
    assert np.mean(wrong_by) < 0.02
    assert np.mean([found.confidence(s) for s in signs]) == pytest.approx(right.mean(), abs=1e-3)


@pytest.mark.parametrize("right", [True, False])
def test_answers_that_are_all_alike(right: bool) -> None:
    same = [Signs(-0.5, 1.0, 0.5)] * 20
    found = Calibration.fit("m", same, [right] * 20)
    assert (found.confidence(same[0]) > 0.9) is right
    decided = [Signs(-0.1, 1.0, 0.5)] * 10 + [Signs(-2.0, 1.0, 0.5)] * 10
    found = Calibration.fit("m", decided, [True] * 10 + [False] * 10)  # the weights must stay finite
    assert 0.8 < found.confidence(decided[0]) < 1.0
    assert found.confidence(decided[-1]) < 0.2
    with pytest.raises(ValueError, match="needs answers"):
        Calibration.fit("m", [], [])


def test_a_policy() -> None:
    tokens = [TokenLogprobs(1, -0.5, ((1, -0.5),)), TokenLogprobs(1, -1.5, ((1, -1.5),))]
    policy = Policy(0.3)
    assert policy.confidence(tokens) == pytest.approx(math.exp(-1))
    assert policy.keeps(policy.confidence(tokens))
    assert policy.confidence([]) == 0.0
    assert Policy(0.0).keeps(0.0)
    assert not Policy(1.01).keeps(1.0)
    with pytest.raises(ValueError, match="a threshold is a number"):
        Policy(math.nan)


def test_its_file(tmp_path: Path) -> None:
    path = tmp_path / "route.json"
    made = Calibration("m", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), (0.5, -0.5, 1 / 3), 0.25, 0.7)
    made.save(path)
    assert Calibration.load(path) == made
    fields = json.loads(path.read_text())
    for wrong, reason in (
        ({"kind": "other"}, "is no calibration"),
        ({"version": 9}, "another version"),
        ({"scales": [1, 0, 1]}, "is damaged"),
        ({"weights": [1, 2]}, "is damaged"),
        ({"bias": None}, "is damaged"),
        ({"means": [1, 2, True]}, "is damaged"),
    ):
        path.write_text(json.dumps(fields | wrong))
        with pytest.raises(DamagedFile, match=reason):
            Calibration.load(path)
    path.write_text("[]")
    with pytest.raises(DamagedFile, match="is no calibration"):
        Calibration.load(path)
    path.write_text("{")
    with pytest.raises(DamagedFile, match="not valid JSON"):
        Calibration.load(path)
