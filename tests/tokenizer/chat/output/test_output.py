"""Answers of every family, in pieces of every size: the same text, thinking and calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from kukri.tokenizer.chat.output.formats import PLAIN, output_format
from kukri.tokenizer.chat.output.parser import OutputParser
from kukri.tokenizer.chat.output.parts import (
    Part,
    Text,
    Thinking,
    ToolCallDelta,
    ToolCallDropped,
    ToolCallEnd,
    ToolCallStart,
)
from kukri.tokenizer.chat.output.tools import ToolSchemas

from ....usual_machine import within
from .goldens import DS, GOLDENS, TEXTS, TOOLS, Golden

ALL = {**GOLDENS, **TEXTS}


def parser_of(golden: Golden, tools: Any = TOOLS) -> OutputParser:
    return OutputParser(output_format(golden.marks, golden.special), ToolSchemas(tools), golden.begun)


def in_pieces(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def read(parser: OutputParser, pieces: Iterable[str]) -> list[Part]:
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
    return parts + parser.finish()


def summary(parts: list[Part]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Text, thinking and calls; the parts of calls must come in order."""
    text = "".join(part.text for part in parts if isinstance(part, Text))
    thinking = "".join(part.text for part in parts if isinstance(part, Thinking))
    calls: dict[int, list[Any]] = {}
    ended: list[int] = []
    for part in parts:
        match part:
            case ToolCallStart(index, id_, name):
                assert id_
                assert name
                assert index == len(calls) == len(ended)
                calls[index] = [name, ""]
            case ToolCallDelta(index, arguments):
                assert index == len(calls) - 1 == len(ended)
                calls[index][1] += arguments
            case ToolCallEnd(index):
                calls[index][1] = json.loads(calls[index][1])
                ended.append(index)
            case ToolCallDropped(index):
                calls[index] = []
                ended.append(index)
    assert len(ended) == len(calls)
    return text, thinking, [tuple(call) for call in calls.values() if call]


def expected(golden: Golden) -> tuple[str, str, list[tuple[str, Any]]]:
    return golden.text, golden.thinking, golden.calls


@pytest.mark.parametrize("name", ALL)
def test_pieces_of_every_size_give_the_same(name: str):
    golden = ALL[name]
    for size in (1, 2, 3, 4, 5, 6, 7, 11, 1 << 20):
        plain_text = Golden(**{**vars(golden), "special": ()})  # a file may not declare its marks special
        for each in (golden, plain_text):
            parts = read(parser_of(each), in_pieces(golden.answer, size))
            assert summary(parts) == expected(golden), f"in pieces of {size}"


@pytest.mark.parametrize("name", [name for name, golden in ALL.items() if golden.special])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_marks_come_as_special_tokens(name: str, size: int):
    golden = ALL[name]
    parser = parser_of(golden)
    parts: list[Part] = []
    for text in re.split(f"({'|'.join(map(re.escape, golden.special))})", golden.answer):
        if text in golden.special:
            parts += parser.push(text, special=True)
        else:
            parts += [part for piece in in_pieces(text, size) for part in parser.push(piece)]
    parts += parser.finish()
    text = golden.text
    assert summary(parts) == (text, golden.thinking, golden.calls)


@pytest.mark.parametrize("name", [name for name, golden in GOLDENS.items() if golden.calls])
def test_names_come_first_and_arguments_as_they_are_written(name: str):
    golden = GOLDENS[name]
    parser = parser_of(golden)
    first = None
    for seen, char in enumerate(golden.answer, 1):
        if any(isinstance(part, ToolCallStart) for part in parser.push(char)):
            first = first or seen
    assert first is not None, "no call begins before the answer is over"
    assert first < len(golden.answer), "the first call is told only when the answer is over"


def test_long_arguments_are_not_held_back():
    written = "word " * 50
    for marks, beginning in [
        ("<tool_call>", '<tool_call>\n{"name": "write_file", "arguments": {"content": "'),
        ("<tool_call> <function=", "<tool_call>\n<function=write_file>\n<parameter=content>\n"),
        ("<arg_key>", "<tool_call>write_file\n<arg_key>content</arg_key>\n<arg_value>"),
        ("<|tool_call>", '<|tool_call>call:write_file{content:<|"|>'),
        ("<|tool_call_start|>", '<|tool_call_start|>[write_file(content="'),
        ("[TOOL_CALLS]", '[TOOL_CALLS]write_file[ARGS]{"content": "'),
    ]:
        parser = parser_of(Golden(marks, ""))
        parts = parser.push(beginning + written)
        told = "".join(part.arguments for part in parts if isinstance(part, ToolCallDelta))
        assert written.rstrip() in told, marks


@pytest.mark.parametrize("name", GOLDENS)
def test_without_tools_nothing_is_a_call(name: str):
    golden = GOLDENS[name]
    parts = read(parser_of(golden, tools=[]), in_pieces(golden.answer, 3))
    text, thinking, calls = summary(parts)
    assert calls == []
    assert thinking == golden.thinking
    if not golden.special and not golden.thinking and "think" not in golden.marks:
        assert text == golden.answer


def test_plain_answers_pass_as_they_are():
    parser = OutputParser(PLAIN)
    pieces = ["\n a", "<think>", "b\n", "", "{"]
    parts = [parser.push(piece) for piece in pieces]
    assert ["".join(part.text for part in each) for each in parts] == pieces
    assert parser.finish() == []


def test_special_tokens_that_are_no_marks_are_hidden():
    parser = parser_of(GOLDENS["gemma 4"])
    parts = [*parser.push("a"), *parser.push("<|image|>", special=True), *parser.push("b"), *parser.finish()]
    assert "".join(part.text for part in parts) == "ab"


def test_stray_marks_are_hidden_if_special_and_text_if_not():
    special = Golden("<|tool_call> <|channel>", "a<tool_call|>b", special=("<|tool_call>", "<tool_call|>"))
    assert summary(read(parser_of(special), special.answer))[0] == "ab"
    text = Golden("<tool_call>", "a</tool_call>b")
    assert summary(read(parser_of(text), text.answer))[0] == "a</tool_call>b"


def test_parts_of_a_dropped_call_are_told():
    parts = read(parser_of(GOLDENS["hermes"]), ['<tool_call>{"name": "get_time", "arguments": {"a": }}'])
    kinds = list(dict.fromkeys(type(part) for part in parts))
    assert kinds == [ToolCallStart, ToolCallDelta, ToolCallDropped, Text]


# What models write as a value, and what it is to every reader of JSON; None: a call with it counts for
# nothing.
ODD_VALUES: dict[str, Any] = {
    r'"a \ud83d\ude00"': "a \U0001f600",
    r'"half \ud83d"': "half \ufffd",
    r'"half \udc00\ud83d."': "half \ufffd\ufffd.",
    "1e-999": 0.0,
    "1e999": None,
    "-1e999": None,
    "NaN": None,
    "-Infinity": None,
    "[1e400]": None,
    "1" * 5_000: None,
}
CALLS_OF_ONE_VALUE = {
    "hermes": '<tool_call>\n{"name": "write_file", "arguments": {"content": VALUE}}\n</tool_call>',
    "arguments in a string": '<tool_call>{"name": "write_file", "arguments": TEXT}</tool_call>',
    "lfm2": "<|tool_call_start|>[write_file(content=VALUE)]<|tool_call_end|>",
    # What is not JSON there is a text.
    "qwen3-coder": "<tool_call><function=write_file><parameter=n>VALUE</parameter></function></tool_call>",
    "gemma 4": "<|tool_call>call:write_file{content:VALUE}<tool_call|>",
}
QUOTED = ("hermes", "arguments in a string", "lfm2")


@pytest.mark.parametrize("written", ODD_VALUES, ids=lambda written: written[:16])
@pytest.mark.parametrize("family", CALLS_OF_ONE_VALUE)
def test_arguments_are_json_to_every_reader(family: str, written: str):
    text = json.dumps(f'{{"content": {written}}}')
    answer = CALLS_OF_ONE_VALUE[family].replace("VALUE", written).replace("TEXT", text)
    marks = answer[: answer.index(">") + 1] + "<function="
    for size in (1, 4, 1 << 20):
        parts = read(parser_of(Golden(marks, "")), in_pieces(answer, size))
        assert any(isinstance(part, ToolCallStart) for part in parts)
        ended = any(isinstance(part, ToolCallEnd) for part in parts)
        if family in QUOTED:
            assert ended == (ODD_VALUES[written] is not None)
        if ended:
            arguments = "".join(part.arguments for part in parts if isinstance(part, ToolCallDelta))
            (value,) = msgspec.json.decode(arguments.encode()).values()
            assert value == ODD_VALUES[written] or family not in QUOTED


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "get_time", "arguments": {}, "parameters": {}}',
        '{"name": ["get_time"], "arguments": {}}',
        '{"function": ' * 2_000,
    ],
)
@pytest.mark.parametrize("marks", ["<tool_call>", "<|python_tag|>"])
def test_what_is_no_call_is_text(marks: str, call: str):
    parts = read(parser_of(Golden(marks, "")), in_pieces(marks + call, 7))
    assert not any(isinstance(part, ToolCallEnd) for part in parts)
    assert call[:8] in "".join(part.text for part in parts if isinstance(part, Text))


def test_ids_of_mistral_are_of_the_length_that_its_template_wants():
    starts = [
        part
        for name in ("mistral, array", "mistral, arguments")
        for part in read(parser_of(GOLDENS[name]), [GOLDENS[name].answer])
        if isinstance(part, ToolCallStart)
    ]
    assert all(re.fullmatch(r"[a-zA-Z0-9]{9}", start.id) for start in starts)
    assert starts[-1].id == "aBcDeFgH1"


def test_ids_of_kimi_are_those_it_wrote():
    golden = GOLDENS["kimi k2"]
    parts = read(parser_of(golden), [golden.answer])
    ids = [part.id for part in parts if isinstance(part, ToolCallStart)]
    assert ids == ["functions.get_weather:0", "functions.get_time:1"]


def test_thinking_that_the_prompt_began():
    format_ = output_format("<think> </think>")
    assert format_.begun_thinking("<|im_start|>assistant\n<think>\n") == "<think>"
    assert format_.begun_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n") == ""
    assert format_.begun_thinking("assistant\n") == ""
    assert output_format("", [], []).begun_thinking("<think>") == ""


def test_deeply_nested_arguments_end_soon():
    for beginning in (
        '<tool_call>{"name": "get_time", "arguments": {"a": ',
        "<|tool_call_start|>[get_time(a=",
    ):
        answer = beginning + "[" * 5000
        golden = Golden("<tool_call> <|tool_call_start|>", answer)
        assert summary(read(parser_of(golden), in_pieces(answer, 7))) == (answer, "", [])


def test_long_answers_take_linear_time():
    """A hundred thousand characters, one by one, through all states that hold text back."""
    import time

    golden = GOLDENS["hermes"]
    for text in (
        "< " * 50_000,
        " \n" * 50_000 + "x",
        '<tool_call>{"name": "write_file", "arguments": {"path": "',
    ):
        parser = parser_of(golden)
        start = time.process_time()
        for char in text + "y" * (100_000 - len(text)):
            parser.push(char)
        parser.finish()
        assert within(time.process_time() - start, 5)


def test_marks_of_deepseek_are_spelled_as_in_its_template():
    from ..test_chat import CASES

    template = CASES["deepseek-v3.1"]["template"]
    assert all(mark in template for mark in DS.values())


PUBLISHED = (
    "command-r7b-tool-use", "deepseek-v3.1", "gemma-4-31b-it", "glm-4.6", "gpt-oss-120b", "granite-4.0",
    "hermes-2-pro-tool-use", "llama-3.1-8b-instruct", "llama-3.2-3b-instruct", "minimax-m2",
    "mistral-nemo-2407", "mistral-small-3.2", "qwen2.5-coder-0.5b-instruct",
    "qwen3-0.6b", "qwen3-coder", "qwen3.5-4b",
    "qwq-32b", "seed-oss",
)  # fmt: skip
ONE_CALL = (
    "gpt-oss-120b",
    "llama-3.1-8b-instruct",
    "llama-3.2-3b-instruct",
)  # a message, their templates say


@pytest.mark.parametrize("model", PUBLISHED)
def test_calls_are_read_as_published_templates_write_them(model: str):
    """What a template makes of a message with calls is read back as these calls."""
    from kukri.tokenizer import render_chat

    from ..test_chat import CASES, CONVERSATIONS

    template = CASES[model]["template"]
    conversation = CONVERSATIONS["tool_call_result" if model in ONE_CALL else "parallel_tool_calls"]
    tools, messages = conversation["tools"], conversation["messages"]
    at = next(i for i, message in enumerate(messages) if message.get("tool_calls"))
    tokens = {"bos_token": CASES[model]["bos_token"], "eos_token": CASES[model]["eos_token"]}
    prompt = render_chat(template, messages[:at], tools, True, **tokens)
    whole = render_chat(template, messages[: at + 1], tools, False, **tokens)
    n = 0
    while n < min(len(prompt), len(whole)) and prompt[n] == whole[n]:
        n += 1
    n = n if n == len(prompt) else whole.rindex("<", 0, n + 1)  # not within a mark
    format_ = output_format(template)
    for size in (1, 3, 7, 1000):
        parser = OutputParser(format_, ToolSchemas(tools), format_.begun_thinking(whole[:n]))
        _, _, calls = summary(read(parser, in_pieces(whole[n:], size)))
        functions = [call["function"] for call in messages[at]["tool_calls"]]
        assert calls == [(function["name"], function["arguments"]) for function in functions]
