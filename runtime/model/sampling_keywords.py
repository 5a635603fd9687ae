"""Sampling parameters and other parts of a request as keyword arguments of a model's methods:
`model.chat(messages, temperature=0)`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypedDict

from ..answers.request import GenerationRequest, Messages
from ..engine.sampling.params import SamplingParams


class SamplingKeywords(TypedDict, total=False):
    """The fields of SamplingParams, for type checkers."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exp: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str | Sequence[int]]
    mirostat: int
    mirostat_lr: float
    mirostat_ent: float
    logit_bias: Mapping[int | str, float] | Iterable[tuple[int | str, float] | str] | str
    samplers: Sequence[str] | str
    seed: int | None
    max_tokens: int | None
    stop: Sequence[str] | str
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None


class AnswerKeywords(SamplingKeywords, total=False):
    """Those of `Model.answer`: the fields of SamplingParams and of GenerationRequest."""

    prompt: str | None
    ids: Sequence[int] | None
    params: SamplingParams
    tools: Sequence[Any] | None
    variables: Mapping[str, Any] | None
    priority: int
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    thinking: bool | None
    thinking_budget: int | None
    begun: Sequence[int]
    response_format: Any


def generation_request(
    request: GenerationRequest | Messages | None, keywords: Mapping[str, Any]
) -> GenerationRequest:
    """`request`, or one with these messages, with the fields that `keywords` names replaced: those of a
    GenerationRequest, and of its SamplingParams. TypeError and ValueError as for `sampling_params`."""
    own = {field.name for field in fields(GenerationRequest)}
    given = {name: value for name, value in keywords.items() if name in own}
    sampling = {name: value for name, value in keywords.items() if name not in own}
    if not isinstance(request, GenerationRequest):
        request = GenerationRequest(request, **given)
    elif given:
        request = replace(request, **given)
    if not sampling:
        return request
    return replace(request, params=sampling_params("answer", request.params, sampling))


def sampling_params(
    method: str, params: SamplingParams | None, keywords: Mapping[str, Any]
) -> SamplingParams:
    """`params` (None: the defaults) with the fields that `keywords` names replaced.

    `method` is named in errors: TypeError for a keyword that is no field, ValueError for a value out of
    range.
    """
    known = [field.name for field in fields(SamplingParams)]
    for name in keywords:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keywords are {', '.join(known)}"
            template = ", and a chat template's variables go into variables={...}" if method == "chat" else ""
            raise TypeError(f"{method}() has no parameter {name!r}: {hint}{template}")
    if params is not None and not isinstance(params, SamplingParams):
        raise TypeError(f"{method}() takes SamplingParams, or their fields as keywords, not {params!r:.80}")
    return replace(params or SamplingParams(), **keywords)
