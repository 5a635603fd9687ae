"""Model.submit: several answers of one model, with what is told of their tokens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from kukri.runtime.engine.errors import ModelClosed
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.model import Model
from kukri.runtime.model.options import LoadOptions
from kukri.tokenizer import TokenizerError

from ...tiny_model import write_tiny_model
from .scripted import END, GREEDY, scripted


@pytest.fixture
def tiny_model(tmp_path) -> Iterator[Model]:
    with load_model(write_tiny_model(tmp_path / "tiny.gguf"), LoadOptions(device="reference")) as model:
        yield model


def text_of(continuation) -> str:
    return "".join(event.text for event in continuation)


def test_events_are_tokens_with_the_text_that_they_complete():
    model = scripted([*b"h\xc3\xa9!", END])
    events = list(model.submit([1, 2], GREEDY))
    assert [event.id for event in events] == [*b"h\xc3\xa9!"]
    assert [event.text for event in events] == ["h", "", "é", "!"]
    assert all(event.logprobs is None for event in events)


def test_they_end_at_a_stop_string_and_say_so():
    model = scripted([*b"one two three"])
    continuation = model.submit([1, 2], GREEDY, stop="tw")
    assert text_of(continuation) == "one "
    assert continuation.finish_reason == continuation.stats.finish_reason == "stop_string"
    assert list(continuation) == []


def test_coroutines_read_the_same_events(tiny_model: Model) -> None:
    async def read(**params) -> list:
        return [event async for event in tiny_model.submit([1, 2], GREEDY, **params)]

    async def stop_early() -> str | None:
        continuation = tiny_model.submit([1, 2], GREEDY, max_tokens=10_000)
        async for _ in continuation:
            break
        continuation.close()
        return continuation.finish_reason

    async def all_of_them() -> list:
        return await asyncio.gather(read(max_tokens=9), read(max_tokens=9, stop=stop), stop_early())

    expected = list(tiny_model.submit([1, 2], GREEDY, max_tokens=9))
    stop = expected[4].text
    whole, cut, reason = asyncio.run(all_of_them())
    assert whole == expected
    assert "".join(event.text for event in cut) == "".join(event.text for event in expected).split(stop)[0]
    assert reason == "interrupted"


def test_what_is_held_back_comes_at_the_end():
    model = scripted([*b"ab\xc3", END])
    events = list(model.submit([1, 2], GREEDY, stop="bcd"))
    assert [(event.id, event.text) for event in events] == [
        (97, "a"),
        (98, ""),
        (0xC3, ""),
        (None, "b\ufffd"),
    ]


def test_logprobs_come_with_the_tokens():
    model = scripted([*b"abc", END])
    events = list(model.submit([1, 2], GREEDY, logprobs=2))
    assert [event.logprobs.id for event in events] == [*b"abc"]
    assert all(len(event.logprobs.top) == 2 for event in events)
    assert all(event.logprobs.top[0] == (event.id, event.logprobs.logprob) for event in events)


def test_a_bias_for_a_text_reaches_the_engine():
    model = scripted([*b"aaaa", END])
    assert text_of(model.submit([1, 2], GREEDY, logit_bias={"z": 1e20}, max_tokens=3)) == "zzz"
    model = scripted([*b"aaaa", END])
    assert "".join(model.stream([1, 2], GREEDY, logit_bias={"z": 1e20}, max_tokens=3)) == "zzz"
    with pytest.raises(ValueError, match="2 tokens, not one"):
        model.generate([1, 2], logit_bias={"ab": 1})


def test_two_at_a_time_share_the_prompt_and_keep_their_seeds(tiny_model):
    prompt = tiny_model.encode("hello there")
    params = SamplingParams(temperature=3.0, top_k=0, min_p=0.0, max_tokens=12)

    def alone(seed: int) -> str:
        return "".join(tiny_model.stream(prompt, params, seed=seed))

    together = [tiny_model.submit(prompt, params, seed=seed) for seed in (5, 6)]
    texts = [text_of(each) for each in together]
    assert texts == [alone(5), alone(6)]
    assert texts[0] != texts[1]
    assert together[1].stats.cached_tokens == len(prompt) - 1


def test_after_close_it_cannot_go_on(tiny_model):
    continuation = tiny_model.submit(tiny_model.encode("hello"), GREEDY)
    next(continuation)
    tiny_model.close()
    with pytest.raises(ModelClosed):
        next(continuation)
    with pytest.raises(ModelClosed):
        tiny_model.submit([1, 2])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_in_a_fork_it_is_closed():
    model = scripted([*b"abc"])
    model.engine._driver._process -= 1
    with pytest.raises(ModelClosed, match="forked"):
        model.submit([1, 2])


def test_a_model_without_tokenizer_has_no_events():
    model = scripted([*b"abc"])
    model._tokenizer = None
    with pytest.raises(TokenizerError):
        model.submit([1, 2])
    with pytest.raises(TokenizerError):
        model.generate([1, 2], logit_bias={"a": 1})
    assert list(model.generate([1, 2], GREEDY, logit_bias={ord("z"): 1e20}, max_tokens=1)) == [ord("z")]
