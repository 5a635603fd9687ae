"""Constrained answers: only allowed tokens, forced ones without steps, and all of it beside other answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.errors import ConstraintError
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.scheduling.constrained import ConstrainedAnswer
from kukri.runtime.engine.speculation.policy import Acceptance

from ..test_engine import VOCAB
from .test_many import check_pages
from .test_speculation import new_engine, params, prompt_of

END = VOCAB - 1


class Pattern:
    """Each place of an answer takes a set of ids. Where it has one, that id is forced; None takes any. Behind
    the last place only the end may come, or whatever may come anew if it is `open`."""

    def __init__(self, places: Sequence[set[int] | None], open_: bool = False) -> None:
        self.places = places
        self.open = open_
        self.taken: list[int] = []

    def _at(self, n: int) -> set[int] | None:
        if n < len(self.places):
            return self.places[n]
        return None if self.open else {END}

    @property
    def complete(self) -> bool:
        return len(self.taken) >= len(self.places)

    @property
    def ended(self) -> bool:
        return self.complete and not self.open

    def masks(self, ids: Sequence[int] = ()) -> list[np.ndarray | None]:
        assert self.n_allowed(ids) == len(ids)
        return [self._mask(len(self.taken) + n) for n in range(len(ids) + 1)]

    def _mask(self, n: int) -> np.ndarray | None:
        allowed = self._at(n)
        if allowed is None:
            return None
        return np.packbits([i in allowed for i in range(VOCAB)], bitorder="little")

    def n_allowed(self, ids: Sequence[int]) -> int:
        for n, id_ in enumerate(ids):
            allowed = self._at(len(self.taken) + n)
            if allowed is not None and id_ not in allowed:
                return n
        return len(ids)

    def accept(self, id_: int) -> None:
        if self.n_allowed([id_]) == 0:
            raise ConstraintError(f"{id_} is not allowed in place {len(self.taken)}")
        self.taken.append(id_)

    def forced(self) -> list[int]:
        forced: list[int] = []
        while (n := len(self.taken) + len(forced)) < len(self.places):
            allowed = self.places[n]
            if allowed is None or len(allowed) > 1:
                break
            forced += allowed
        return forced

    def restart(self) -> None:
        self.taken.clear()


EVEN, ODD = set(range(0, END, 2)), set(range(1, END, 2))
PLACES = [EVEN, {3}, {4}, {5}, ODD, EVEN | ODD, EVEN, {7}, ODD]


def fits(answer: list[int], places: Sequence[set[int] | None]) -> bool:
    return len(answer) == len(places) and Pattern(places).n_allowed(answer) == len(answer)


@pytest.mark.parametrize(
    "more", [{}, {"temperature": 1.5, "top_k": 0}, {"repeat_penalty": 1.3}, {"logprobs": 2}]
)
@pytest.mark.parametrize("seed", range(4))
def test_an_answer_fits_and_ends_when_it_is_complete(seed, more):
    engine = new_engine(end_ids=[END])
    generation = engine.submit(prompt_of(seed), params(50, **more), constraint=Pattern(PLACES))
    assert fits(list(generation), PLACES)
    stats = generation.stats
    assert (stats.finish_reason, stats.complete) == ("stop", True)
    assert len(generation.logprobs) == (len(PLACES) if "logprobs" in more else 0)
    assert [each.id for each in generation.logprobs] in ([], generation.tokens)
    if "logprobs" not in more:  # the forced ones take no steps
        assert stats.decode_steps <= 4
    assert stats.decode_tokens == len(PLACES) - (1 if "logprobs" in more else 4)  # of the first step
    check_pages(engine)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_end_comes_only_where_it_is_allowed(ignore_eos):
    engine = new_engine(end_ids=[END])
    biased = params(30, logit_bias={END: 50.0}, ignore_eos=ignore_eos)
    places = [EVEN] * 5 + [{END, 1}]
    generation = engine.submit([1, 2, 3], biased, constraint=Pattern(places, open_=True))
    assert len(list(generation)) == 5
    assert generation.finish_reason == "stop"


@pytest.mark.parametrize("n", range(len(PLACES)))
def test_a_cut_answer_is_incomplete(n):
    engine = new_engine(end_ids=[END])
    whole = list(engine.submit([1, 2, 3], params(50), constraint=Pattern(PLACES)))
    generation = engine.submit([1, 2, 3], params(n), constraint=Pattern(PLACES))
    assert list(generation) == whole[:n]
    assert (generation.finish_reason, generation.stats.complete) == ("length", False)
    engine = new_engine(context=3 + n, end_ids=[END])
    generation = engine.submit([1, 2, 3], params(50), constraint=Pattern(PLACES))
    assert list(generation) == whole[: n + 1]
    assert generation.finish_reason == ("context" if n + 1 < len(PLACES) else "stop")


@pytest.mark.parametrize("more", [{}, {"temperature": 0.9, "top_k": 7}, {"temperature": 1.0, "mirostat": 2}])
def test_a_constraint_that_never_bites_changes_no_token(more, monkeypatch):
    monkeypatch.setattr(Acceptance, "best_length", lambda self, kind, following, costs, most: (most, 9.0))
    for seed in range(4):
        engine, plain = new_engine(), new_engine()
        expected = list(plain.submit(prompt_of(seed), params(40, **more)))
        for places in ([None] * 40, [set(range(VOCAB))] * 40):
            assert (
                list(engine.submit(prompt_of(seed), params(40, **more), constraint=Pattern(places)))
                == expected
            )
        assert engine.stats.accepted_tokens > 0


def test_constrained_answers_run_beside_others_and_are_resumed():
    """In a cache that is too small for all of them, so that some are set back."""
    engine = new_engine(n_pages=30, max_sequences=4, end_ids=[END])
    places = [EVEN, {3}, {4}, ODD] * 10
    alone = [
        list(new_engine(end_ids=[END]).submit(prompt_of(seed), params(40), constraint=Pattern(places)))
        for seed in range(6)
    ]
    plain = list(new_engine(end_ids=[END]).submit(prompt_of(9), params(30)))
    generations = [engine.submit(prompt_of(s), params(40), constraint=Pattern(places)) for s in range(6)]
    beside = engine.submit(prompt_of(9), params(30))
    assert [list(each) for each in generations] == alone
    assert list(beside) == plain
    check_pages(engine)


def test_many_forced_tokens_are_read_as_a_prompt_is():
    engine = new_engine(end_ids=[END], n_pages=100)
    engine.machine.max_rows = 16
    places = [EVEN, *[{n % 7} for n in range(100)], ODD]
    generation = engine.submit([1, 2, 3], params(200), constraint=Pattern(places))
    assert fits(list(generation), places)
    assert generation.stats.decode_steps < 3
    assert max(engine.machine.fed) <= 16
    assert generation.stats.new_tokens == len(places)


def test_an_interrupt_changes_no_token(monkeypatch):
    """Wherever it arrives between a token and what the constraint is told of it."""
    expected = list(
        new_engine(end_ids=[END]).submit(prompt_of(3), params(40), constraint=Pattern(PLACES * 3))
    )
    for name in ("accept", "forced", "masks", "allowed", "prepare"):
        method = getattr(ConstrainedAnswer, name)
        for late in (False, True):
            for at in range(1, 12):
                calls = 0

                def interrupted(self, *arguments, at=at, late=late, method=method):
                    nonlocal calls
                    calls += 1
                    if calls == at and not late:
                        raise KeyboardInterrupt
                    result = method(self, *arguments)
                    if calls == at:
                        raise KeyboardInterrupt
                    return result

                with monkeypatch.context() as patch:
                    patch.setattr(ConstrainedAnswer, name, interrupted)
                    engine: Engine = new_engine(end_ids=[END])
                    generation = engine.submit(prompt_of(3), params(40), constraint=Pattern(PLACES * 3))
                    got = []
                    while True:
                        try:
                            got += list(generation)
                            break
                        except KeyboardInterrupt:
                            got = list(generation.tokens[: generation._sequence.n_read])
                    assert got == expected, (name, late, at)


class Failing(Pattern):
    def masks(self, ids: Sequence[int] = ()) -> list[np.ndarray | None]:
        if len(self.taken) == 2:
            raise ConstraintError("too complex")
        return super().masks(ids)


def test_a_constraint_that_fails_ends_its_generation_only():
    engine = new_engine(end_ids=[END])
    beside = engine.submit(prompt_of(2), params(20))
    generation = engine.submit([1, 2, 3], params(20), constraint=Failing([EVEN] * 9))
    with pytest.raises(ConstraintError, match="too complex"):
        list(generation)
    assert len(generation.tokens) == 2
    assert generation.stats.complete is False
    assert list(beside) == list(new_engine(end_ids=[END]).submit(prompt_of(2), params(20)))


def test_parameters_and_defaults_stay():
    assert SamplingParams() == SamplingParams()
    assert new_engine().submit([1], params(2)).stats.complete is None
