"""Sampling parameters of requests: the names that APIs have for them, and SamplingParams."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..engine.sampling.params import SamplingParams
from .http.problems import about_request

Probability = Annotated[float, Meta(ge=0, le=1)]

_OTHER_NAMES = {  # of other servers → field of SamplingParams
    "repetition_penalty": "repeat_penalty",  # vLLM
    "typical_p": "typical_p",
    "typ_p": "typical_p",
    "mirostat_tau": "mirostat_ent",  # llama.cpp, Ollama
    "mirostat_eta": "mirostat_lr",
    "dynatemp_exponent": "dynatemp_exp",
}


class Sampling(msgspec.Struct, kw_only=True):
    """The fields that all APIs here share; null is the default. Beyond OpenAI's there are those of llama.cpp
    and vLLM."""

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Probability | None = None
    typical_p: Probability | None = None
    typ_p: Probability | None = None
    top_n_sigma: float | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Probability | None = None
    dynatemp_range: Annotated[float, Meta(ge=0)] | None = None
    dynatemp_exponent: Annotated[float, Meta(ge=0)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-100, le=100)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0)] | None = None
    dry_base: Annotated[float, Meta(ge=1)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=1)] | None = None
    dry_penalty_last_n: Annotated[int, Meta(ge=-1)] | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: int | None = None
    mirostat_tau: Annotated[float, Meta(ge=0)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0)] | None = None
    samplers: list[str] | str | None = None
    logit_bias: dict[str, float | bool] | list[list[Any]] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None


_FIELDS = {field: _OTHER_NAMES.get(field, field) for field in Sampling.__struct_fields__}


def sampling_params(
    request: Sampling,
    max_tokens: int | None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    nth: int = 0,
    **others: Any,
) -> SamplingParams:
    """The parameters of answer number `nth` of a request, each of which has a seed of its own.

    Penalties on presence and frequency look at the whole text, as OpenAI's do, unless the request says how
    far. Problem 400 for what SamplingParams refuse.
    """
    given: dict[str, Any] = {
        name: value for field, name in _FIELDS.items() if (value := getattr(request, field)) is not None
    }
    if (request.presence_penalty or request.frequency_penalty) and request.repeat_last_n is None:
        given["repeat_last_n"] = -1
    if given.get("top_k") == -1:  # vLLM's "all"
        given["top_k"] = 0
    if (seed := given.get("seed")) is not None:
        given["seed"] = None if seed == -1 else (seed + nth) % (1 << 63)
    if "stop" in given:
        texts = [given["stop"]] if isinstance(given["stop"], str) else given["stop"]
        given["stop"] = tuple(text for text in texts if text)
    with about_request():
        if request.logit_bias is not None:
            given["logit_bias"] = _biases(request.logit_bias)
        return SamplingParams(
            max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs, **given, **others
        )


def _biases(given: dict[str, float | bool] | list[list[Any]]) -> list[tuple[int | str, float]]:
    """Pairs of an id or a text, and what is added; false bans a token."""
    pairs = given.items() if isinstance(given, dict) else (tuple(pair) for pair in given)
    found: list[tuple[int | str, float]] = []
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], int | str) or not isinstance(pair[1], int | float):
            raise ValueError("logit_bias must be pairs of a token and a number")
        key, bias = pair
        if isinstance(key, str) and key.isascii() and key.isdigit():
            key = int(key)
        found.append((key, -math.inf if bias is False else float(bias)))
    return found


def given_count(*counts: int | UnsetType | None) -> int | None:
    """The first of some counts that is there, which may be 0; -1 is none."""
    for count in counts:
        if count is not None and count is not UNSET:
            return None if count == -1 else int(count)
    return None
