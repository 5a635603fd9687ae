"""Forced calls of every family: what the grammar allows is read as calls with valid arguments."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest

import kukri
from kukri.runtime.answers.structured.calls.grammar import calls_grammar, opened_grammar
from kukri.runtime.answers.structured.constraints import Constraints, Thoughts
from kukri.runtime.answers.structured.guided import GuidedConstraint
from kukri.runtime.answers.structured.vocabulary import Vocabulary
from kukri.runtime.answers.structured.within_marks import WithinMarks
from kukri.runtime.engine.errors import ConstraintError
from kukri.tokenizer.chat.output.call_style import LINE, NUMBER
from kukri.tokenizer.chat.output.formats import output_format
from kukri.tokenizer.chat.output.parser import OutputParser
from kukri.tokenizer.chat.output.tools import ToolSchemas
from tests.tokenizer.chat.output.goldens import GOLDENS, TOOLS
from tests.tokenizer.chat.output.test_output import summary

# Goldens that are written as a grammar has it, by what else a template says.
CANONICAL = {
    "qwen3-coder": "", "seed-oss": "", "minimax-m2": "", "glm-4.5": "</arg_key>\n<arg_value>",
    "glm-4.7, on one line": "</arg_key><arg_value>", "llama 3, JSON": "", "llama 3.1, function tags": "",
    "lfm2": "", "mistral, array": "", "granite 3": "", "phi-4-mini": "", "deepseek r1": "```json",
    "deepseek v3.1": "", "kimi k2": "", "gpt-oss": "", "functiongemma": "", "gemma 4": "", "command r7b": "",
    "command r": "", "nemotron": "", "llama 4": "", "no tools in the template": "",
}  # fmt: skip
DRAWN = [
    {
        "name": "draw",
        "parameters": {
            "type": "object",
            "$defs": {"short": {"type": "string", "maxLength": 3}},
            "properties": {
                "text": {"type": "string", "minLength": 1, "maxLength": 4},
                "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]?$"},
                "referred": {"$ref": "#/$defs/short"},
                "n": {"type": "integer", "minimum": -5, "maximum": 20},
                "sure": {"type": "boolean"},
                "kind": {"enum": ["a", "b c", "<x>"]},
                "mixed": {"enum": ["a", 1, None]},
                "sizes": {"type": "array", "items": {"enum": [1, 2.5]}, "maxItems": 2},
                "inner": {
                    "type": "object",
                    "properties": {"t": {"type": "string", "maxLength": 3}, "b": {"type": "boolean"}},
                    "required": ["b"],
                },
                "perhaps": {"type": ["string", "null"], "maxLength": 2},
                "either": {"type": ["string", "boolean"], "maxLength": 5},
            },
            "required": ["n", "text"],
        },
    },
    {"name": "nothing"},
]  # fmt: skip


def format_of(name: str):
    golden = GOLDENS[name]
    template = f"{{% if tools %}} {golden.marks} {CANONICAL[name]}"
    return output_format(template, golden.special)


def follow(constraint, tokenizer, text: str) -> None:
    for id_ in tokenizer.encode_within(text):
        assert constraint.n_allowed([id_]), text
        constraint.accept(id_)


def free(constraint, tokenizer, text: str) -> None:
    for id_ in tokenizer.encode_within(text):
        assert constraint.masks() == [None], text
        assert constraint.complete
        constraint.accept(id_)


def draw(constraint, tokenizer, chance: random.Random) -> str:
    ids: list[int] = []
    while not constraint.ended and len(ids) < 2000:
        (mask,) = constraint.masks()
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        plain = [id_ for id_ in allowed if id_ not in tokenizer.end_ids]
        if constraint.complete and (not plain or chance.random() < 0.5):
            break
        ids.append(chance.choice(plain))
        constraint.accept(ids[-1])
    assert constraint.complete
    return tokenizer.decode(ids)


def read(format, tools: Any, text: str) -> list[tuple[str, Any]]:
    parser = OutputParser(format, ToolSchemas(tools))
    return summary([*parser.push(text), *parser.finish()])[2]


@pytest.mark.parametrize(
    "name", [n for n in CANONICAL if n not in ("llama 3, JSON", "mistral, array", "gemma 4")]
)
def test_what_families_write_is_in_the_grammar(name, tokenizer, vocabulary):
    golden, style = GOLDENS[name], format_of(name).call_style
    answer = golden.answer
    if name == "llama 4":
        answer = '[get_weather(city="Paris")]'
    elif name == "no tools in the template":
        answer = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    elif not style.thought:
        answer = answer[answer.index(style.opening or style.before) :]
        answer = answer[
            : answer.rindex(style.closing or style.after or "}") + len(style.closing or style.after)
        ]
    tools = [*TOOLS]
    constraint = GuidedConstraint(vocabulary, calls_grammar(tools, style, tokenizer))
    if name == "gpt-oss":  # <|call|> ends answers, and this preamble is on another channel
        answer = answer.replace("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant", "")
    follow(constraint, tokenizer, answer.rstrip("\n"))
    assert constraint.complete


@pytest.mark.parametrize("name", CANONICAL)
def test_drawn_calls_are_valid(name, tokenizer, vocabulary):
    format = format_of(name)
    chance = random.Random(name)
    style = replace(format.call_style, thought=None)  # which noise would never end
    constraint = GuidedConstraint(vocabulary, calls_grammar(DRAWN, style, tokenizer))
    schemas = {tool["name"]: tool.get("parameters", {"maxProperties": 0}) for tool in DRAWN}
    for _ in range(5):
        constraint.restart()
        text = draw(constraint, tokenizer, chance)
        calls = read(format, DRAWN, text)
        assert calls, text
        for called, given in calls:
            jsonschema.validate(given, schemas[called])


@pytest.mark.parametrize(
    "name", ["glm-4.5", "qwen3-coder", "lfm2", "mistral, array", "deepseek v3.1", "gemma 4"]
)
def test_a_call_that_a_mark_begins(name, tokenizer, vocabulary):
    format = format_of(name)
    mark = next(mark for mark in format.calls if format.call_style.begins_with(mark))
    grammar = opened_grammar(DRAWN, format.call_style, mark, tokenizer, parallel=False)
    thoughts = Thoughts({"<think>": "</think>"}, "<think>")
    constraint = WithinMarks(
        lambda: GuidedConstraint(vocabulary, grammar), tokenizer, mark, once=False, thoughts=thoughts
    )
    for _ in range(2):
        for text in (f"I could {mark} </think>", f" Well <think>{mark}</think> then "):
            free(constraint, tokenizer, text)
        free(constraint, tokenizer, mark)
        assert not constraint.complete
        ids = []
        while not constraint.complete:
            (bits,) = constraint.masks()
            allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()
            ids.append(min(i for i in allowed if i not in tokenizer.end_ids))
            constraint.accept(ids[-1])
        text = tokenizer.decode(ids)
        assert len(read(format, DRAWN, mark + text)) == 1, text
        constraint.restart()


@pytest.mark.parametrize("name", ["no tools in the template", "glm-4.5", "lfm2", "mistral, array"])
def test_an_answer_has_its_form_or_calls(name, tokenizer):
    style = format_of(name).call_style
    form = kukri.ResponseFormat.json_schema({"type": "object", "properties": {"a": {"enum": [1]}}})
    constraint = Constraints(lambda: tokenizer, tokenizer.end_ids).of_or_calls(form, DRAWN[1:], style)
    call = style.opening + style.before + "nothing" + style.between
    call += ("{}" if style.arguments == "json" else "") + style.after + style.closing
    for text in ('{"a": 1}', call.replace(LINE, "\n")):
        follow(constraint, tokenizer, text)
        assert constraint.complete
        constraint.restart()
    assert constraint.n_allowed(tokenizer.encode_within('{"b')) < 3
    assert constraint.n_allowed(tokenizer.encode_within("Hello")) == 0


def test_values_whose_type_is_open(tokenizer, vocabulary):
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"x": {}}}}]
    for name, pairs in {
        "glm-4.5": {"Paris": "Paris", "5": 5, '{"a": ["b"]}': {"a": ["b"]}, "true": True},
        "gemma 4": {'<|"|>a<|"|>': "a", "{k:[1,true]}": {"k": [1, True]}, "null": None},
        "lfm2": {'"a"': "a", "[1, 2.5]": [1, 2.5]},
    }.items():
        format = format_of(name)
        style = format.call_style
        for written, meant in pairs.items():
            value = {
                "tags": f"{style.tags[0]}x{style.tags[1]}{written}{style.tags[2]}",
                "gemma": f"x:{written}",
                "python": f"x={written}",
            }[style.arguments]
            text = style.opening + style.before + "f" + style.between + value + style.after + style.closing
            constraint = GuidedConstraint(vocabulary, calls_grammar(tools, style, tokenizer))
            follow(constraint, tokenizer, text)
            assert constraint.complete
            assert read(format, tools, text) == [("f", {"x": meant})]


def test_wrong_arguments_are_not_in_the_grammar(tokenizer, vocabulary):
    for name in CANONICAL:
        style = format_of(name).call_style
        right = {"json": '{"n": 7', "python": "n=7", "gemma": "n:7"}.get(
            style.arguments, style.tags[0] + "n" + style.tags[1] + "7"
        )
        tools = [{"name": "f", "parameters": {"type": "object", "properties": {"n": {"enum": [7]}}}}]
        constraint = GuidedConstraint(vocabulary, calls_grammar(tools, style, tokenizer))
        beginning = style.opening + style.before + "f" + style.between
        beginning = beginning.replace(NUMBER, "0").replace(LINE, "")
        follow(constraint, tokenizer, (beginning + right)[:-1])
        assert constraint.n_allowed(tokenizer.encode_within("7")) == 1
        assert not constraint.n_allowed(tokenizer.encode_within("8"))


def test_marks_that_are_tokens_are_asked_for_as_such(tiny):
    tokenizer = kukri.load_tokenizer(tiny)
    style = replace(format_of("nemotron").call_style, opening="<|im_start|>[", closing="]")
    (mark,) = tokenizer.encode("<|im_start|>", special=True)
    vocabulary = Vocabulary(tokenizer, tokenizer.end_ids)
    constraint = GuidedConstraint(vocabulary, calls_grammar(DRAWN, style, tokenizer))
    (bits,) = constraint.masks()
    assert np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist() == [mark]


def test_parameters_that_a_notation_cannot_keep_to(tokenizer):
    schema = {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}
    tools = [{"name": "f", "parameters": schema}]
    with pytest.raises(ConstraintError, match=r"parameters of f .* anyOf"):
        calls_grammar(tools, format_of("glm-4.5").call_style, tokenizer)
    with pytest.raises(ConstraintError, match="no name in Python"):
        calls_grammar(
            [{"name": "f", "parameters": {"type": "object", "properties": {"a-b": {}}}}],
            format_of("lfm2").call_style,
            tokenizer,
        )
    assert calls_grammar(tools, format_of("mistral, array").call_style, tokenizer)
