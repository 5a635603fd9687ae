"""What schemas say of single values, for notations that are not JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .....tokenizer.chat.output.tools import json_types
from ....engine.errors import ConstraintError
from .rules import ANYTHING, Rules

OTHERS = ("array", "boolean", "integer", "null", "number", "object")  # JSON's types but strings
_OF_TEXT = {"minLength", "maxLength", "pattern", "format"}
# What an object of separate members could not keep to.
_OF_MEMBERS = {
    "anyOf", "oneOf", "allOf", "not", "if", "patternProperties", "propertyNames", "minProperties",
    "maxProperties", "dependentRequired", "dependentSchemas",
}  # fmt: skip


def refuse(schema: Mapping[str, Any], where: str, keywords: Collection[str] = _OF_MEMBERS) -> None:
    """ConstraintError for a schema with one of some keywords, naming it."""
    found = sorted(set(schema) & set(keywords))
    if found:
        raise ConstraintError(
            f"the parameters of {where} cannot be forced in this model's notation of calls, which is not "
            f"JSON: they have {', '.join(found)}"
        )


def one_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists; None if it does not."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list | tuple) else None


def types_of(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types of a schema's values; none: any."""
    types = json_types(schema)
    return {"string"} if not types and set(schema) & _OF_TEXT else types


def text_up_to(rules: Rules, schema: Mapping[str, Any], end: str, but: Sequence[str] = ()) -> str:
    """The expression of a text that fits a schema and matches none of `but`, and of `end` behind it."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    patterns = [
        ANYTHING if not least and most is None else f"(?s:.{{{least},{'' if most is None else most}}})"
    ]
    if "pattern" in schema:
        patterns.append(_whole(schema["pattern"]))
        least = max(least, 1)  # a pattern that the empty text matches is seldom meant to
    return rules.text_up_to(end, patterns, but, least)


def _whole(pattern: str) -> str:
    """An expression that is to be found within a text, as one that the whole text matches."""
    begins, ends = pattern.startswith("^"), re.search(r"(?<!\\)(?:\\\\)*\$\Z", pattern) is not None
    inner = pattern[begins : len(pattern) - ends]
    if (begins or ends) and "|" in inner and not re.fullmatch(r"\(.*\)|\[.*\].*", inner, re.DOTALL):
        raise ConstraintError(f"the pattern {pattern!r:.60} of a parameter cannot be forced in this notation")
    inner = inner.replace("/", r"\/") if r"\/" not in inner else inner
    return f"{'' if begins else ANYTHING}({inner}){'' if ends else ANYTHING}"
