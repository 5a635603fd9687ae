"""Answers of models that must have a form, on both machines."""

from __future__ import annotations

import json
import math

import jsonschema
import pytest

import kukri

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["alpha", "beta"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
}


@pytest.fixture(scope="module", params=["reference", "cpu"])
def model(request, tiny):
    with kukri.load(tiny, device=request.param) as loaded:
        yield loaded


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_json_fits_its_schema(model, temperature):
    asked = {"temperature": temperature, "seed": 4, "response_format": SCHEMA, "max_tokens": 300}
    answer = model.answer("Who?", **asked).complete()
    assert answer.stats.complete
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(answer.text), SCHEMA)
    told = model.encode_chat(kukri.ResponseFormat.of(SCHEMA).told([{"role": "user", "content": "Who?"}]))
    assert answer.stats.prompt_tokens == len(told)
    assert answer.stats.decode_steps < answer.stats.new_tokens - 6  # forced ones take no steps
    assert "".join(model.chat("Who?", **asked)) == answer.text
    assert "".join(model.stream(told, **asked)) == answer.text
    assert "".join(event.text for event in model.submit(told, **asked)) == answer.text


def test_other_forms(model):
    asked = {"temperature": 1.0, "seed": 2, "max_tokens": 60}
    choice = {"type": "choice", "choice": ["yes", "no", "perhaps"]}
    assert model.answer("Well?", response_format=choice, **asked).complete().text in choice["choice"]
    regex = {"type": "regex", "regex": "[0-9]{2}:[0-9]{2}"}
    text = model.answer("When?", response_format=regex, **asked).complete().text
    assert len(text) == 5
    gbnf = {"type": "grammar", "grammar": 'root ::= "a" root "b" | "x"'}
    text = model.answer("Nest.", response_format=gbnf, **asked | {"logit_bias": {"a": -2.0}}).complete().text
    n = text.index("x")
    assert text == "a" * n + "x" + "b" * n


def test_answers_beside_each_other_and_plain_ones(model):
    asked = {"temperature": 0, "max_tokens": 200}
    plain = model.answer("Hello", temperature=0, max_tokens=40).complete().text
    alone = [model.answer(f"Who is {n}?", response_format=SCHEMA, **asked).complete().text for n in range(3)]
    answers = [model.answer(f"Who is {n}?", response_format=SCHEMA, **asked) for n in range(3)]
    beside = model.answer("Hello", temperature=0, max_tokens=40)
    assert [answer.complete().text for answer in answers] == alone
    assert beside.complete().text == plain


def test_a_form_that_everything_has_changes_nothing(model):
    anything = {"type": "regex", "regex": r"(.|\n)*"}
    ids = model.encode_chat("Tell me more.")
    ascii_ = dict.fromkeys(range(128, 256), -math.inf)  # its noise shall be text in UTF-8
    for temperature in (0, 0.9):
        asked = {"temperature": temperature, "seed": 5, "max_tokens": 60, "logit_bias": ascii_}
        plain = list(model.generate(ids, **asked))
        assert len(plain) == 60
        assert list(model.generate(ids, response_format=anything, **asked)) == plain


def test_what_is_cut_is_incomplete(model):
    answer = model.answer("Who?", temperature=0, response_format=SCHEMA, max_tokens=5).complete()
    assert (answer.finish_reason, answer.stats.complete) == ("length", False)
    answer = model.answer("Who?", temperature=0, response_format=SCHEMA, stop=['"age"']).complete()
    assert (answer.finish_reason, answer.stats.complete) == ("stop_string", False)
    digits = {"type": "regex", "regex": "[0-9]+"}
    answer = model.answer("How many?", temperature=0, response_format=digits, max_tokens=2).complete()
    assert answer.stats.complete  # one digit would have done


def test_log_probabilities_of_forced_tokens(model):
    asked = {"temperature": 0, "response_format": SCHEMA, "max_tokens": 200}
    ids = model.encode_chat("Who?")
    plain = model.submit(ids, **asked)
    scored = [e.logprobs for e in model.submit(ids, logprobs=1, **asked) if e.id is not None]
    assert "".join(event.text for event in plain)
    assert all(each is not None and each.logprob <= 0 for each in scored)


def test_refused_at_the_call(model):
    with pytest.raises(kukri.ConstraintError, match="uniqueItems"):
        model.answer("Who?", response_format={"type": "array", "uniqueItems": True})
    with pytest.raises(kukri.ConstraintError, match="look-around"):
        model.chat("Who?", response_format={"type": "regex", "regex": "(?=a)"})
