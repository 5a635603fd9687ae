"""The short way of a step of one sequence does what the long one does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kukri.runtime.engine.cache import NO_LOGITS, Batch
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.errors import BadLogits
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.scheduling.batching import RowBatch
from kukri.runtime.engine.scheduling.single import SingleStep

from ..test_engine import greedy, new_engine

PROMPT = list(range(11))
PARAMS = [
    SamplingParams(temperature=0, max_tokens=20),
    SamplingParams(temperature=0, max_tokens=1),
    SamplingParams(temperature=0.9, top_k=5, seed=3, max_tokens=20),
    SamplingParams(temperature=0.9, top_k=7, seed=4, repeat_penalty=1.3, max_tokens=20),
    SamplingParams(temperature=1.0, top_k=0, top_p=0.9, seed=5, max_tokens=20),  # needs all logits
    SamplingParams(temperature=0, logprobs=2, max_tokens=20),
    SamplingParams(temperature=0, ignore_eos=True),  # to the end of the context
]


def told(engine: Engine, params: SamplingParams) -> dict[str, Any]:
    """All that is known of an answer, but for its times."""
    generation = engine.submit(PROMPT, params)
    tokens = list(generation)
    stats = replace(generation.stats, time_to_first_token=0, prompt_seconds=0, decode_seconds=0)
    return {
        "tokens": tokens,
        "stats": stats,
        "logprobs": generation.logprobs,
        "fed": list(engine.machine.fed),
        "pages": engine.table.free_pages,
        "known": engine.known([*PROMPT, *tokens][: engine.context]),
    }


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("speculate", [False, True])
def test_it_does_what_a_planned_step_does(
    params: SamplingParams, speculate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = greedy(PROMPT, 15)[-1:]
    short = told(new_engine(end_ids=ends, speculate=speculate), params)
    monkeypatch.setattr(SingleStep, "top_k", lambda *_: 0)
    assert short == told(new_engine(end_ids=ends, speculate=speculate), params)


@pytest.fixture
def singles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of single steps, as they run."""
    seen: list[int] = []
    run = SingleStep.run

    def noted(self: SingleStep, sequence: Any, k: int) -> Any:
        seen.append(sequence.n_cached)
        return run(self, sequence, k)

    monkeypatch.setattr(SingleStep, "run", noted)
    return seen


def test_every_step_of_a_lone_answer_is_one(singles: list[int]) -> None:
    list(new_engine(speculate=False).submit(PROMPT, SamplingParams(temperature=0, max_tokens=9)))
    assert singles == list(range(11, 19))


def test_no_step_of_two_answers_is_one(singles: list[int]) -> None:
    from .test_many import new_engine as of_many

    engine = of_many(speculate=False)
    params = SamplingParams(temperature=0, max_tokens=5)
    both = [engine.submit([first, 2], params) for first in (1, 3)]
    assert [list(generation) for generation in both] == [greedy([first, 2], 5) for first in (1, 3)]
    assert not singles


def test_bad_logits_end_it_with_the_position(singles: list[int]) -> None:
    engine = new_engine(speculate=False)
    engine.machine.change = lambda logits: logits * (float("nan") if len(singles) == 3 else 1)
    generation = engine.submit(PROMPT, SamplingParams(temperature=0, max_tokens=9))
    with pytest.raises(BadLogits, match=r"token 4 of the answer \(position 14\)"):
        list(generation)
    assert generation.finish_reason == "interrupted"
    assert engine.use().running == 0


def test_it_goes_on_where_no_page_is_free(singles: list[int]) -> None:
    """Pages of earlier answers are given up at the beginning of a new one, by a planned step."""
    engine = new_engine(speculate=False, n_pages=8)
    params = SamplingParams(temperature=0, max_tokens=14)
    for first in (20, 30, 40):
        prompt = [first, *PROMPT]
        assert list(engine.submit(prompt, params)) == greedy(prompt, 14)
    assert len(singles) > 30


def test_a_row_batch_is_that_of_its_row() -> None:
    rows = RowBatch()
    for row in ((7, 1, 30), (9, 0, 31)):
        batch = rows.of(*row)
        assert (batch.tokens.item(), batch.sequences.item(), batch.positions.item()) == row
        assert batch.logits_indices.tolist() == [0]
        assert isinstance(batch, Batch)
        assert batch.tokens.dtype == NO_LOGITS.dtype
