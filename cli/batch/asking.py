"""From the flags of `llm batch` to the bodies of its requests."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ...runtime.batch.requests import Asking
    from ..generation.options import GenerationOptions

_NAMES_OF_BODIES = {
    "mirostat_ent": "mirostat_tau",
    "mirostat_lr": "mirostat_eta",
    "dynatemp_exp": "dynatemp_exponent",
}


def _parameters(options: GenerationOptions) -> dict[str, Any]:
    """The fields of a body that say what the sampling flags say. A usage error for a value out of range."""
    from ...runtime.engine.sampling.params import SamplingParams

    params, found = options.sampling(), dict[str, Any]()
    for field in fields(SamplingParams):
        given = getattr(options, field.name, None)
        if given is None or (field.name in ("max_tokens", "seed") and given == -1):
            continue
        value = getattr(params, field.name)
        if field.name == "logit_bias":
            value = [list(pair) for pair in (value.items() if isinstance(value, dict) else value)]
        found[_NAMES_OF_BODIES.get(field.name, field.name)] = (
            list(value) if isinstance(value, tuple) else value
        )
    return found


def _form(options: GenerationOptions) -> dict[str, Any]:
    """The field of a body that says what form answers must have. A usage error for two forms, and for one
    that is not supported."""
    return {} if options.response_format is None else {"response_format": options.given_form}


def _thinking(options: GenerationOptions) -> dict[str, Any]:
    wanted = options.wants_thinking
    return {} if wanted is None else {"reasoning_effort": "medium" if wanted else "none"}


def _tools(options: GenerationOptions) -> dict[str, Any]:
    """The schemas of functions that answers may call. A usage error for what is none."""
    asked = options.asked_of_tools
    if not asked:
        return {}
    choice = asked["tool_choice"]
    if choice not in ("auto", "none", "required"):
        choice = {"type": "function", "function": {"name": choice}}
    return {"tools": [dict(tool.schema) for tool in asked["tools"]], "tool_choice": choice}


def asking(options: GenerationOptions, template: str | None, embed: bool) -> Asking:
    """How rows become requests. A usage error for flags that exclude each other."""
    from ...runtime.batch.requests import Asking, Template

    if embed and (options.raw or options.system_text):
        raise typer.BadParameter("--embed has no place for --raw or a system prompt (-s)")
    if options.raw and options.system_text:
        raise typer.BadParameter("--raw has no place for a system prompt (-s)")
    try:
        filled = None if template is None else Template(template)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
    given = {} if embed else _parameters(options) | _form(options) | _thinking(options) | _tools(options)
    return Asking(filled, options.raw, embed, options.system_text, given)
