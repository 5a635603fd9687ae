"""Sampling options as Ollama's clients send them, in an object `options`."""

from __future__ import annotations

from typing import Any

import msgspec

from ...engine.sampling.params import SamplingParams
from ..http.bodies import checked
from ..http.problems import Problem
from ..sampling import Sampling, sampling_params


class Options(Sampling, kw_only=True):
    """The options; those that concern the machine (num_ctx, num_gpu …) are the server's business."""

    num_predict: int | None = None


def params_of(options: dict[str, Any] | None, logprobs: int | None = None) -> SamplingParams:
    """Problem 400 for an option that is wrong."""
    found = checked(Options, {name: value for name, value in (options or {}).items() if value is not None})
    most = found.num_predict
    if most is not None and most < -2:
        raise Problem(400, "num_predict must be -1 or more", "num_predict")
    return sampling_params(found, None if most is None or most < 0 else most, logprobs)


class Common(msgspec.Struct, kw_only=True):
    """What requests for chat and for generation share. `format`: "json" or a JSON schema."""

    model: str | None = None
    stream: bool = True
    options: dict[str, Any] | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: str | float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


def response_format(form: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """`format` in OpenAI's shape."""
    if not form:
        return None
    if form == "json":
        return {"type": "json_object"}
    if isinstance(form, str):
        raise Problem(400, 'format must be "json" or a JSON schema', "format")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form, "strict": True}}
