"""Grammars of the arguments of one call, in each notation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .....tokenizer.chat.output.call_style import CallStyle
from .....tokenizer.chat.output.tools import json_of, referred
from ....engine.errors import ConstraintError
from .gemma import GemmaArguments
from .members import Member, members
from .rules import Rules, listed
from .values import OTHERS, one_of, refuse, text_up_to, types_of

# Texts that may be read as JSON where the schema leaves their type open: by how they begin, since a lexer
# that could go on with text would not end a constant.
_LITERAL = r"\s*([\{\[\-0-9]|true|false|null|True|False|None)(?s:.*)"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_PYTHON = {True: "True", False: "False", None: "None"}


def arguments(rules: Rules, style: CallStyle, name: str, parameters: Mapping[str, Any]) -> str:
    """The expression of the arguments of the function `name`, whose `parameters` are a JSON schema.

    Raises ConstraintError for what the notation cannot keep to.
    """
    if style.arguments == "json":
        return rules.json(parameters, {})
    root = parameters
    parameters = referred(parameters, root)
    if not isinstance(parameters, Mapping):
        raise ConstraintError(f"the parameters of {name} are no object")
    refuse(parameters, name)
    if style.arguments == "gemma":
        return GemmaArguments(rules, style.quote, name, root).object(parameters)
    required = parameters.get("required") or ()
    found: list[Member] = []
    for key, schema in (parameters.get("properties") or {}).items():
        schema = referred(schema, root)
        schema = schema if isinstance(schema, Mapping) else {}
        if style.arguments == "tags":
            value = rules.text(style.tags[0] + key + style.tags[1]) + " "
            found.append((value + _bare(rules, schema, root, style.tags[2]), key in required))
        else:
            if not _IDENTIFIER.fullmatch(key):
                raise ConstraintError(f"the parameter {key!r:.60} of {name} is no name in Python")
            found.append((f"{json.dumps(key + '=')} {_python(rules, schema, root)}", key in required))
    return members(rules, found, "" if style.arguments == "tags" else '", "')


def _bare(rules: Rules, schema: Mapping[str, Any], root: Mapping[str, Any], end: str) -> str:
    """A value without quotes, and `end`. It is read as text if the schema says so, else as JSON if it is."""
    types = types_of(schema)
    is_text = types - {"null"} == {"string"}
    values = one_of(schema)
    if values is not None:
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        if not is_text:  # those that are read as what they are
            meant = [json.dumps(value, ensure_ascii=False) for value in values]
            texts = [text for text, json_ in zip(texts, meant, strict=True) if json_of(text) == json_]
        return listed(rules.text(text + end) for text in texts)
    if is_text:
        return text_up_to(rules, schema, end)
    if types == {"boolean"}:  # models write Python's constants as well
        return listed(rules.text(text + end) for text in ("true", "false", "True", "False"))
    if types and "string" not in types:
        return f"{rules.json(schema, root)} {rules.text(end)}"
    others = sorted(types - {"string"}) or list(OTHERS)
    either = rules.json({"allOf": [schema, {"type": others}]} if schema else {"type": others}, root)
    text = text_up_to(rules, schema, end, but=[_LITERAL])
    return f"({either} {rules.text(end)} | {text})"


def _python(rules: Rules, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """A literal of Python's; the insides of lists and objects are written as in JSON."""
    values = one_of(schema)
    if values is not None:
        return listed(json.dumps(_python_text(value)) for value in values)
    types = types_of(schema)
    if types == {"boolean"}:
        return '("True" | "False")'
    if isinstance(schema.get("type"), list) and types & {"null", "boolean"}:
        plain = [_PYTHON[None]] if "null" in types else []
        plain += ["True", "False"] if "boolean" in types else []
        others = sorted(types - {"null", "boolean"})
        rest = [rules.json({**schema, "type": others}, root)] if others else []
        return listed([*map(json.dumps, plain), *rest])
    return rules.json(schema, root)


def _python_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _PYTHON[value]
    return json.dumps(value, ensure_ascii=False)
