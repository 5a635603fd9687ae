"""Grammars of answers that call tools, or of what follows the mark that begins calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .....tokenizer import Tokenizer
from .....tokenizer.chat.output.call_style import CallStyle
from ..library import llguidance
from ..response_format import checked
from .arguments import arguments
from .rules import Rules, listed


def calls_grammar(
    tools: Sequence[Mapping[str, Any]], style: CallStyle, tokenizer: Tokenizer, parallel: bool = True
) -> str:
    """The grammar of an answer that is a call of one of `tools`, or with `parallel` one or more calls.

    `tools` are JSON schemas of functions, as `Tool.schema` has them. Raises ConstraintError for parameters
    that are not supported.
    """
    rules = Rules(tokenizer)
    call = _call(rules, tools, style, style.before)
    several = _several(rules, call, style, parallel)
    if style.thought:
        begin, end = style.thought
        thought = f"{rules.text(begin)} {rules.text_up_to(end)}"
        several = f"({thought})* {several}"
    return _checked(
        rules.grammar(f"{rules.text(style.opening.lstrip())} {several} {rules.text(style.closing)}"), tools
    )


def opened_grammar(
    tools: Sequence[Mapping[str, Any]], style: CallStyle, mark: str, tokenizer: Tokenizer, parallel: bool
) -> str:
    """The grammar of what follows `mark`, with which calls begin, to their end."""
    rules = Rules(tokenizer)
    space = "/\\s{0,2}/"
    if style.opening:
        call = _call(rules, tools, style, style.before)
        opening = rules.text(style.opening.removeprefix(mark).lstrip())
        several = _several(rules, call, style, parallel)
        return _checked(rules.grammar(f"{space} {opening} {several} {rules.text(style.closing)}"), tools)
    call = _call(rules, tools, style, style.before.removeprefix(mark).lstrip())
    return _checked(rules.grammar(f"{space} {call}"), tools)


def either(form: str, calls: str) -> str:
    """The grammar of what one of two grammars has, each as `checked` gives it."""
    both = {"name": "either", "lark_grammar": "start: @form | @calls"}
    return json.dumps({"grammars": [both, _named(form, "form"), _named(calls, "calls")]})


def _named(grammar: str, name: str) -> dict[str, Any]:
    """A grammar, in Lark or as the one of a list, with a name by which others refer to it."""
    if not grammar.startswith("{"):
        return {"name": name, "lark_grammar": grammar}
    return {**json.loads(grammar)["grammars"][0], "name": name}


def _several(rules: Rules, call: str, style: CallStyle, parallel: bool) -> str:
    """One call, or more of them."""
    if not (parallel and style.several):
        return call
    return f"{call} ({rules.text(style.separator)} {call})*"


def _call(rules: Rules, tools: Sequence[Mapping[str, Any]], style: CallStyle, before: str) -> str:
    """The rule of a call of one of some tools, which begins with `before`."""
    kinds = []
    for tool in tools:
        function = tool.get("function", tool)
        name = function["name"]
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        inside = arguments(rules, style, name, parameters)
        kinds.append(f"{rules.text(before + name + style.between)} {inside} {rules.text(style.after)}")
    return rules.rule(listed(kinds))


def _checked(lark: str, tools: Sequence[Mapping[str, Any]]) -> str:
    return checked(llguidance().LLMatcher.grammar_from_lark(lark), "the tools", list(tools))
