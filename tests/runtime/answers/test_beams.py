"""Model.beams and submit_beams: answers as text, stop strings, and waiting in a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kukri import SamplingParams
from kukri.runtime.answers.beams import BeamAnswer
from kukri.runtime.engine.errors import ModelClosed
from kukri.runtime.engine.sampling.beam_search import BeamParams
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.model import Model
from kukri.runtime.model.options import LoadOptions

from ...tiny_model import write_tiny_model

HELLO = [72, 101, 108, 108, 111]


@pytest.fixture
def model(tmp_path) -> Iterator[Model]:
    with load_model(write_tiny_model(tmp_path / "tiny.gguf"), LoadOptions(device="reference")) as loaded:
        yield loaded


def texts(answers: list[BeamAnswer]) -> list[str]:
    return [answer.text for answer in answers]


def test_answers_are_the_text_of_the_beams(model: Model) -> None:
    beams = model.engine.beams(HELLO, 3, SamplingParams(max_tokens=6))
    answers = model.beams(HELLO, 3, max_tokens=6)
    assert [answer.ids for answer in answers] == [beam.ids for beam in beams]
    assert [answer.score for answer in answers] == pytest.approx([beam.score for beam in beams], abs=1e-5)
    assert [answer.text for answer in answers] == [model.tokenizer.decode(beam.ids) for beam in beams]
    assert {answer.finish_reason for answer in answers} == {"length"}
    assert model.stats.new_tokens == 6


def test_a_text_ends_before_a_stop_string(model: Model) -> None:
    whole = model.beams(HELLO, 3, max_tokens=6)
    stop = whole[0].text[2:4]
    cut = model.beams(HELLO, 3, max_tokens=6, stop=stop)
    assert cut[0].text == whole[0].text[:2]
    assert cut[0].finish_reason == "stop_string"
    assert [answer.ids for answer in cut] == [answer.ids for answer in whole]


def test_a_coroutine_waits_for_the_answers(model: Model) -> None:
    async def wait() -> list[BeamAnswer]:
        search = model.submit_beams(HELLO, BeamParams(3), max_tokens=6)
        assert search.generation.finish_reason is None
        return await search

    assert texts(asyncio.run(wait())) == texts(model.beams(HELLO, 3, max_tokens=6))


def test_a_search_that_is_closed_has_what_there_is(model: Model) -> None:
    search = model.submit_beams(HELLO, BeamParams(2), max_tokens=6)
    assert [answer.text for answer in search.answers] == [""]
    search.close()
    assert search.result()[0].finish_reason == "interrupted"
    other = model.submit_beams(HELLO, BeamParams(2), max_tokens=6)
    model.close()
    with pytest.raises(ModelClosed):
        other.result()
    with pytest.raises(ModelClosed):
        model.beams(HELLO, 2)


def test_as_many_beams_as_a_model_was_loaded_for_run_at_once(tmp_path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    with load_model(path, LoadOptions(device="reference", beams=9)) as model:
        assert model.engine.table.max_sequences == 9
        found = texts(model.beams(HELLO, 9, max_tokens=3))
    with load_model(path, LoadOptions(device="reference", parallel=2)) as model:
        assert texts(model.beams(HELLO, 9, max_tokens=3)) == found
    with pytest.raises(ValueError, match="beams"):
        LoadOptions(beams=0)
