"""Draft models: their cache follows the sequences, and the tokens are those without them."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.speculation.draft_model import DraftModel
from kukri.runtime.engine.speculation.policy import StepCosts

from ..test_engine import VOCAB, Config, HistoryMachine, expected_logits


class FreeDrafts(DraftModel):
    """Drafts that cost nothing, so that how many there are does not depend on the clock."""

    def seconds(self, n: int, n_sequences: int, step: StepCosts) -> float:
        return 0.0


def sometimes_wrong(seen: np.ndarray) -> np.ndarray:
    """The model's logits, but where a position is a multiple of five, those of something else."""
    return expected_logits(seen if len(seen) % 5 else seen[1:])


def new_engine(
    logits_of=expected_logits, max_sequences: int = 3, n_pages: int = 64, draft: dict | None = None, **more
) -> Engine:
    small = PageTable((draft or {}).get("pages", 64), max_sequences, page_size=4)
    table = PageTable(n_pages, max_sequences, page_size=4)
    machine = HistoryMachine(small, max_rows=32, max_logits=8)
    machine.logits_of = logits_of
    context = (draft or {}).get("context", 256)
    drafter = FreeDrafts(machine, small, context=context, n_tokens=VOCAB, chunk=16, relative_cost=0.1)
    engine = Engine(
        HistoryMachine(table, max_rows=64, max_logits=64),
        *(table, Config()),
        speculate=False,
        drafter=drafter,
        **more,
    )
    set_costs(engine, 0.0)
    return engine


def set_costs(engine: Engine, further: float) -> None:
    """Let steps cost 1, and so much more for each further row."""
    costs = engine._scheduler.times.costs
    costs.observe = lambda n_rows, seconds: None
    for n in range(1, 65):
        costs._seconds[n] = 1 + further * (n - 1)


def plain_engine(**more) -> Engine:
    table = PageTable(64, 3, page_size=4)
    return Engine(HistoryMachine(table, 64, 64), table, Config(), speculate=False, **more)


def prompt_of(seed: int, n: int = 9) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(n)]


def params(n: int, **more) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": n, "seed": 5} | more)


CHAINS = [
    {},
    {"temperature": 0.9, "top_k": 0},
    {"temperature": 1.5, "repeat_penalty": 1.1, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.1, "xtc_probability": 0.3, "presence_penalty": 0.5},
]
DRY = {"temperature": 1, "dry_multiplier": 0.8, "dry_sequence_breakers": ()}


@pytest.mark.parametrize("more", CHAINS)
@pytest.mark.parametrize("length", [1, 9, 16, 40])
def test_a_model_that_drafts_for_itself_is_always_right(more, length):
    """Also when it samples: the draft reads the same random numbers."""
    prompt = prompt_of(1, length)
    engine = new_engine()
    got = list(engine.submit(prompt, params(60, **more)))
    assert got == list(plain_engine().submit(prompt, params(60, **more)))
    stats = engine.stats
    assert stats.drafted_tokens == stats.accepted_tokens == 59 - stats.decode_steps
    assert stats.drafted_by_kind == stats.accepted_by_kind == {"draft": stats.drafted_tokens}
    assert stats.decode_steps < 12


@pytest.mark.parametrize("more", [*CHAINS, {"mirostat": 2}, DRY])
def test_a_draft_that_is_sometimes_wrong_changes_no_token(more):
    for seed in range(6):
        engine = new_engine(sometimes_wrong)
        got = list(engine.submit(prompt_of(seed), params(60, **more)))
        assert got == list(plain_engine().submit(prompt_of(seed), params(60, **more)))
        assert 0 < engine.stats.accepted_tokens < engine.stats.drafted_tokens


def test_the_cache_of_the_draft_model_is_right_behind_rejected_tokens():
    """Every logit of the draft model depends on all that its pages hold: where positions are no multiple of
    five it would else be wrong by chance only."""
    engine = new_engine(sometimes_wrong)
    wrong = Counter[bool]()
    drafter = engine._drafter
    propose = drafter.propose

    def checked(wishes):
        proposals = propose(wishes)
        for wish, ids in zip(wishes, proposals, strict=True):
            known = [*wish.ids]
            for id_ in ids:
                seen = np.array([[token, at] for at, token in enumerate(known)])
                wrong[id_ != int(sometimes_wrong(seen).argmax())] += 1
                known.append(id_)
        return proposals

    drafter.propose = checked
    generations = [engine.submit(prompt_of(seed), params(40)) for seed in range(7)]
    expected = [list(plain_engine().submit(prompt_of(seed), params(40))) for seed in range(7)]
    assert [list(generation) for generation in generations] == expected
    assert not wrong[True]
    assert wrong[False] > 200


def test_sequences_are_drafted_for_side_by_side():
    engine = new_engine()
    generations = [engine.submit(prompt_of(seed), params(40)) for seed in range(3)]
    expected = [list(plain_engine().submit(prompt_of(seed), params(40))) for seed in range(3)]
    assert [list(generation) for generation in generations] == expected
    assert 3 in engine._drafter.machine.fed
    assert sum(generation.stats.accepted_tokens for generation in generations) > 60


def test_a_conversation_that_goes_on_is_not_read_again():
    engine = new_engine(max_sequences=1)
    prompt = prompt_of(0, 30)
    answer = list(engine.submit(prompt, params(20)))
    fed = engine._drafter.machine.fed
    fed.clear()
    longer = [*prompt, *answer, 1, 2, 3]
    assert list(engine.submit(longer, params(9))) == list(plain_engine().submit(longer, params(9)))
    assert max(fed) < 12


def test_a_long_prompt_is_read_in_chunks_while_tokens_come():
    engine = new_engine()
    prompt = prompt_of(0, 100)
    assert list(engine.submit(prompt, params(40))) == list(plain_engine().submit(prompt, params(40)))
    assert max(engine._drafter.machine.fed) <= 16
    assert engine.stats.accepted_tokens > 20


def test_short_of_pages_or_context_there_are_fewer_drafts():
    for draft in ({"pages": 5}, {"context": 20}):
        engine = new_engine(draft=draft)
        generations = [engine.submit(prompt_of(seed, 12), params(20)) for seed in range(3)]
        for seed, generation in enumerate(generations):
            assert list(generation) == list(plain_engine().submit(prompt_of(seed, 12), params(20)))


def test_an_interrupt_while_drafting_changes_no_token():
    prompt = prompt_of(3)
    expected = list(plain_engine().submit(prompt, params(40)))
    for at in range(1, 25):
        engine, calls = new_engine(sometimes_wrong), 0

        def interrupted(at=at):
            nonlocal calls
            calls += 1
            if calls == at:
                raise KeyboardInterrupt

        engine._drafter.machine.before_step = engine._drafter.machine.after_step = interrupted
        generation, got = engine.submit(prompt, params(40)), []
        with pytest.raises(KeyboardInterrupt):
            got.extend(generation)
        got += list(generation)
        assert got == expected


def test_a_draft_model_that_fails_is_given_up(caplog):
    engine = new_engine()

    def fail() -> None:
        raise RuntimeError("broken")

    engine._drafter.machine.before_step = fail
    for seed in range(2):
        got = list(engine.submit(prompt_of(seed), params(20)))
        assert got == list(plain_engine().submit(prompt_of(seed), params(20)))
    assert [record.message for record in caplog.records] == ["drafting failed, and is given up: broken"]


def test_drafts_that_do_not_pay_become_rare():
    engine = new_engine(lambda seen: expected_logits(seen[1:]))
    set_costs(engine, 0.15)
    stats = [list(engine.submit(prompt_of(0), params(n))) and engine.stats for n in (40, 200)]
    assert stats[0].drafted_tokens > 0
    assert stats[1].drafted_tokens < 80
