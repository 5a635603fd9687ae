"""Parameters of servers that speak OpenAI's API: forms of answers under all names, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..http.bodies import parse_object
from ..http.problems import Problem

_KINDS = ("json", "regex", "choice", "grammar")
_GUIDED = {  # of vLLM and llama.cpp → kind
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "grammar": "grammar",
}

# name → the values that change nothing
REFUSED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none",),
    "web_search_options": (),
    "verbosity": ("medium",),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "min_tokens": (0,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "chat_template": (),
    "truncate_prompt_tokens": (),
    "lora": ([],),
    "image_data": ([],),
    "mm_processor_kwargs": (),
    "documents": ([],),
    "n_probs": (0,),
}


def form_of(response_format: dict[str, Any] | None, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The form that an answer must have, by OpenAI's parameter or by those of vLLM and llama.cpp. Problem 400
    for more than one."""
    outputs = fields.get("structured_outputs")
    given = {**outputs} if isinstance(outputs, dict) else {}
    for name, kind in _GUIDED.items():
        if fields.get(name) not in (None, ""):
            given[kind] = fields[name]
    forms = [_form(kind, value) for kind, value in given.items() if kind in _KINDS and value is not None]
    if response_format is not None and response_format.get("type", "text") != "text":
        forms.append(_checked(response_format))
    if len(forms) > 1:
        raise Problem(400, "an answer can have one form only", "response_format", "invalid_value")
    return forms[0] if forms else None


def _form(kind: str, value: Any) -> dict[str, Any]:
    if kind == "json":
        if isinstance(value, str):
            value = parse_object(value.encode())
        return _checked({"type": "json_schema", "json_schema": {"schema": value}})
    return {"type": kind, kind: value}


def _checked(form: dict[str, Any]) -> dict[str, Any]:
    """A form whose schema, if it has one, is an object or a truth value."""
    if form.get("type") == "json_schema":
        inner = form.get("json_schema")
        if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict | bool):
            raise Problem(
                400, "response_format.json_schema must have a schema", "response_format", "invalid_value"
            )
    return form
