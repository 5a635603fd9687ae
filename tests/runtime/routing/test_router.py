"""Two tiny models behind one: who answers, and that the table of a trial is what separate runs give."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kukri
from kukri.runtime.answers.request import GenerationRequest
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model.model import Model
from kukri.runtime.response_cache.cache import ResponseCache
from kukri.runtime.routing.confidence import Calibration
from kukri.runtime.routing.labelled import Question
from kukri.runtime.routing.policy import Policy
from kukri.runtime.routing.router import Router
from kukri.runtime.routing.trial import ALL, NONE, attempts, calibrated, table
from kukri.tests.tiny_model import write_tiny_model

PARAMS = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = write_tiny_model(
        tmp_path_factory.mktemp("large") / "large.gguf", seed=5, context=600, name="large"
    )
    with kukri.load(path, device="cpu") as model:
        yield model


@pytest.fixture(scope="module")
def small(tiny: Path) -> Iterator[Model]:
    with kukri.load(tiny, device="cpu") as model:
        yield model


def ask(model: Model, question: str, **more: Any) -> Any:
    return model.answer(GenerationRequest(question, params=replace(PARAMS, **more)))


def test_who_answers(small: Model, large: Model) -> None:
    alone = [ask(model, "What?").complete().text for model in (small, large)]
    assert alone[0] != alone[1]
    for threshold, text, name in ((0.0, alone[0], small.name), (1.0, alone[1], large.name)):
        router = Router(small, large, Policy(threshold))
        answer = router.answer(GenerationRequest("What?", params=PARAMS)).complete()
        routing = answer.stats.routing
        assert routing is not None
        assert (answer.text, routing.model, routing.threshold) == (text, name, threshold)
        assert routing.small_tokens == 4
        assert routing.confidence is not None
        assert 0 < routing.confidence < 1
        assert answer.finish_reason == "length"

        async def read(router: Router) -> tuple[str, int]:
            asked = router.answer(GenerationRequest("What?", params=PARAMS))
            events = [event async for event in asked]
            return asked.text, len(events)

        assert asyncio.run(read(router))[0] == text
    answer = Router(small, large, Policy(2.0)).answer(GenerationRequest("What?", params=PARAMS)).complete()
    routing = answer.stats.routing
    assert (answer.text, routing and routing.confidence) == (alone[1], None)


def test_prompts_in_ids_and_long_ones(small: Model, large: Model) -> None:
    router = Router(small, large, Policy(1.0))
    ids = small.encode("a text to go on with")
    wanted = "".join(large.stream(large.encode("a text to go on with"), PARAMS))
    assert router.answer(GenerationRequest(ids=ids, params=PARAMS)).complete().text == wanted
    begun = small.tokenizer.encode("So ")
    asked = GenerationRequest("What?", params=PARAMS, begun=begun)
    ids = [*large.encode_chat("What?"), *large.tokenizer.encode("So ")]
    assert router.answer(asked).complete().text == "".join(large.stream(ids, PARAMS))
    long = GenerationRequest("x" * 540, params=PARAMS)
    answer = Router(small, large, Policy(0.0)).answer(long).complete()
    routing = answer.stats.routing
    assert (routing and routing.model) == large.name  # the small one's context is too short


def test_what_cannot_be(small: Model, large: Model) -> None:
    router = Router(small, large, Policy())
    with pytest.raises(ValueError, match="no log probabilities"):
        router.answer(GenerationRequest("x", params=SamplingParams(logprobs=1)))
    with pytest.raises(ValueError, match="names a text"):
        router.answer(GenerationRequest("x", params=SamplingParams(logit_bias=((5, 1.0),))))
    other = Calibration("other", (0.0,) * 3, (1.0,) * 3, (0.0,) * 3, 0.0)
    with pytest.raises(ValueError, match="another model"):
        Router(small, large, Policy(calibration=other))


def test_with_a_cache(small: Model, large: Model, tmp_path: Path) -> None:
    cache = ResponseCache(tmp_path, warn=pytest.fail)
    for model in (small, large):
        cache.serve(model)
    try:
        for threshold in (0.0, 1.0):
            router = Router(small, large, Policy(threshold))
            answers = [router.answer(GenerationRequest("Again?", params=PARAMS)) for _ in range(2)]
            first, second = (answer.complete() for answer in answers)
            assert first.text == second.text
            third = router.answer(GenerationRequest("Again?", params=PARAMS)).complete()
            assert (third.text, third.stats.from_cache) == (first.text, True)
            assert first.stats.routing
            assert third.stats.routing
            assert third.stats.routing.model == first.stats.routing.model
            assert third.stats.routing.confidence == pytest.approx(first.stats.routing.confidence, rel=1e-5)
    finally:
        small.answer_source = large.answer_source = None
        cache.close()


def test_the_table_is_what_separate_runs_give(small: Model, large: Model) -> None:
    texts = [f"question {i}" + " or so" * (i % 5) for i in range(12)]
    # Every third is known as the small model has it, others as the large one.
    questions = [
        Question(text, (ask(small if i % 3 == 0 else large, text).complete().text,))
        for i, text in enumerate(texts)
    ]
    reported: list[int] = []
    tried = attempts(small, large, questions, PARAMS, "exact", reported.append)
    assert reported == list(range(1, 13))
    assert [each.small_right for each in tried] == [i % 3 == 0 for i in range(12)]
    calibration = calibrated(small, tried)
    for policy in (Policy(), Policy(calibration=calibration)):
        outcomes = table(tried, policy, most=5)
        assert (outcomes[0].threshold, outcomes[-1].threshold) == (ALL, NONE)
        assert (outcomes[0].right, outcomes[-1].right) == (4 / 12, 8 / 12)
        assert (outcomes[0].escalated, outcomes[-1].escalated, outcomes[-1].cost) == (0.0, 1.0, 1.0)
        assert [o.escalated for o in outcomes] == sorted(o.escalated for o in outcomes)
        assert len({o.escalated for o in outcomes}) == 5
        for outcome in outcomes:
            router = Router(small, large, replace(policy, threshold=outcome.threshold))
            answers = [router.answer(GenerationRequest(text, params=PARAMS)).complete() for text in texts]
            right = [q.is_right(a.text, "exact") for q, a in zip(questions, answers, strict=True)]
            routings = [answer.stats.routing for answer in answers]
            sent = [routing is not None and routing.model == large.name for routing in routings]
            assert (sum(right) / 12, sum(sent) / 12) == (outcome.right, outcome.escalated)
    best = max(o.right for o in table(tried, Policy(calibration=calibration), most=30))
    chosen = Policy(calibration.threshold, calibration)
    kept = [chosen.keeps(chosen.of_signs(each.signs)) for each in tried]
    n_right = sum(e.small_right if k else e.large_right for e, k in zip(tried, kept, strict=True))
    assert n_right / 12 == best
