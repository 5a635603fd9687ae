"""Sampler: each step of the chain against an obvious implementation that sorts the vocabulary."""

import dataclasses
import math

import numpy as np
import pytest

from kukri.runtime.engine.errors import BadLogits
from kukri.runtime.engine.sampling.candidates import Candidates
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.sampling.sampler import Sampler
from kukri.runtime.engine.sampling.steps import Truncation
from kukri.runtime.engine.sampling.top_k import largest, top_k_of

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}  # everything off but the draw


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities, np.float32))


def draws(params: SamplingParams, logits: np.ndarray, n: int = 2000, history=()) -> np.ndarray:
    sampler = Sampler(params)
    return np.bincount([sampler.sample(logits, history) for _ in range(n)], minlength=len(logits)) / n


def truncated(logits: np.ndarray, params: SamplingParams) -> Candidates:
    """What top-k, top-p and min-p leave."""
    step = Truncation(params.top_k, params.top_p, params.min_p)
    return step(Candidates(None, logits, float(logits.max()), 0.0, False), ())


def possible(logits: np.ndarray, **params) -> set[int]:
    merged = SamplingParams(**{**OFF, **params})
    ids = truncated(logits, merged).ids
    return set(range(len(logits)) if ids is None else ids.tolist())


def obvious(logits: np.ndarray, params: SamplingParams) -> list[int]:
    """top-k → top-p → min-p with a full sort."""
    order = np.argsort(-logits, kind="stable")
    order = order[np.isfinite(logits[order])]
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp(logits[order].astype(np.float64) - logits[order[0]])
    probabilities = weights / weights.sum()
    if params.top_p < 1:
        before = np.cumsum(probabilities) - probabilities  # a token stays if those before do not reach p
        keep = before < params.top_p
        keep[0] = True
        order, probabilities = order[keep], probabilities[keep]
    keep = probabilities >= params.min_p * probabilities[0] * (1 - 1e-12)
    return order[keep].tolist()


# ---- greedy


def test_temperature_zero_is_argmax_and_ties_go_to_the_lowest_id():
    sampler = Sampler(SamplingParams(temperature=0))
    assert sampler.sample(np.array([1, 7, 3, 7, 7], np.float32)) == 1
    assert sampler.sample(np.full(50_000, -3, np.float32)) == 0


@pytest.mark.parametrize("temperature", [1e-4, 1e-8, 1e-30, 1e-300])
def test_tiny_temperatures_take_the_best(temperature):
    logits = np.random.default_rng(0).normal(size=300).astype(np.float32) * 5
    logits[17] = 40
    for params in [
        SamplingParams(temperature=temperature),
        SamplingParams(**{**OFF, "temperature": temperature}),
    ]:
        sampler = Sampler(params)
        with np.errstate(all="raise", under="ignore"):
            assert {sampler.sample(logits) for _ in range(20)} == {17}


def test_tiny_temperature_with_the_largest_floats():
    logits = np.array([-3e38, 3e38, -3e38], np.float32)
    for kwargs in [{}, OFF]:
        assert Sampler(SamplingParams(**{**kwargs, "temperature": 1e-4})).sample(logits) == 1


# ---- the truncating steps


@pytest.mark.parametrize(("top_k", "left"), [(1, {2}), (2, {2, 0}), (3, {2, 0, 3}), (4, {0, 1, 2, 3})])
def test_top_k(top_k, left):
    assert possible(logits_of(0.3, 0.1, 0.4, 0.2), top_k=top_k) == left


@pytest.mark.parametrize("top_k", [0, 4, 5, 10**9])
def test_top_k_off_or_above_the_vocabulary(top_k):
    assert possible(logits_of(0.3, 0.1, 0.4, 0.2), top_k=top_k) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("top_p", "left"),
    [(0.0, {2}), (0.39, {2}), (0.41, {2, 0}), (0.69, {2, 0}), (0.71, {2, 0, 3}), (0.95, {0, 1, 2, 3}),
     (1.0, {0, 1, 2, 3})],
)  # fmt: skip
def test_top_p_keeps_the_token_that_reaches_p(top_p, left):
    assert possible(logits_of(0.3, 0.1, 0.4, 0.2), top_p=top_p) == left


@pytest.mark.parametrize(
    ("min_p", "left"), [(0.0, {0, 1, 2, 3}), (0.3, {0, 2, 3}), (0.6, {0, 2}), (0.8, {2}), (1.0, {2})]
)
def test_min_p_is_relative_to_the_best(min_p, left):
    assert possible(logits_of(0.3, 0.1, 0.4, 0.2), min_p=min_p) == left


def test_top_p_looks_at_what_top_k_leaves():
    # Of all: 0.4 + 0.3 = 0.7 < 0.75. Of the best two: 0.4 / 0.7 = 0.57, so both are needed for 0.75 …
    logits = logits_of(0.3, 0.1, 0.4, 0.2)
    assert possible(logits, top_p=0.55) == {2, 0}
    assert possible(logits, top_p=0.55, top_k=2) == {2}  # … but one is enough for 0.55


def test_temperature_comes_last():
    """A high temperature flattens what is left, but does not let more through."""
    logits = logits_of(0.6, 0.3, 0.06, 0.04)
    drawn = draws(SamplingParams(**{**OFF, "temperature": 100.0, "top_p": 0.85}, seed=1), logits)
    assert drawn[2] == drawn[3] == 0
    assert abs(drawn[0] - 0.5) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("size", [7, 1000, 8192, 9001, 20_000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_against_a_full_sort(size, spread):
    random = np.random.default_rng(size)
    logits = (random.normal(size=size) * spread).astype(np.float32)
    logits[random.integers(size, size=size // 5)] = -np.inf
    logits[random.integers(size, size=size // 5)] = np.float32(0.5)  # ties
    for top_k in (0, 1, 3, 40, 256, 300, 5000):
        for top_p in (0.0, 0.5, 0.95, 1.0):
            for min_p in (0.0, 0.05, 0.9):
                params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
                left = truncated(logits, params)
                ids = np.arange(size) if left.ids is None else left.ids
                ids = ids[left.values > -np.inf]
                expected = obvious(logits, params)
                if top_p < 1.0 and len(expected) > 100:  # where the sum reaches p is a matter of rounding
                    shared = min(len(ids), len(expected))
                    assert abs(len(ids) - len(expected)) <= 1 + len(expected) // 5000
                    assert ids[:shared].tolist() == expected[:shared]
                else:
                    assert sorted(ids.tolist()) == sorted(expected)


def test_largest_orders_equals_by_id_and_drops_minus_infinity():
    logits = np.array([1, 5, -np.inf, 5, 2, 5], np.float32)
    assert largest(logits, 2).tolist() == [1, 3]
    assert largest(logits, 4).tolist() == [1, 3, 5, 4]
    assert largest(logits, 6).tolist() == [1, 3, 5, 4, 0]
    assert largest(np.zeros(50_000, np.float32), 40).tolist() == list(range(40))
    few = np.full(50_000, -np.inf, np.float32)
    few[[49_999, 7]] = 1, 2
    assert largest(few, 40).tolist() == [7, 49_999]


# ---- the draw


def test_frequencies_follow_the_softmax():
    probabilities = (0.5, 0.3, 0.15, 0.05)
    logits = logits_of(*probabilities)
    assert np.abs(draws(SamplingParams(**OFF, seed=3), logits, 5000) - probabilities).max() < 0.025
    half = np.array(probabilities) ** 2  # temperature ½ squares the probabilities
    half /= half.sum()
    drawn = draws(SamplingParams(**{**OFF, "temperature": 0.5}, seed=3), logits, 5000)
    assert np.abs(drawn - half).max() < 0.025


def test_seed_makes_it_reproducible():
    random = np.random.default_rng(0)
    rows = random.normal(size=(30, 500)).astype(np.float32)

    def run(seed):
        sampler = Sampler(SamplingParams(seed=seed))
        return [sampler.sample(row) for row in rows]

    assert run(7) == run(7)
    assert run(7) != run(8)
    assert run(None) != run(None)


def test_masked_tokens_are_never_drawn():
    logits = np.full(9000, -np.inf, np.float32)
    logits[[5, 8000]] = 0.0
    for kwargs in ({}, OFF, {"top_k": 0}, {"temperature": 50.0}):
        sampler = Sampler(SamplingParams(**{**kwargs, "seed": 0}))
        assert {sampler.sample(logits) for _ in range(50)} == {5, 8000}


# ---- repeat penalty


def greedy(logits, history, **params) -> int:
    return Sampler(SamplingParams(temperature=0, **params)).sample(np.array(logits, np.float32), history)


def test_penalty_divides_positive_and_multiplies_negative_logits():
    assert greedy([4.0, 3.0, 0.0], [0], repeat_penalty=1.3) == 0  # 3.08
    assert greedy([4.0, 3.0, 0.0], [0], repeat_penalty=1.4) == 1  # 2.86
    assert greedy([-4.0, -3.0, -9.0], [1], repeat_penalty=1.3) == 1  # -3.9
    assert greedy([-4.0, -3.0, -9.0], [1], repeat_penalty=1.4) == 0  # -4.2
    assert greedy([4.0, 3.0, 0.0], [1, 1, 1], repeat_penalty=0.7) == 1  # once, however often it occurs


def test_penalty_looks_at_the_last_n_only():
    history = [0, 1, 2, 2]
    logits = [4.0, 3.9, 3.8, 3.7]
    assert greedy(logits, history, repeat_penalty=2.0, repeat_last_n=2) == 0
    assert greedy(logits, history, repeat_penalty=2.0, repeat_last_n=3) == 0
    assert greedy(logits, history, repeat_penalty=2.0, repeat_last_n=4) == 3
    assert greedy(logits, history, repeat_penalty=2.0, repeat_last_n=-1) == 3
    assert greedy(logits, history, repeat_penalty=2.0, repeat_last_n=0) == 0
    assert greedy(logits, [], repeat_penalty=2.0) == 0


def test_penalty_leaves_the_callers_logits_alone():
    logits = np.array([4.0, 3.0, -1.0], np.float32)
    logits.flags.writeable = False
    sampler = Sampler(SamplingParams(repeat_penalty=1.5))
    sampler.sample(logits, [0, 2])
    assert logits.tolist() == [4.0, 3.0, -1.0]
    assert sampler.sample(np.array([9.0, 0.0], np.float32), [1]) == 0  # another vocabulary is fine too


def test_penalty_comes_before_top_k():
    logits = np.array([5.0, 4.0, 3.0], np.float32)
    params = SamplingParams(temperature=1.0, top_k=1, repeat_penalty=2.0)
    assert Sampler(params).sample(logits, [0]) == 1


def test_a_long_history_costs_nothing():
    class History(list):
        def __iter__(self):
            raise AssertionError("the whole history was walked")

    assert greedy([4.0, 3.0], History([1] * 10**6 + [0] * 64), repeat_penalty=2.0) == 1


# ---- the best tokens instead of all logits


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"temperature": 0},
        {"top_k": 1},
        {"top_k": 5, "top_p": 1.0, "min_p": 0.0},
        {"top_k": 200, "temperature": 3.0},
        {"repeat_penalty": 1.7},
        {"repeat_penalty": 1.7, "repeat_last_n": -1, "temperature": 0},
        {"repeat_penalty": 4.0, "repeat_last_n": 3, "top_k": 2, "top_p": 1.0},
        {"repeat_penalty": 0.5, "repeat_last_n": 0},
    ],
)
@pytest.mark.parametrize("size", [300, 20_000])
def test_the_best_give_what_all_logits_give(kwargs, size):
    rng = np.random.default_rng(5)
    whole, few = (Sampler(SamplingParams(seed=7, **kwargs)) for _ in range(2))
    history: list[int] = []
    for i in range(60):
        logits = rng.normal(size=size).astype(np.float32)
        logits = np.round(logits, 1) if i % 2 else logits  # many that are equal
        logits[rng.integers(0, size, 9)] = -np.inf
        best = few.top_k_needed(size, len(history))
        assert 0 < best <= 300
        token = whole.sample(logits, history)
        assert few.sample(top_k_of([logits], best)[0], history) == token
        history += [token, *top_k_of([logits], 3)[0].ids.tolist()]


@pytest.mark.parametrize("kwargs", [{"top_k": 0}, {"top_k": 300}, {"repeat_penalty": 0.9}])
def test_where_the_best_are_not_enough(kwargs):
    assert Sampler(SamplingParams(**kwargs)).top_k_needed(300, 10) == 0


# ---- bad input


@pytest.mark.parametrize("kwargs", [{"temperature": 0}, {}, OFF, {"repeat_penalty": 1.2}, {"top_k": 1}])
@pytest.mark.parametrize(
    ("bad", "message"),
    [([1, math.nan, 2], "NaN"), ([math.nan] * 3, "NaN"), ([1, math.inf, 2], "inf"),
     ([math.inf, math.nan, 1], "NaN"), ([-math.inf] * 3, "all logits are -inf")],
)  # fmt: skip
@pytest.mark.parametrize("size", [3, 20_000])
def test_bad_logits(kwargs, bad, message, size):
    logits = np.full(size, -math.inf if bad == [-math.inf] * 3 else 0.0, np.float32)
    logits[-3:] = bad
    sampler = Sampler(SamplingParams(**kwargs))
    with pytest.raises(BadLogits, match=message):
        sampler.sample(logits, [0, 1])
    if best := sampler.top_k_needed(size, 2):
        with pytest.raises(BadLogits, match=message):
            sampler.sample(top_k_of([logits], best)[0], [0, 1])


@pytest.mark.parametrize(
    "kwargs",
    [
        {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf}, {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": -0.1}, {"top_p": 1.1}, {"top_p": math.nan}, {"min_p": -0.1}, {"min_p": 1.1},
        {"repeat_penalty": 0}, {"repeat_penalty": -1}, {"repeat_penalty": math.inf}, {"repeat_last_n": -2},
        {"seed": -1}, {"seed": 0.5}, {"max_tokens": -1}, {"stop": ("",)}, {"stop": (3,)}, {"stop": ""},
    ],
)  # fmt: skip
def test_params_out_of_range(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))) as error:
        SamplingParams(**kwargs)
    assert "\n" not in str(error.value)


def test_params_are_frozen_and_normalise_stop():
    params = SamplingParams(stop=["a", "b"], seed=np.int64(3), max_tokens=0, repeat_last_n=-1)
    assert params.stop == ("a", "b")
    assert SamplingParams(stop="END").stop == ("END",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3
    assert dataclasses.replace(params, top_k=3).top_k == 3


# ---- where a chain begins and ends


def test_defaults():
    assert SamplingParams() == SamplingParams(
        temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0, repeat_last_n=64,
        seed=None, max_tokens=None, stop=(), ignore_eos=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kwargs", "history", "k"),
    [
        ({"temperature": 0}, 10, 1),
        ({"top_k": 1}, 10, 1),
        ({"top_k": 2}, 10, 2),
        ({"top_k": 299}, 10, 299),
        ({"top_k": 2, "repeat_penalty": 2.0}, 10, 12),
        ({"top_k": 2, "repeat_penalty": 2.0, "repeat_last_n": 4}, 10, 6),
        ({"top_k": 2, "repeat_penalty": 2.0, "repeat_last_n": 1}, 0, 2),
        ({"top_k": 2, "repeat_penalty": 2.0, "repeat_last_n": 0}, 10, 2),
        ({"temperature": 0, "repeat_penalty": 1.5, "repeat_last_n": -1}, 100, 101),
        ({"repeat_penalty": 0.5, "repeat_last_n": 1}, 10, 0),
    ],
)
def test_how_many_of_the_best_are_needed(kwargs, history, k):
    assert Sampler(SamplingParams(**kwargs)).top_k_needed(300, history) == k


def test_ids_beyond_the_logits_are_not_penalised():
    """A prompt may hold ids that the model never generates, the first of them just behind the last logit."""
    logits = logits_of(0.1, 0.5, 0.4)
    assert Sampler(SamplingParams(temperature=0, repeat_penalty=9.0)).sample(logits, [3, 4, 50]) == 1
    assert Sampler(SamplingParams(temperature=0, repeat_penalty=9.0)).sample(logits, [2, 3]) == 1
    assert Sampler(SamplingParams(temperature=0, repeat_penalty=9.0)).sample(logits, [1, 3]) == 2


@pytest.mark.parametrize("kwargs", [{}, {"temperature": 0}, {"top_k": 3, "top_p": 1.0, "min_p": 0.0}])
def test_fewer_tokens_than_top_k_have_a_chance(kwargs):
    logits = np.full(100, -np.inf, np.float32)
    logits[[7, 30]] = 5.0, 4.0
    params = SamplingParams(seed=3, **kwargs)
    whole, few = Sampler(params), Sampler(params)
    best = top_k_of([logits], 40)[0]
    drawn = [few.sample(best) for _ in range(50)]
    assert drawn == [whole.sample(logits) for _ in range(50)]
    assert set(drawn) == ({7} if kwargs.get("temperature") == 0 else {7, 30})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or more"), ({"temperature": math.inf}, "temperature"),
        ({"top_p": 1.01}, "top_p must be between 0 and 1"), ({"top_p": -0.01}, "top_p"),
        ({"min_p": 1.01}, "min_p must be between 0 and 1"), ({"min_p": -0.01}, "min_p"),
        ({"repeat_penalty": 0.9e-30}, "repeat_penalty"), ({"repeat_penalty": 1.1e30}, "repeat_penalty"),
        ({"top_k": -1}, "top_k must be a whole number, 0 or more"), ({"repeat_last_n": -2}, "-1 or more"),
        ({"seed": -1}, "seed must be"), ({"max_tokens": -1}, "max_tokens must be"),
    ],
)  # fmt: skip
def test_just_out_of_range(params, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**params)


def test_just_in_range():
    SamplingParams(temperature=0, top_p=0, min_p=0, repeat_penalty=1e-30, top_k=0, repeat_last_n=-1, seed=0)
    SamplingParams(top_p=1, min_p=1, repeat_penalty=1e30, max_tokens=0)


def test_the_draw_is_that_of_the_softmax_behind_min_p():
    """With min-p alone nothing is sorted; tokens at the limit itself remain."""
    logits = np.array([3.0, 3.0 + math.log(0.25), 2.9 + math.log(0.25), -np.inf], np.float32)
    assert possible(logits, min_p=0.2499) == {0, 1}
    assert possible(logits, min_p=0.2) == {0, 1, 2}
    assert possible(logits, min_p=1.0) == {0}
