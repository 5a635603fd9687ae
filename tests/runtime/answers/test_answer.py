"""Model.answer: requests in all their forms, and the events of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kukri import Answer, Finished, GenerationRequest, TextDelta
from kukri.runtime.engine.errors import ContextExceeded, ModelClosed
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.model import Model
from kukri.runtime.model.options import LoadOptions
from kukri.tokenizer.chat.template import TemplateError

from ...tiny_model import write_tiny_model
from ..model.test_model import BOS, END, GREEDY, HELLO, scripted


@pytest.fixture(params=["reference", "cpu"])
def tiny_model(tmp_path, request) -> Iterator[Model]:
    with load_model(write_tiny_model(tmp_path / "tiny.gguf"), LoadOptions(device=request.param)) as model:
        yield model


def text_of(answer: Answer) -> str:
    return "".join(event.text for event in answer if isinstance(event, TextDelta))


def test_events_are_text_and_an_end():
    model = scripted("Hi, wörld!")
    answer = model.answer("hello", temperature=0)
    assert answer.finish_reason is None
    *deltas, end = list(answer)
    assert all(isinstance(delta, TextDelta) and delta.text and not delta.token_events for delta in deltas)
    assert "".join(delta.text for delta in deltas) == "Hi, wörld!" == answer.text
    assert end == Finished("stop", answer.stats)
    assert answer.stats.new_tokens == len("Hi, wörld!".encode())
    assert answer.message() == {"role": "assistant", "content": "Hi, wörld!"}
    assert list(answer) == []


@pytest.mark.parametrize("text", ["plain", "naïve 🦊", ""])
def test_it_is_the_text_of_chat(text):
    expected = "".join(scripted(text).chat(HELLO, GREEDY))
    assert scripted(text).answer(HELLO, params=GREEDY).complete().text == expected


def test_greedy_answers_are_those_of_chat(tiny_model):
    expected = "".join(tiny_model.chat("hello", temperature=0, max_tokens=40))
    assert text_of(tiny_model.answer("hello", temperature=0, max_tokens=40)) == expected


def test_all_forms_of_a_prompt_are_fed_as_they_should():
    model = scripted([END, END, END, END])
    ids = model.encode_chat(HELLO)
    for request, fields, fed in [
        (HELLO, {}, ids),
        ("hi", {}, ids),
        (None, {"prompt": "hi"}, model.encode("hi")),
        (GenerationRequest(ids=[5, 6, 7]), {}, [5, 6, 7]),
        (GenerationRequest(HELLO, ids=[9, 8, 7]), {}, [9, 8, 7]),
        (GenerationRequest(HELLO), {"tools": [{"name": "f"}]}, model.encode_chat(HELLO, [{"name": "f"}])),
    ]:
        model = scripted([END])
        model.answer(request, temperature=0, **fields).complete()
        assert model._machine.fed[: len(fed)] == fed


def test_fields_replace_those_of_a_request():
    model = scripted("abcdef")
    request = GenerationRequest(HELLO, params=SamplingParams(temperature=0, max_tokens=2))
    assert model.answer(request, max_tokens=4).complete().text == "abcd"
    with pytest.raises(
        TypeError, match=r"answer\(\) has no parameter 'temprature': did you mean temperature"
    ):
        model.answer(request, temprature=0)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({}, ValueError, "needs messages, a prompt, or token ids"),
        ({"prompt": "a", "ids": [1]}, ValueError, "messages or a raw prompt"),
        ({"prompt": 3}, TypeError, "a raw prompt is a text"),
        ({"prompt": "a", "params": {"top_k": 1}}, TypeError, "SamplingParams"),
        ({"prompt": "a", "priority": "high"}, TypeError, "whole number"),
    ],
)
def test_requests_that_make_no_sense(fields, error, message):
    with pytest.raises(error, match=message):
        GenerationRequest(**fields)


def test_errors_come_at_the_call():
    model = scripted("abc")
    with pytest.raises(ContextExceeded):
        model.answer(GenerationRequest(ids=[1] * 1000))
    model.chat_template = None
    with pytest.raises(TemplateError, match="no chat template"):
        model.answer("hi")
    model.close()
    with pytest.raises(ModelClosed):
        model.answer(prompt="hi")


def test_a_stop_string_ends_it():
    answer = scripted("one two three").answer("x", temperature=0, stop="tw").complete()
    assert (answer.text, answer.finish_reason, answer.stats.finish_reason) == (
        "one ",
        "stop_string",
        "stop_string",
    )


def test_a_stop_string_that_spells_a_special_token_ends_it():
    answer = scripted([*b"ab", BOS, *b"cd"]).answer("x", temperature=0, stop="b<|bos|>").complete()
    assert (answer.text, answer.finish_reason) == ("a", "stop_string")


def test_special_tokens_give_no_text():
    assert scripted([*b"ab", BOS, *b"cd"]).answer("x", temperature=0).complete().text == "abcd"


def test_what_is_held_back_comes_at_the_end():
    assert scripted([*b"ab\xc3", END]).answer("x", temperature=0, stop="bcd").complete().text == "ab\ufffd"


def test_every_token_brings_its_log_probability():
    answer = scripted([*b"h\xc3\xa9", BOS]).answer("x", temperature=0, logprobs=1)
    deltas = [event for event in answer if isinstance(event, TextDelta)]
    assert [delta.text for delta in deltas] == ["h", "é", ""]
    ids = [[token.id for token in delta.token_events] for delta in deltas]
    assert ids == [[ord("h")], [0xC3, 0xA9], [BOS]]
    assert all(token.logprobs.id == token.id for delta in deltas for token in delta.token_events)


def test_it_may_be_closed_early():
    model = scripted("abcdef")
    with model.answer("x", temperature=0) as answer:
        assert next(answer) == TextDelta("a")
    assert answer.finish_reason == "interrupted"
    assert answer.text == "a"
    assert list(answer) == [Finished("interrupted", answer.stats)]


def test_several_run_side_by_side(tiny_model):
    texts = ["".join(tiny_model.chat(text, temperature=0, max_tokens=12)) for text in ("one", "two")]
    answers = [tiny_model.answer(text, temperature=0, max_tokens=12) for text in ("one", "two")]
    assert [answer.complete().text for answer in reversed(answers)] == texts[::-1]


def test_coroutines_read_them(tiny_model):
    expected = "".join(tiny_model.chat("hello", temperature=0, max_tokens=12))

    async def read() -> tuple[list, Answer]:
        answer = tiny_model.answer("hello", temperature=0, max_tokens=12)
        return [event async for event in answer], answer

    events, answer = asyncio.run(read())
    assert "".join(event.text for event in events[:-1]) == expected == answer.text
    assert events[-1] == Finished("length", answer.stats)
