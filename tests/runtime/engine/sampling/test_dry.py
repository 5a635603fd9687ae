"""DRY: against the definition in loops, and how its index moves along a history."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kukri.runtime.engine.sampling.dry import STEPS, Dry
from kukri.runtime.engine.sampling.params import SamplingParams

from ....usual_machine import within
from . import twin


def params(**kwargs) -> SamplingParams:
    return SamplingParams(**{"dry_multiplier": 0.5, "dry_sequence_breakers": ()} | kwargs)


def losses(dry: Dry, history) -> dict[int, float]:
    change = dry.change(history)
    return {} if change is None else dict(change.ids)


def test_the_example_of_the_definition():
    """… a b c c b c y a b c: c would make a repetition of 3 one of 4, b one of 1 and y one of 2."""
    a, b, c, y = 1, 2, 3, 9
    history = [a, b, c, c, b, c, y, a, b, c]
    assert losses(Dry(params(dry_allowed_length=1)), history) == {c: 0.5 * 1.75**2, b: 0.5, y: 0.5 * 1.75}
    assert losses(Dry(params()), history) == {c: 0.5 * 1.75, y: 0.5}
    assert losses(Dry(params(dry_allowed_length=3, dry_base=2.0)), history) == {c: 0.5}
    assert losses(Dry(params(dry_allowed_length=4)), history) == {}


def test_a_repetition_ends_at_a_sequence_breaker():
    history = [1, 2, 3, 4, 5, 1, 2, 3, 4]
    assert losses(Dry(params()), history) == {5: 0.5 * 1.75**2}
    assert losses(Dry(params(dry_sequence_breakers=((2,),))), history) == {5: 0.5}
    assert losses(Dry(params(dry_sequence_breakers=((3,),))), history) == {}
    assert losses(Dry(params(dry_sequence_breakers=((2, 3),))), history) == {}
    assert losses(Dry(params(dry_sequence_breakers=((1, 2),))), history) == {5: 0.5}
    assert losses(Dry(params(dry_sequence_breakers=((2, 4),))), history) == {5: 0.5 * 1.75**2}
    assert losses(Dry(params(dry_sequence_breakers=((5,),))), history) == {}  # it may always come again
    assert losses(Dry(params(dry_sequence_breakers=((5, 1),))), history) == {5: 0.5 * 1.75}


@pytest.mark.parametrize("seed", range(30))
def test_every_history_gives_what_the_loops_give(seed):
    rng = np.random.default_rng(seed)
    breakers = [tuple(rng.integers(0, 6, rng.integers(1, 4)).tolist()) for _ in range(rng.integers(0, 3))]
    settings = params(
        dry_sequence_breakers=tuple(breakers),
        dry_allowed_length=int(rng.integers(1, 4)),
        dry_penalty_last_n=int(rng.choice([-1, 1, 7, 30, 1000])),
        dry_base=float(rng.choice([1.0, 1.75, 3.0])),
    )
    history = rng.integers(0, rng.integers(2, 7), 3 * STEPS).tolist()
    one_by_one = Dry(settings)
    for n in range(len(history) + 1):
        expected = twin.dry(history[:n], settings)
        assert losses(one_by_one, history[:n]) == pytest.approx(expected), n
        if n % 16 == 0:
            assert losses(Dry(settings), history[:n]) == pytest.approx(expected), n  # all at once
            assert losses(one_by_one, history[:n]) == pytest.approx(expected), n  # and twice


def test_a_shorter_history_is_another_one():
    dry = Dry(params())
    assert losses(dry, [1, 2, 3, 1, 2]) == {3: 0.5}
    assert losses(dry, [7, 8, 9]) == {}
    assert losses(dry, [7, 8, 9, 7, 8]) == {9: 0.5}


def test_long_repetitions_cost_no_more_than_a_float_holds():
    history = [4, 5] * 3000
    change = losses(Dry(params(dry_base=100.0)), history)
    assert change.keys() == {4}
    assert 1e30 >= change[4] > 1e29
    assert losses(Dry(params(dry_base=1.0)), history) == {4: 0.5}


def test_a_prompt_of_one_token_repeated_is_read_in_bounded_time():
    """The longest passage that counts is bounded, or this would take quadratic time."""
    start = time.process_time()
    assert losses(Dry(params()), [3] * 100_000)[3] > 1e20
    assert within(time.process_time() - start, 2.0)


def test_an_engine_takes_no_text():
    with pytest.raises(ValueError, match="dry_sequence_breakers has the text"):
        Dry(SamplingParams(dry_multiplier=1.0))
