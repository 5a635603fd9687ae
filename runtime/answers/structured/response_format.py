"""ResponseFormat: the form that an answer must have, from whatever states it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine.errors import ConstraintError
from .library import impossible, llguidance
from .schemas import closed, named_parts, schema_of_type

# Between the parts of a JSON text: enough for indented JSON. Without a bound, small models write spaces
# without end.
WHITE_SPACE = r"[ \t]{1,8}|[ \t]{0,8}\r?\n[ \t]{0,64}"
LONGEST_INSTRUCTION = 16_000  # characters of a schema that is told to the model

# What llguidance advises is an option of its own, and what to write instead.
ONE_OF = (
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
    "oneOf is supported only where at most one of its parts can fit; anyOf lets several fit",
)

_JSON_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}


@dataclass(frozen=True)
class ResponseFormat:
    """The form that an answer must have. Made by its class methods, or by `of` from what others call one.

    - `kind`: "json", "json_schema", "regex", "grammar" or "choice".
    - `grammar`: the form as llguidance takes it, a text.
    - `instruction`: what a model is told about it; "": nothing.

    The class methods raise ConstraintError for a form that is not supported or that no text has, naming the
    part.
    """

    kind: str
    grammar: str
    instruction: str = ""

    @classmethod
    def json(cls, in_prompt: bool = True, only_object: bool = False) -> ResponseFormat:
        """A JSON object or array."""
        schema = {"type": "object"} if only_object else {"type": ["object", "array"]}
        what = "a JSON object" if only_object else "JSON"
        instruction = f"Answer with {what} only, without any other text." if in_prompt else ""
        return cls("json", _json_grammar(schema), instruction)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool, in_prompt: bool = True) -> ResponseFormat:
        """JSON that fits a schema.

        An object has no other properties than those that the schema names, unless it says otherwise; other
        answers would fit as well, but nobody asks for them.
        """
        grammar = _json_grammar(schema)
        text = json.dumps(schema, ensure_ascii=False)
        told = in_prompt and len(text) <= LONGEST_INSTRUCTION
        instruction = f"Answer only with JSON that fits this JSON schema, and no other text:\n{text}"
        return cls("json_schema", grammar, instruction if told else "")

    @classmethod
    def regex(cls, pattern: str, in_prompt: bool = True) -> ResponseFormat:
        """Text that matches a regular expression as a whole, in the syntax of Rust's regex crate, which has
        no look-around and no references."""
        if not isinstance(pattern, str):
            raise ConstraintError(f"a regular expression is a text, not {type(pattern).__name__}")
        grammar = checked(llguidance().LLMatcher.grammar_from_regex(pattern), "the regular expression")
        instruction = "Answer only with text that matches this regular expression, without any other text:\n"
        return cls("regex", grammar, instruction + pattern if in_prompt else "")

    @classmethod
    def of_grammar(cls, text: str) -> ResponseFormat:
        """Text of a context-free grammar: Lark as llguidance knows it, or llama.cpp's GBNF."""
        from .gbnf import is_gbnf, lark_of

        if not isinstance(text, str):
            raise ConstraintError(f"a grammar is a text, not {type(text).__name__}")
        lark = lark_of(text) if is_gbnf(text) else text
        return cls("grammar", checked(llguidance().LLMatcher.grammar_from_lark(lark), "the grammar"))

    @classmethod
    def choice(cls, choices: Sequence[str], in_prompt: bool = True) -> ResponseFormat:
        """One of some texts."""
        if isinstance(choices, str) or not choices or not all(isinstance(c, str) and c for c in choices):
            raise ConstraintError("choices are a list of texts, none of them empty")
        lark = "start: " + " | ".join(json.dumps(text) for text in dict.fromkeys(choices))
        grammar = checked(llguidance().LLMatcher.grammar_from_lark(lark), "the choices")
        instruction = "Answer only with one of these, without any other text:\n" + "\n".join(choices)
        return cls("choice", grammar, instruction if in_prompt else "")

    @classmethod
    def of(cls, given: Any, in_prompt: bool = True) -> ResponseFormat | None:
        """The form that one of these states; None for None and for {"type": "text"}:

        - a ResponseFormat;
        - a JSON schema as a dict;
        - a class: a pydantic model, a dataclass, a TypedDict, or what the fields of one may be;
        - a `response_format` of OpenAI's API: {"type": "json_object"}, {"type": "json_schema", "json_schema":
          {"schema": …}}; and {"type": "regex", "regex": …}, {"type": "grammar", "grammar": …}, {"type":
          "choice", "choice": […]}.

        Raises ConstraintError.
        """
        if given is None or isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            return cls.json_schema(schema_of_type(given), in_prompt)
        kind = given.get("type")
        if kind == "text":
            return None
        if kind == "json_object":
            return cls.json(in_prompt, only_object=True)
        if kind == "json_schema":
            inner = given.get("json_schema", given)
            if not isinstance(inner, Mapping) or "schema" not in inner:
                raise ConstraintError('a response format of the type "json_schema" has no schema')
            return cls.json_schema(inner["schema"], in_prompt)
        if kind == "regex":
            return cls.regex(_part(given, "regex", "pattern"), in_prompt)
        if kind == "grammar":
            return cls.of_grammar(_part(given, "grammar", "definition"))
        if kind == "choice":
            return cls.choice(_part(given, "choice", "choices"), in_prompt)
        if isinstance(kind, str) and kind not in _JSON_TYPES:
            raise ConstraintError(
                f"unknown type of a response format: {kind!r:.40}; there are text, json_object, json_schema, "
                "regex, grammar and choice"
            )
        return cls.json_schema(given, in_prompt)

    def told(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """`messages` with the instruction behind the newest one of the user."""
        if not self.instruction:
            return messages
        for i in reversed(range(len(messages))):
            if messages[i].get("role") == "user":
                content = messages[i].get("content")
                if isinstance(content, str):
                    content = f"{content}\n\n{self.instruction}"
                elif isinstance(content, Sequence):
                    content = [*content, {"type": "text", "text": self.instruction}]
                else:
                    break
                return [*messages[:i], {**messages[i], "content": content}, *messages[i + 1 :]]
        return messages


def _part(given: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if name in given:
            return given[name]
    raise ConstraintError(f'a response format of the type "{given["type"]}" has no "{names[0]}"')


def _json_grammar(schema: Any) -> str:
    """The grammar of a JSON schema, checked."""
    if not isinstance(schema, Mapping | bool):
        raise ConstraintError(f"a JSON schema is an object, not {type(schema).__name__}")
    try:
        text = json.dumps(closed(schema))
    except (TypeError, ValueError, RecursionError) as problem:
        raise ConstraintError(f"the JSON schema is no JSON: {problem}") from None
    options = {"whitespace_pattern": WHITE_SPACE}
    try:
        grammar = llguidance().LLMatcher.grammar_from_json_schema(text, defaults=options)
    except ValueError as problem:
        raise ConstraintError(f"the JSON schema cannot be read: {problem}") from None
    return checked(grammar, "the JSON schema", schema)


def checked(grammar: str, what: str, schema: Any = None) -> str:
    """`grammar`, or a ConstraintError that passes on what llguidance says about it."""
    failed, messages = llguidance().LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        message = " ".join("; ".join(messages).split()).replace(*ONE_OF)
        raise ConstraintError(f"{what} cannot be used: {message}{named_parts(message, schema)}")
    if impossible(grammar):
        raise ConstraintError(f"{what} cannot be used: no text fits it")
    return grammar
