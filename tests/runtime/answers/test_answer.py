"""Model.answer: requests in all their forms, and the events of answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from kukri import Answer, Finished, GenerationRequest, TextDelta, ThinkingDelta, ToolCallDelta
from kukri.runtime.engine.errors import ContextExceeded, ModelClosed
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.model import Model
from kukri.runtime.model.options import LoadOptions
from kukri.tokenizer.chat.template import TemplateError

from ...tiny_model import write_tiny_model
from ..model.scripted import BOS, END, GREEDY, HELLO, TEMPLATE, scripted


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


# ---- thinking and calls

THINKS = TEMPLATE + "{# <think> </think> <tool_call> enable_thinking #}"
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
X = {"type": "object", "properties": {"x": {"type": "string"}}}
F = {"type": "function", "function": {"name": "f", "parameters": X}}


def thinking_model(script) -> Model:
    return scripted(script, context=1024, **{"tokenizer.chat_template": THINKS})


def test_thinking_is_told_apart():
    answer = thinking_model("<think>\nHm, ä.\n</think>\n\nTwelve.").answer("3*4?", temperature=0)
    kinds = [type(event) for event in answer]
    assert kinds[0] is ThinkingDelta
    assert kinds[-2:] == [TextDelta, Finished]
    assert (answer.thinking, answer.text, answer.finish_reason) == ("Hm, ä.", "Twelve.", "stop")
    assert answer.message() == {"role": "assistant", "content": "Twelve.", "reasoning_content": "Hm, ä."}


def test_raw_prompts_are_answered_with_raw_text():
    text = "<think>\nHm.\n</think>\n\nTwelve."
    assert thinking_model(text).answer(prompt="3*4?", temperature=0).complete().text == text


def test_calls_are_told_apart():
    answer = thinking_model(f"<think>Hm.</think>Let me see.\n{CALL}\n{CALL}").answer(
        "x", tools=[F], temperature=0
    )
    events = list(answer)
    assert answer.text == "Let me see."
    assert answer.finish_reason == events[-1].reason == "tool_calls"
    assert answer.stats.finish_reason == "stop"
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("f", '{"x": "é"}')] * 2
    assert len({call.id for call in answer.tool_calls}) == 2
    assert sum(isinstance(event, ToolCallDelta) for event in events) > 10
    message = answer.message()
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": "é"}'}


def test_without_parallel_calls_it_ends_behind_the_first():
    answer = thinking_model(CALL + CALL).answer("x", tools=[F], temperature=0, parallel_tool_calls=False)
    answer.complete()
    assert len(answer.tool_calls) == 1
    assert answer.finish_reason == "tool_calls"


def test_arguments_are_valid_whatever_the_model_likes():
    wanted = CALL.replace("x", "y").replace("é", "e")
    model = thinking_model(f"<think>{CALL}</think>Let me see.\n{wanted}")
    answer = model.answer("x", tools=[F], temperature=0, max_tokens=200, parallel_tool_calls=False).complete()
    assert answer.thinking == CALL  # within which nothing is forced
    (call,) = answer.tool_calls
    assert set(json.loads(call.arguments)) <= {"x"}


def test_a_cut_call_is_text():
    answer = thinking_model(CALL).answer("x", tools=[F], temperature=0, max_tokens=40).complete()
    assert (answer.text, answer.tool_calls, answer.finish_reason) == (CALL[:40], [], "length")


def test_without_tools_calls_are_text():
    for fields in ({}, {"tools": [F], "tool_choice": "none"}):
        assert thinking_model(CALL).answer("x", temperature=0, **fields).complete().text == CALL


def test_greedy_tokens_are_the_same_with_all_of_it():
    script = f"<think>Hm.</think>Let me see.\n{CALL}"
    tokens = list(thinking_model(script).generate([1], temperature=0))
    answer = thinking_model(script).answer("x", tools=[F], temperature=0).complete()
    assert answer.generation.tokens == tokens


@pytest.mark.parametrize("seconds", [0.0, 0.02])
@pytest.mark.parametrize(
    ("script", "fields"),
    [
        (f"<think>Hm, ä 🦊.</think>Let me see.\n{CALL}\n{CALL}", {"tools": [F]}),
        (CALL + CALL, {"tools": [F], "parallel_tool_calls": False}),
        ("<think>Hm.</think>One, two, three, four.", {"stop": ["o, t", "three"]}),
        ("naïve 🦊" * 9, {"logprobs": 2}),
        ("plain " * 30, {"max_tokens": 100}),
    ],
)
def test_batches_are_what_there_is_token_by_token(script, fields, seconds):
    """However many tokens are there when a batch is read."""

    async def read(answer: Answer) -> list:
        return [event async for batch in answer.batches(seconds) for event in batch]

    fields = {"temperature": 0, **fields}
    one_by_one = thinking_model(script).answer("x", **fields)
    expected = list(one_by_one)
    answer = thinking_model(script).answer("x", **fields)
    events = asyncio.run(read(answer))
    for kind in (TextDelta, ThinkingDelta):
        found, wanted = ([e for e in each if isinstance(e, kind)] for each in (events, expected))
        assert "".join(e.text for e in found) == "".join(e.text for e in wanted)
        ids = ([token.id for e in each for token in e.token_events] for each in (found, wanted))
        assert next(ids) == next(ids)
    assert (answer.text, answer.thinking) == (one_by_one.text, one_by_one.thinking)
    assert [(c.name, c.arguments) for c in answer.tool_calls] == [
        (c.name, c.arguments) for c in one_by_one.tool_calls
    ]
    assert (events[-1].reason, answer.stop_string) == (expected[-1].reason, one_by_one.stop_string)


def test_an_answer_goes_on_from_its_beginning():
    begun = [*b"<think>Hm"]
    model = thinking_model(", so.</think>Yes.")
    answer = model.answer("x", begun=begun, temperature=0).complete()
    assert (answer.thinking, answer.text) == (", so.", "Yes.")
    prompt = model.encode_chat("x")
    assert model._machine.fed[: len(prompt) + len(begun)] == [*prompt, *begun]


def test_templates_that_know_no_tools_get_them_in_the_system_prompt():
    told = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    model = scripted("", context=2048, **{"tokenizer.chat_template": told})
    cut = '{"a": "b'  # an answer that ended within a call
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": cut}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    prompt = model.tokenizer.decode(model.encode_request(GenerationRequest(messages, tools=[F])))
    assert prompt.startswith("system:Be kind.\n\n# Tools")
    assert '"name": "f"' in prompt
    assert json.dumps(cut) in prompt
    assert prompt.endswith(
        'assistant:<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>;'
        "user:<tool_response>\n42\n</tool_response>;"
    )


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"tools": [3]}, TypeError, "a JSON schema or a Python function"),
        ({"tools": [{"type": "function"}]}, ValueError, "a tool needs a name"),
        ({"tools": [F, F]}, ValueError, "two tools have the name f"),
        ({"tool_choice": "required"}, ValueError, "needs tools"),
        ({"tools": [F], "tool_choice": "g"}, ValueError, "'g' is no tool: the tools are f"),
        ({"tool_choice": 3}, TypeError, "a tool choice"),
        ({"thinking": "yes"}, TypeError, "`thinking` is"),
        ({"thinking_budget": -1}, ValueError, "negative"),
        ({"thinking_budget": 1.5}, TypeError, "whole number"),
    ],
)
def test_tools_and_thinking_that_make_no_sense(fields, error, message):
    with pytest.raises(error, match=message):
        GenerationRequest("hi", **fields)


def test_thinking_is_turned_on_and_off_where_the_template_can():
    switch = "{{ messages[0].content }}{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}"
    for template, wanted, prompt in [
        (switch, True, "hi[True]"),
        (switch, False, "hi[False]"),
        (switch, None, "hi"),
        ("{{ messages[0].content }}{% if thinking %}[on]{% endif %}", True, "hi[on]"),
        ("{{ messages[0].content }}{# no thinking #}", False, "hi"),
        ("{{ messages[0].content }}{{ '<think>' }}", True, "hi<think>"),
    ]:
        model = scripted("", **{"tokenizer.chat_template": template})
        ids = model.encode_request(GenerationRequest("hi", thinking=wanted))
        assert model.tokenizer.decode(ids) == prompt
    for template, wanted, message in [
        ("{{ messages[0].content }}", True, "does not think"),
        ("{{ messages[0].content }}{{ '<think>' }}", False, "cannot turn thinking off"),
    ]:
        model = scripted("", **{"tokenizer.chat_template": template})
        with pytest.raises(ValueError, match=message):
            model.answer("hi", thinking=wanted)


# ---- the thinking budget


@pytest.mark.parametrize(
    ("script", "prompt_end", "budget", "thinking", "text"),
    [
        ("<think>One, two, three.</think>Yes.", "", 4, "One,", "ree.</think>Yes."),
        ("<think>One.</think>Yes.", "", 100, "One.", "Yes."),
        ("One, two, three.</think>Yes.", "<think>\n", 3, "One", "</think>Yes."),
        ("One.", "<think>\n", 0, "", ""),
        ("No thinking here at all.", "", 3, "", "No thinking here at all."),
    ],
)
def test_a_budget_ends_thinking(script, prompt_end, budget, thinking, text):
    template = TEMPLATE + "{{ '" + prompt_end.replace("\n", "\\n") + "' }}{# <think> </think> #}"
    model = scripted(script, context=1024, **{"tokenizer.chat_template": template})
    answer = model.answer("x", temperature=0, thinking_budget=budget).complete()
    assert answer.thinking == thinking
    written = model.tokenizer.decode(answer.generation.tokens)
    if budget < 100 and "No" not in text:
        assert "\n</think>\n\n" in written
        assert "</think>" not in written.partition("\n</think>\n\n")[0]
    else:
        assert answer.text == text


def test_a_budget_with_a_real_engine(tiny_model):
    tiny_model.chat_template = "{{ messages[0].content }}<think>\n{# </think> #}{% if tools %}{% endif %}"
    answer = tiny_model.answer("hello", temperature=0, thinking_budget=5, max_tokens=30).complete()
    plain = tiny_model.answer("hello", temperature=0, max_tokens=5).complete()
    assert answer.generation.tokens[:5] == plain.generation.tokens
    ending = tiny_model.tokenizer.encode("\n</think>\n\n", special=True)
    assert answer.generation.tokens[5 : 5 + len(ending)] == ending
    assert answer.text
    assert answer.thinking == plain.thinking
