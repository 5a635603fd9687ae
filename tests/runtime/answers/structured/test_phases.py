"""Forms behind thinking, and a model that must call."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kukri
from kukri import ResponseFormat
from kukri.runtime.answers.structured.constraints import Thinking
from kukri.runtime.answers.structured.guided import GuidedConstraint
from kukri.runtime.answers.structured.phases import AfterThinking

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Rome", "Oslo"]}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]


def allowed(constraint) -> set[int]:
    (mask,) = constraint.masks()
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())


def feed(constraint, tokenizer, text: str) -> None:
    for id_ in tokenizer.encode_within(text):
        assert id_ in allowed(constraint), text
        assert not constraint.complete
        constraint.accept(id_)


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("space", ["", "\n\n"])
def test_a_form_begins_behind_thinking(tokenizer, vocabulary, begun, space):
    form = GuidedConstraint(vocabulary, ResponseFormat.choice(["yes", "no"]).grammar)
    opening = "<|im_start|>"  # one token, which this vocabulary has
    constraint = AfterThinking(form, tokenizer, Thinking(opening, "</think>", begun))
    (mark,) = tokenizer.encode(opening, special=True)
    (yes, no) = (tokenizer.encode_within(text)[0] for text in "yn")
    for _ in range(2):
        if not begun:
            assert allowed(constraint) == {mark, yes, no}
            constraint.accept(mark)
        assert not allowed(constraint) & tokenizer.end_ids
        feed(constraint, tokenizer, "I think no, maybe </thin")
        draft = tokenizer.encode_within("k> yes")
        assert constraint.n_allowed(draft) < len(draft)
        feed(constraint, tokenizer, "k>" + space)
        assert {yes, no} <= allowed(constraint)
        assert constraint.forced() == []
        feed(constraint, tokenizer, "y")
        assert [tokenizer.token_text(id_) for id_ in constraint.forced()] == ["e", "s"]
        feed(constraint, tokenizer, "es")
        assert constraint.ended
        constraint.restart()


def test_an_answer_without_thinking(tokenizer, vocabulary):
    form = GuidedConstraint(vocabulary, ResponseFormat.choice(["yes", "no"]).grammar)
    constraint = AfterThinking(form, tokenizer, Thinking("<|im_start|>", "</think>", False))
    feed(constraint, tokenizer, "no")
    assert constraint.complete


def test_what_is_written_already(tokenizer, vocabulary):
    grammar = ResponseFormat.choice(["yes", "no"]).grammar
    written = tokenizer.encode_within("hm</think>y")
    after = AfterThinking(
        GuidedConstraint(vocabulary, grammar), tokenizer, Thinking("", "</think>", True), written
    )
    for constraint in (after, GuidedConstraint(vocabulary, grammar, written[-1:])):
        for _ in range(2):
            feed(constraint, tokenizer, "es")
            assert constraint.ended
            constraint.restart()


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_model_must_call(endless, device):
    asked = {"tools": TOOLS, "parallel_tool_calls": False, "temperature": 0, "max_tokens": 400}
    with kukri.load(endless, device=device, context=2048) as model:
        for choice in ("required", "weather"):
            answer = model.answer("Rome?", tool_choice=choice, **asked).complete()
            (call,) = answer.tool_calls
            assert call.name in ("weather", "now")
            if call.name == "weather":
                assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
        assert call.name == "weather"
