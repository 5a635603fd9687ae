"""What a request is known by: everything that its answer depends on, and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from kukri.runtime.answers.request import GenerationRequest
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.sampling.sampler import is_repeatable
from kukri.runtime.response_cache.key import request_key

ABOUT = {"model": "a"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OTHER_PARAMS: dict[str, Any] = {
    "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.5, "typical_p": 0.5, "top_n_sigma": 2.0,
    "xtc_probability": 0.5, "xtc_threshold": 0.2, "dynatemp_range": 0.5, "dynatemp_exp": 2.0,
    "repeat_penalty": 1.1, "repeat_last_n": 3, "presence_penalty": 0.5, "frequency_penalty": 0.5,
    "dry_multiplier": 0.5, "dry_base": 2.0, "dry_allowed_length": 3, "dry_penalty_last_n": 3,
    "dry_sequence_breakers": ((1, 2),), "mirostat": 2, "mirostat_lr": 0.5, "mirostat_ent": 4.0,
    "logit_bias": ((3, 1.0),), "samplers": ("top_k",), "seed": 1, "max_tokens": 5, "stop": ("x",),
    "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 2,
}  # fmt: skip
OTHER_FIELDS: dict[str, Any] = {
    "tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False, "thinking": False,
    "thinking_budget": 3, "begun": [1], "response_format": {"type": "choice", "choice": ["a", "b"]},
}  # fmt: skip
REQUEST = GenerationRequest("hi", ids=[1, 2, 3])


def key(request: GenerationRequest = REQUEST, about: dict[str, Any] = ABOUT, **params: Any) -> bytes:
    return request_key(about, request, list(request.ids or ()), replace(request.params, **params))


def test_what_changes_the_answer_changes_the_key() -> None:
    assert set(OTHER_PARAMS) == {field.name for field in fields(SamplingParams)}
    keys = [key(), key(about={"model": "b"})]
    keys += [key(**{name: value}) for name, value in OTHER_PARAMS.items()]
    keys += [key(replace(REQUEST, **{name: value})) for name, value in OTHER_FIELDS.items()]
    keys.append(key(replace(REQUEST, tools=[TOOL], tool_choice="f")))
    keys.append(key(replace(REQUEST, ids=[1, 2, 4])))
    keys.append(key(GenerationRequest(ids=[1, 2, 3])))  # read without the model's chat format
    keys.append(key(replace(REQUEST, response_format={"type": "choice", "choice": ["a", "c"]})))
    assert len(set(keys)) == len(keys)


def test_what_does_not_change_it_does_not() -> None:
    same = GenerationRequest("other", ids=(1, 2, 3), priority=5, variables={"a": 1})
    assert key(same) == key()
    assert key(replace(REQUEST, tools=[TOOL])) == key(replace(REQUEST, tools=[dict(reversed(TOOL.items()))]))
    # A field of these would have to be in the ids of the prompt.
    known = {"messages", "prompt", "ids", "variables", "params", "priority"} | OTHER_FIELDS.keys()
    assert known == {field.name for field in fields(GenerationRequest)}


@pytest.mark.parametrize(
    ("params", "repeatable"),
    [
        ({}, False),
        ({"temperature": 0}, True),
        ({"seed": 0}, True),
        ({"temperature": 0, "repeat_penalty": 1.3, "top_p": 0.5}, True),
        ({"top_k": 1}, True),
        ({"temperature": 0, "dynatemp_range": 0.5}, False),
        ({"temperature": 0, "xtc_probability": 0.5}, False),
        ({"temperature": 0, "xtc_probability": 0.5, "seed": 3}, True),
        ({"temperature": 0, "samplers": "top_p"}, False),
        ({"temperature": 0, "mirostat": 2}, True),
        ({"mirostat": 2}, False),
    ],
)
def test_repeatable(params: dict[str, Any], repeatable: bool) -> None:
    assert is_repeatable(SamplingParams(**params)) is repeatable
