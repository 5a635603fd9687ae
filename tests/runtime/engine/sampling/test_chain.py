"""The whole chain of samplers: against the twin, against what others define, and in its order."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.engine.errors import BadLogits
from kukri.runtime.engine.sampling.candidates import Candidates
from kukri.runtime.engine.sampling.mirostat import Mirostat
from kukri.runtime.engine.sampling.params import DEFAULT_SAMPLERS, SamplingParams
from kukri.runtime.engine.sampling.sampler import Sampler
from kukri.runtime.engine.sampling.top_k import top_k_of

from . import twin

DATA = Path(__file__).resolve().parents[3] / "data" / "sampling"
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
DRY = {"dry_multiplier": 0.8, "dry_sequence_breakers": ()}
HISTORY = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 1, 4, 1]


class Spy(Sampler):
    """Notes the distribution that it draws from."""

    def _draw_of(self, ids, gaps):
        weights = np.exp(gaps.astype(np.float64))
        self.probabilities = dict(
            zip((range(len(gaps)) if ids is None else ids.tolist()), weights / weights.sum(), strict=True)
        )
        return super()._draw_of(ids, gaps)


def drawn_from(logits, history, params) -> np.ndarray:
    """The distribution that a sampler has, float64 [vocab]."""
    spy = Spy(params)
    token = spy.sample(logits, history)
    result = np.zeros(len(logits))
    for id_, p in getattr(spy, "probabilities", {token: 1.0}).items():
        result[id_] = p
    return result


def some_logits(seed: int, size: int = 40, spread: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32)


# One of each, to be drawn from and to be combined.
EACH = {
    "nothing": {},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "temperature": {"temperature": 1.6},
    "typical": {"typical_p": 0.6},
    "top_n_sigma": {"top_n_sigma": 1.2},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.05},
    "dynatemp": {"temperature": 0.9, "dynatemp_range": 0.6, "dynatemp_exp": 1.3},
    "repeat": {"repeat_penalty": 1.4},
    "presence": {"presence_penalty": 0.9},
    "frequency": {"frequency_penalty": 0.7},
    "bias": {"logit_bias": {2: 1.5, 7: -2.0, 9: -math.inf}},
    "dry": DRY,
    "mirostat": {"mirostat": 2, "mirostat_ent": 2.0, "mirostat_lr": 0.0},
}


@pytest.mark.parametrize("name", [name for name in EACH if name != "mirostat"])  # it draws by itself
@pytest.mark.parametrize("spread", [0.3, 2.0, 8.0])
def test_each_has_the_distribution_of_its_twin(name, spread):
    # XTC draws whether to act, before anything else: here it always does.
    kwargs = {**OFF, **EACH[name]} | ({"xtc_probability": 1.0} if name == "xtc" else {})
    params = SamplingParams(**kwargs)
    changed = 0
    for seed in range(8):
        logits = some_logits(seed, spread=spread)
        logits[[11, 12, 30]] = logits[0], logits[0], -np.inf  # equals, and one that is impossible
        expected = twin.distribution(logits, params, HISTORY)
        np.testing.assert_allclose(drawn_from(logits, HISTORY, params), expected, rtol=3e-5, atol=1e-9)
        plain = twin.distribution(logits, SamplingParams(**OFF), [])
        changed += not np.allclose(expected, plain, rtol=1e-3)
    assert name == "nothing" or changed or spread != 2.0


def check_draws(params: SamplingParams, logits: np.ndarray, top_k: bool = False) -> None:
    """χ² of 20,000 draws, with a fixed seed, is below its 0.999 quantile (Wilson and Hilferty 1931)."""
    n = 20_000
    expected = n * twin.distribution(logits, params, HISTORY, mu=2 * params.mirostat_ent)
    sampler = Sampler(params)
    k = sampler.top_k_needed(len(logits), len(HISTORY)) if top_k else 0
    given = top_k_of([logits], k)[0] if k else logits
    counts = np.bincount([sampler.sample(given, HISTORY) for _ in range(n)], minlength=len(logits))
    assert not counts[expected == 0].any()
    order = np.argsort(-expected)  # tokens that are drawn less than five times count as one
    rare = expected[order] < 5
    counted = np.append(counts[order][~rare], counts[order][rare].sum())
    wanted = np.append(expected[order][~rare], expected[order][rare].sum())
    counted, wanted = (counted[:-1], wanted[:-1]) if wanted[-1] == 0 else (counted, wanted)
    freedom = len(wanted) - 1
    assert freedom >= 2
    chi2 = ((counted - wanted) ** 2 / wanted).sum()
    assert chi2 < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_twenty_thousand_draws_follow_the_distribution(name):
    check_draws(SamplingParams(**{**OFF, **EACH[name]}, seed=12345), some_logits(7, size=24, spread=1.2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["nothing", "typical", "top_n_sigma", "xtc", "dynatemp", "repeat", "bias", "dry"]
)
def test_so_do_those_of_the_defaults_with_each_step(name):
    """As an engine draws: from the top k where that is enough."""
    check_draws(SamplingParams(**EACH[name], seed=54321), some_logits(3, size=200, spread=1.2), top_k=True)


@pytest.mark.slow
@pytest.mark.parametrize("base", [{}, OFF])
def test_so_do_those_of_all_steps_together(base):
    everything = {k: v for each in EACH.values() for k, v in each.items() if not k.startswith("mirostat")}
    milder = {"typical_p": 0.9, "top_n_sigma": 2.5, "top_p": 0.95, "top_k": 30, "min_p": 0.02}
    check_draws(SamplingParams(**{**base, **everything, **milder}, seed=777), some_logits(5, size=60))


def random_params(rng: np.random.Generator) -> SamplingParams:
    """Any of the steps, in any order, some twice or not at all."""
    kwargs = dict(OFF)
    for name in rng.permutation([name for name in EACH if name != "mirostat"])[: rng.integers(1, 8)]:
        kwargs |= EACH[name]
    if "xtc_probability" in kwargs:
        kwargs["xtc_probability"] = 1.0
    names = rng.choice(DEFAULT_SAMPLERS, rng.integers(3, 12))
    return SamplingParams(**kwargs, samplers=DEFAULT_SAMPLERS if rng.random() < 0.3 else tuple(names))


@pytest.mark.parametrize("seed", range(60))
def test_any_chain_has_the_distribution_of_its_twin(seed):
    rng = np.random.default_rng(seed)
    params = random_params(rng)
    logits = some_logits(seed, size=30)
    expected = twin.distribution(logits, params, HISTORY)
    np.testing.assert_allclose(drawn_from(logits, HISTORY, params), expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_any_chain_draws_the_same_from_the_top_k(seed):
    rng = np.random.default_rng(1000 + seed)
    params = SamplingParams(
        seed=seed,
        top_k=int(rng.integers(1, 30)),
        temperature=float(rng.choice([0.0, 0.7, 1.5])),
        top_p=float(rng.choice([0.8, 1.0])),
        presence_penalty=float(rng.choice([0.0, 0.6])),
        frequency_penalty=float(rng.choice([0.0, 0.4])),
        repeat_penalty=float(rng.choice([1.0, 1.2])),
        logit_bias={3: -1.0, 4: -math.inf} if rng.random() < 0.5 else {},
        typical_p=float(rng.choice([0.7, 1.0])),
        xtc_probability=float(rng.choice([0.0, 0.5])),
        dynatemp_range=float(rng.choice([0.0, 0.5])),
    )
    whole, few = Sampler(params), Sampler(params)
    history = [3, 1, 4]
    for i in range(40):
        logits = some_logits(i, size=500)
        k = few.top_k_needed(500, len(history))
        assert 0 < k < 100
        token = whole.sample(logits, history)
        assert few.sample(top_k_of([logits], k)[0], history) == token
        history += [token, int(logits.argmax())]


@pytest.mark.parametrize(
    "kwargs",
    [
        DRY, {"top_n_sigma": 1.0}, {"presence_penalty": -0.1}, {"frequency_penalty": -0.1}, {"mirostat": 2},
        {"logit_bias": {1: 0.5}}, {"logprobs": 0}, {"samplers": ("top_p", "top_k")}, {"samplers": ()},
        {"samplers": ("temperature", "top_k")}, {"temperature": 0, "dynatemp_range": 0.5, "top_k": 0},
        {"temperature": 0, "typical_p": 0.5, "top_k": 0}, {"temperature": 0, "logprobs": 0},
    ],
)  # fmt: skip
def test_chains_that_need_all_logits(kwargs):
    assert Sampler(SamplingParams(**kwargs)).top_k_needed(300, 10) == 0


@pytest.mark.parametrize(
    ("kwargs", "k"),
    [
        ({"presence_penalty": 0.5}, 50), ({"frequency_penalty": 0.5, "repeat_last_n": 4}, 44),
        ({"logit_bias": {1: -1, 2: -2}}, 42), ({"temperature": 0, "logit_bias": {1: -1}}, 2),
        ({"xtc_probability": 0.5, "temperature": 0}, 40), ({"mirostat": 2, "temperature": 0}, 1),
        ({"temperature": 0, "top_n_sigma": 1.0}, 1), ({"samplers": ("top_k",)}, 40),
        ({"temperature": 0, "samplers": ("temperature", "penalties"), "repeat_penalty": 1.5}, 1),
        ({"dry_multiplier": 1.0, "samplers": ("top_k", "temperature")}, 40),
    ],
)  # fmt: skip
def test_chains_that_need_the_top_k(kwargs, k):
    assert Sampler(SamplingParams(**kwargs)).top_k_needed(300, 10) == k


# ---- today's chain, and what others define


def rows(size: int):
    """The logits that default_chain.json was recorded with."""
    random = np.random.default_rng(size)
    for i in range(60):
        logits = (random.standard_normal(size) * (0.5, 2.0, 5.0)[i % 3]).astype(np.float32)
        if i % 4 == 0:
            logits = np.round(logits, 1)
        logits[random.integers(size, size=size // 9)] = -np.inf
        yield logits


@pytest.mark.parametrize(
    "case", json.loads((DATA / "default_chain.json").read_text()), ids=lambda c: f"{c['size']}-{c['params']}"
)
def test_the_default_chain_draws_what_it_drew_before_there_were_others(case):
    sampler = Sampler(SamplingParams(seed=11, **case["params"]))
    history = [1, 2, 3]
    for logits in rows(case["size"]):
        history.append(sampler.sample(logits, history))
    assert history[3:] == case["tokens"]


def test_what_transformers_keeps():
    """tests/data/sampling/transformers.json holds what its LogitsWarpers and LogitsProcessors give."""
    for case in json.loads((DATA / "transformers.json").read_text())["cases"]:
        logits = np.array(case["logits"], np.float32)
        for what, expected in case["kept"].items():
            name, value = what.split()
            value = int(value) if name == "top_k" else float(value)
            left = np.flatnonzero(drawn_from(logits, [], SamplingParams(**{**OFF, name: value})))
            assert left.tolist() == expected, what
        for penalty, changed in case["repeat"].items():
            params = SamplingParams(**OFF, repeat_penalty=float(penalty))
            weights = np.exp(np.array(changed))
            np.testing.assert_allclose(
                drawn_from(logits, [0, 3, 3, 7], params), weights / weights.sum(), rtol=1e-5
            )


# ---- the order


def test_the_order_of_the_samplers_is_what_it_says():
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    cold = {"top_p": 0.7, "temperature": 0.5, "top_k": 0, "min_p": 0.0}

    def left(*names):
        return set(np.flatnonzero(drawn_from(logits, [], SamplingParams(**cold, samplers=names))))

    assert left("top_p", "temperature") == {0, 1}
    assert left("temperature", "top_p") == {0}  # colder, the first has 0.72
    assert left("top_p") == {0, 1}
    assert left() == {0, 1, 2, 3}


def test_a_sampler_that_is_not_named_has_no_effect():
    logits = some_logits(3)
    everything = {k: v for each in EACH.values() for k, v in each.items() if not k.startswith("mirostat")}
    params = SamplingParams(**{**OFF, **everything, "logit_bias": ()}, samplers=())
    expected = twin.distribution(logits, SamplingParams(**OFF), [])
    np.testing.assert_allclose(drawn_from(logits, HISTORY, params), expected, rtol=1e-5)
    greedy = SamplingParams(temperature=0, samplers=("top_k",), top_k=3, seed=0)
    sampler = Sampler(greedy)
    assert len({sampler.sample(logits) for _ in range(200)}) == 3


def test_temperature_zero_takes_what_xtc_leaves():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    params = SamplingParams(temperature=0, xtc_probability=1.0, xtc_threshold=0.1)
    assert Sampler(params).sample(logits) == 2
    first = SamplingParams(
        temperature=0, xtc_probability=1.0, xtc_threshold=0.1, samplers=("temperature", "xtc")
    )
    assert Sampler(first).sample(logits) == 0


def test_penalties_behind_other_steps_see_the_logits_that_are_left():
    """The repeat penalty asks whether a logit is positive: the model's own, not one that was shifted."""
    logits = np.array([5.0, 4.0, -1.0, 3.0], np.float32)
    params = SamplingParams(**{**OFF, "top_k": 3}, repeat_penalty=2.0, samplers=("top_k", "penalties"))
    expected = np.exp([2.5, 4.0, -np.inf, 1.5])
    np.testing.assert_allclose(drawn_from(logits, [0, 3], params), expected / expected.sum(), rtol=1e-5)


# ---- each on its own, where numbers can be said


def test_presence_counts_once_and_frequency_each_time():
    logits = np.zeros(4, np.float32)
    for kwargs, expected in (
        ({"presence_penalty": 1.5}, [-1.5, -1.5, 0, 0]),
        ({"frequency_penalty": 0.5}, [-1.5, -0.5, 0, 0]),
        ({"frequency_penalty": 0.5, "presence_penalty": 1.0, "repeat_last_n": 2}, [-1.5, -1.5, 0, 0]),
        ({"frequency_penalty": -1.0, "repeat_last_n": -1}, [3.0, 1.0, 0, 0]),
    ):
        weights = np.exp(expected)
        got = drawn_from(logits, [0, 0, 1, 0], SamplingParams(**OFF, **kwargs))
        np.testing.assert_allclose(got, weights / weights.sum(), rtol=1e-5)


def test_a_bias_bans_forces_and_ignores_what_is_not_there():
    logits = some_logits(1)
    best = int(logits.argmax())
    assert Sampler(SamplingParams(temperature=0, logit_bias={best: -math.inf})).sample(logits) != best
    assert Sampler(SamplingParams(temperature=0, logit_bias={8: 100.0, 4000: 200.0})).sample(logits) == 8
    with pytest.raises(BadLogits, match="all logits are -inf"):
        Sampler(SamplingParams(logit_bias={0: -math.inf, 1: -math.inf})).sample(logits[:2])


def test_xtc_leaves_one_of_the_top_choices():
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))

    def left(threshold):
        params = SamplingParams(**OFF, xtc_probability=1.0, xtc_threshold=threshold)
        return set(np.flatnonzero(drawn_from(logits, [], params)))

    assert left(0.15) == {2, 3}
    assert left(0.25) == {1, 2, 3}
    assert left(0.35) == {0, 1, 2, 3}  # one choice is none to exclude
    assert left(0.51) == {0, 1, 2, 3}
    assert left(0.0) == {3}
    equals = SamplingParams(**OFF, xtc_probability=1.0, xtc_threshold=0.1)
    assert set(np.flatnonzero(drawn_from(np.zeros(4, np.float32), [], equals))) == {3}


def test_dynamic_temperature_is_low_for_sure_tokens_and_high_for_even_ones():
    params = SamplingParams(**{**OFF, "temperature": 1.0}, dynatemp_range=1.0)
    even = np.zeros(5, np.float32)
    np.testing.assert_allclose(drawn_from(even, [], params), 0.2)
    sure = np.array([20.0, 0.0, 0.0], np.float32)
    assert drawn_from(sure, [], params)[0] == 1.0
    only = np.array([-np.inf, 1.0], np.float32)
    assert drawn_from(only, [], params)[1] == 1.0


def test_mirostat_moves_mu_by_the_error_and_keeps_to_it():
    rng = np.random.default_rng(4)
    mirostat = Mirostat(target=2.0, rate=0.3, random=np.random.default_rng(0))
    mu = 4.0
    surprises = []
    for _ in range(400):
        logits = (rng.normal(size=60) * 2).astype(np.float32)
        params = SamplingParams(**OFF, mirostat=2)
        p = twin.distribution(logits, params, [], mu=mirostat.mu)
        token = mirostat.choose(Candidates(None, logits, float(logits.max()), 0.0, False))
        assert p[token] > 0
        mu -= 0.3 * (-math.log2(p[token]) - 2.0)
        assert mirostat.mu == pytest.approx(mu, rel=1e-4)
        surprises.append(-math.log2(p[token]))
    assert abs(np.mean(surprises[100:]) - 2.0) < 0.1
    low = Mirostat(target=0.0, rate=0.1, random=np.random.default_rng(0))
    assert low.choose(Candidates(None, logits, float(logits.max()), 0.0, False)) == logits.argmax()


def test_mirostat_replaces_the_other_steps_but_not_the_bias():
    logits = some_logits(2)
    best = int(logits.argmax())
    params = SamplingParams(
        top_k=1, repeat_penalty=9.0, mirostat=2, seed=0, logit_bias={best: -math.inf}, mirostat_ent=9.0
    )
    sampler = Sampler(params)
    drawn = {sampler.sample(logits, [best]) for _ in range(300)}
    assert len(drawn) > 5
    assert best not in drawn
    assert Sampler(SamplingParams(temperature=0, mirostat=2)).sample(logits) == best


@pytest.mark.parametrize("name", EACH)
def test_the_same_seed_gives_the_same_tokens(name):
    def run(seed):
        sampler = Sampler(SamplingParams(**{**OFF, **EACH[name]}, seed=seed))
        history = list(HISTORY)
        for i in range(40):
            history.append(sampler.sample(some_logits(i), history))
        return history

    assert run(5) == run(5) != run(6)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("size", [3, 20_000])
def test_logits_at_their_limits(name, size):
    """Errors are BadLogits whatever the steps, and what is impossible is never drawn."""
    for bad, message in ((math.nan, "NaN"), (math.inf, "inf")):
        logits = np.zeros(size, np.float32)
        logits[1] = bad
        with pytest.raises(BadLogits, match=message):
            Sampler(SamplingParams(**{**OFF, **EACH[name]})).sample(logits, HISTORY)
    with pytest.raises(BadLogits, match="all logits are -inf"):
        Sampler(SamplingParams(**{**OFF, **EACH[name]})).sample(np.full(size, -np.inf, np.float32), HISTORY)
    few = np.full(size, -np.inf, np.float32)
    few[[0, 2]] = 3e38, -3e38
    sampler = Sampler(SamplingParams(**{**OFF, **EACH[name]}, seed=0))
    with np.errstate(all="raise", under="ignore"):
        assert {sampler.sample(few, [2]) for _ in range(20)} <= {0, 2}


def test_logits_are_not_changed():
    logits = some_logits(0)
    logits.flags.writeable = False
    for each in EACH.values():
        Sampler(SamplingParams(**{**OFF, **each})).sample(logits, HISTORY)


def test_the_largest_floats_are_no_trouble_for_pairs_of_steps():
    logits = np.array([3e38, -3e38, 0.0], np.float32)
    for one, two in pairwise(EACH):
        params = SamplingParams(**{**OFF, **EACH[one], **EACH[two]}, seed=0)
        assert Sampler(params).sample(logits, HISTORY) in (0, 2)
