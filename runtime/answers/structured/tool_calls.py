"""Grammars of tool calls: JSON of one of several tools, between the marks of a model's family."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....tokenizer import Tokenizer
from .response_format import WHITE_SPACE, checked
from .schemas import closed
from .vocabulary import mark_ids


@dataclass(frozen=True)
class CallSyntax:
    """How a family writes calls in JSON.

    `opening` and `closing` enclose a call, or with `listed` the JSON array of all calls; `between` stands
    between two calls that have marks of their own. `arguments` is the key of a call's arguments.
    """

    opening: str
    closing: str
    arguments: str = "arguments"
    listed: bool = False
    between: str = "\n"


SYNTAXES = {  # by the mark that begins a call
    "<tool_call>": CallSyntax("<tool_call>\n", "\n</tool_call>"),
    "<|tool_call|>": CallSyntax("<|tool_call|>", "", listed=True),  # Granite 3
    "[TOOL_CALLS]": CallSyntax("[TOOL_CALLS]", "", listed=True),  # Mistral up to v7
    "<TOOLCALL>": CallSyntax("<TOOLCALL>", "</TOOLCALL>", listed=True),  # Nemotron
    "<|tool_call_start|>": CallSyntax("<|tool_call_start|>", "<|tool_call_end|>", listed=True),  # LFM2
    "": CallSyntax("", "", arguments="parameters", between="; "),  # Llama 3
}


def calls_grammar(
    tools: Sequence[Mapping[str, Any]], syntax: CallSyntax, tokenizer: Tokenizer, parallel: bool = True
) -> str:
    """The grammar of an answer that is a call of one of `tools`, or with `parallel` one or more calls.

    `tools` are JSON schemas of functions, as `Tool.schema` has them. Raises ConstraintError for parameters
    that are not supported.
    """
    call: dict[str, Any] = {"anyOf": [_call_schema(tool, syntax) for tool in tools]}
    if syntax.listed:
        call = {"type": "array", "items": call, "minItems": 1} | ({} if parallel else {"maxItems": 1})
    more = f"({_marks(syntax.between, tokenizer)} call)*" if parallel and not syntax.listed else ""
    return _grammar(f"start: call {more}", call, syntax, tokenizer, opened=False)


def opened_call_grammar(tools: Sequence[Mapping[str, Any]], syntax: CallSyntax, tokenizer: Tokenizer) -> str:
    """The grammar of what follows the mark that opens a call, up to the one that closes it."""
    call: dict[str, Any] = {"anyOf": [_call_schema(tool, syntax) for tool in tools]}
    if syntax.listed:
        call = {"type": "array", "items": call, "minItems": 1}
    return _grammar("start: call", call, syntax, tokenizer, opened=True)


def _call_schema(tool: Mapping[str, Any], syntax: CallSyntax) -> dict[str, Any]:
    """The schema of a call of a tool."""
    function = tool.get("function", tool)
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, syntax.arguments: parameters},
        "required": ["name", syntax.arguments],
        "additionalProperties": False,
    }


def _grammar(
    start: str, schema: dict[str, Any], syntax: CallSyntax, tokenizer: Tokenizer, opened: bool
) -> str:
    from .library import llguidance

    opening = syntax.opening.lstrip() if not opened else syntax.opening[len(syntax.opening.rstrip()) :]
    options = {"x-guidance": {"whitespace_pattern": WHITE_SPACE}}
    call = f"call: {_marks(opening, tokenizer)} json {_marks(syntax.closing, tokenizer)}"
    lark = f"{start}\n{call}\njson: %json {json.dumps(closed(schema) | options)}\n"
    return checked(llguidance().LLMatcher.grammar_from_lark(lark), "the tools", schema)


def _marks(text: str, tokenizer: Tokenizer) -> str:
    """A text with marks in Lark: the marks as tokens, the rest as it is."""
    marks = mark_ids(tokenizer)
    parts: list[str] = []
    rest: list[int] = []
    for id_ in tokenizer.encode(text, special=True) if text else []:
        if id_ in marks:
            parts += [_literal(tokenizer, rest), f"<[{id_}]>"]
            rest = []
        else:
            rest.append(id_)
    return " ".join(part for part in [*parts, _literal(tokenizer, rest)] if part)


def _literal(tokenizer: Tokenizer, ids: Collection[int]) -> str:
    text = tokenizer.decode(ids) if ids else ""
    return json.dumps(text) if text else ""
