"""Speculation: the same tokens in fewer steps."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.errors import BadLogits
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.scheduling import drafting
from kukri.runtime.engine.speculation.ngram import FOLLOWING, NgramDraft
from kukri.runtime.engine.speculation.policy import MOST_DRAFTED, Acceptance, StepCosts
from kukri.runtime.engine.speculation.speculation import SequenceDrafts

from ..test_engine import VOCAB, Config, HistoryMachine, expected_logits

PERIOD = 9


def copying_logits(seen: np.ndarray) -> np.ndarray:
    """The token PERIOD positions back is very likely, but at each eleventh position none is."""
    logits = expected_logits(seen)
    if len(seen) >= PERIOD and len(seen) % 11:
        logits[seen[-PERIOD][0]] += 8
    return logits


def new_engine(speculate: bool = True, max_sequences: int = 3, n_pages: int = 64, **more) -> Engine:
    table = PageTable(n_pages, max_sequences, page_size=4)
    machine = HistoryMachine(table, max_rows=64, max_logits=32)
    machine.logits_of = copying_logits
    engine = Engine(machine, table, Config(), speculate=speculate, **more)
    # Drafts are as long as guessed costs make them, and do not depend on the clock.
    engine._scheduler.times.costs.observe = lambda n_rows, seconds: None
    return engine


def prompt_of(seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(PERIOD)] * 3


def params(n: int, **more) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": n, "seed": 5} | more)


@pytest.mark.parametrize(
    "more", [{}, {"temperature": 0.9, "top_k": 0}, {"temperature": 1.5, "repeat_penalty": 1.1}]
)
def test_the_tokens_are_those_without_and_the_steps_are_fewer(more):
    fewer = 0
    for seed in range(12):
        engine, plain = new_engine(), new_engine(speculate=False)
        got = list(engine.submit(prompt_of(seed), params(60, **more)))
        assert got == list(plain.submit(prompt_of(seed), params(60, **more)))
        stats = engine.stats
        assert stats.decode_tokens == plain.stats.decode_tokens == 59
        assert stats.accepted_tokens == 59 - stats.decode_steps
        assert stats.accepted_tokens <= stats.drafted_tokens
        assert plain.stats.drafted_tokens == 0
        fewer += stats.decode_steps < 40
        assert not engine.table.lengths.any()
    assert fewer > 7


@pytest.mark.parametrize("n", range(1, 20))
def test_limits_are_kept_in_the_middle_of_a_draft(n):
    prompt = prompt_of(1)
    whole = list(new_engine(speculate=False).submit(prompt, params(40)))
    engine = new_engine()
    assert list(engine.submit(prompt, params(n))) == whole[:n]
    assert engine.stats.finish_reason == "length"
    context = len(prompt) + n
    engine = new_engine(context=context)
    assert list(engine.submit(prompt, params(40))) == whole[: n + 1]
    assert engine.stats.finish_reason == "context"
    end = whole[n]
    engine = new_engine(end_ids=[end])
    assert list(engine.submit(prompt, params(40))) == whole[: whole.index(end)]
    assert engine.stats.finish_reason == "stop"
    follow = [*prompt, *whole[: whole.index(end)], 3, 4]
    plain = new_engine(speculate=False, end_ids=[end])
    assert list(engine.submit(follow, params(9))) == list(plain.submit(follow, params(9)))


def test_sequences_beside_each_other_speculate_too():
    engine, plain = new_engine(), new_engine(speculate=False)
    generations = [engine.submit(prompt_of(seed), params(50)) for seed in range(5)]
    expected = [list(plain.submit(prompt_of(seed), params(50))) for seed in range(5)]
    assert [list(generation) for generation in generations] == expected
    assert sum(generation.stats.accepted_tokens for generation in generations) > 50
    engine.reset()
    assert engine.table.free_pages == engine.table.n_pages


@pytest.mark.parametrize("most", [0, 1])
def test_steps_of_many_sequences_have_no_drafts(monkeypatch, most):
    monkeypatch.setattr(drafting, "MOST_DRAFTING", most)
    engine, plain = new_engine(), new_engine(speculate=False)
    generations = [engine.submit(prompt_of(seed), params(n)) for seed, n in enumerate((30, 90))]
    expected = [list(plain.submit(prompt_of(seed), params(n))) for seed, n in enumerate((30, 90))]
    assert [list(generation) for generation in generations] == expected
    # With 1, the longer answer is drafted for when the other one has ended.
    assert (generations[1].stats.drafted_tokens > 0) == (most > 0)


def test_drafts_take_no_pages_from_anybody():
    engine = new_engine(n_pages=22, max_sequences=2)  # 88 tokens for two of 27 + 16
    generations = [engine.submit(prompt_of(seed), params(16)) for seed in range(2)]
    plain = new_engine(speculate=False)
    for seed, generation in enumerate(generations):
        assert list(generation) == list(plain.submit(prompt_of(seed), params(16)))
        assert generation.stats.cached_tokens == 0


def test_an_interrupt_behind_a_step_with_drafts_changes_no_token(monkeypatch):
    """Wherever in the choosing of tokens it arrives."""
    from kukri.runtime.engine.sampling.sampler import Sampler

    prompt = prompt_of(3)
    expected = list(new_engine(speculate=False).submit(prompt, params(40)))
    sample = Sampler.sample
    for at in range(1, 40):
        calls = 0

        def interrupted(self, *arguments, at=at):
            nonlocal calls
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            return sample(self, *arguments)

        monkeypatch.setattr(Sampler, "sample", interrupted)
        engine = new_engine()
        generation, got = engine.submit(prompt, params(40)), []
        with pytest.raises(KeyboardInterrupt):
            got.extend(generation)
        got += list(generation)
        assert got == expected


def test_bad_logits_behind_a_draft_end_the_sequence_there():
    prompt = prompt_of(1)
    whole = list(new_engine(speculate=False).submit(prompt, params(40)))
    engine = new_engine()
    bad = len(prompt) + 20

    def spoiled(seen: np.ndarray) -> np.ndarray:
        return copying_logits(seen) * (np.nan if len(seen) == bad else 1)

    engine.machine.logits_of = spoiled
    generation, got = engine.submit(prompt, params(40)), []
    with pytest.raises(BadLogits, match=rf"token 21 .*position {bad}"):
        got.extend(generation)
    assert got == whole[:20]


def test_n_grams_find_what_followed_them_last():
    draft = NgramDraft()
    ids = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert draft.find(ids) == (3, 3)  # behind the first 1 2 3
    ids += [4, 5]
    draft.observe(ids, 3, 9)
    assert draft.find(ids) == (FOLLOWING, 5)
    ids += [9]  # not the 6 that stood there
    draft.observe(ids, 5, 11)
    assert draft.find(ids) == (2, -1)
    ids += [1, 2]
    assert draft.find(ids) == (2, 8)  # the latest occurrence of 1 2
    assert draft.find([*ids, 3, 4, 5])[0] == 5


def test_short_and_strange_beginnings():
    for ids in ([], [1], [1, 1], [1, 1, 1, 1, 1, 1, 1]):
        order, place = NgramDraft().find(ids)
        assert place < len(ids)
        assert order in (2, 3, 5)


def test_as_many_are_drafted_as_pay():
    costs = StepCosts()
    for n, seconds in ((1, 1.0), (2, 1.1), (4, 1.3), (16, 4.0)):
        for _ in range(30):
            costs.observe(n, seconds)
    assert costs.relative(8, 1) == pytest.approx(2.2)

    def best(first: float, then: float, most: int = MOST_DRAFTED) -> int:
        return Acceptance({0: first, 1: then}).best_length(0, 1, lambda n: costs.share(n, 1), most)[0]

    assert best(0.0, 0.9) == best(0.05, 0.9) == 0
    assert 2 <= best(0.8, 0.8) <= 5
    assert best(1.0, 0.99) == 15
    assert best(1.0, 0.99, 3) == 3
    assert best(1.0, 0.99, 0) == best(1.0, 0.99, -2) == 0


def test_the_first_step_of_a_size_does_not_count():
    """Kernels may be compiled in it."""
    costs = StepCosts()
    for seconds in (100.0, 1.0, 1.0):
        costs.observe(1, seconds)
        costs.observe(2, 100 * seconds if seconds > 1 else 1.2)
    assert costs.relative(2, 1) == pytest.approx(1.2)


def test_drafts_that_are_never_right_are_no_longer_made():
    costs = StepCosts()
    for n in range(1, 17):
        for _ in range(9):
            costs.observe(n, 1 + 0.2 * (n - 1))
    drafts, ids, draw = SequenceDrafts(costs), [7, 8, 9] * 5, random.Random(0)
    drafted = []
    for _ in range(200):
        assert drafts.choose(ids, 1, 15, 100) == 0  # asked of a drafter
        drafted.append(len(drafts.take(ids, 15)))
        ids.append(draw.randrange(9))  # what follows an n-gram says nothing
    assert sum(drafted[:5]) > 0
    assert sum(drafted[100:]) < 30


def test_a_machine_with_recurrent_states_does_not_speculate():
    engine = new_engine(deterministic=True)
    list(engine.submit(prompt_of(0), params(20)))
    assert engine.stats.drafted_tokens == 0
