"""What readers of calls want to know of the functions that may be called."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

_MOST_REFERENCES = 8  # to references
_LITERALS = ("{", "[", "-", "true", "false", "null", *"0123456789")


class ToolSchemas:
    """The functions of a request, by name, with the JSON schemas of their parameters.

    `tools`: in the shape of chat APIs, {"type": "function", "function": {"name": …, "parameters": …}}, or
    only what stands under "function" there. What has no name is left out.
    """

    def __init__(self, tools: Iterable[Any] = ()) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                parameters = function.get("parameters") or function.get("input_schema")
                self._parameters[function["name"]] = parameters if isinstance(parameters, Mapping) else {}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._parameters

    def __bool__(self) -> bool:
        return bool(self._parameters)

    @property
    def names(self) -> list[str]:
        """Their names."""
        return list(self._parameters)

    def parameters(self, name: str) -> list[str]:
        """The names of a function's parameters, in order."""
        return list(self._properties(name))

    def _properties(self, name: str) -> Mapping[str, Any]:
        found = self._parameters.get(name, {}).get("properties")
        return found if isinstance(found, Mapping) else {}

    def takes_text(self, name: str, parameter: str) -> bool | None:
        """Whether a parameter is a text and nothing else; None if the schema does not say."""
        schema = referred(self._properties(name).get(parameter), self._parameters.get(name))
        types = json_types(schema) - {"null"}
        return types == {"string"} if types else None


def referred(schema: Any, root: Any) -> Any:
    """`schema`, or the definition within `root` that it is a reference to."""
    for _ in range(_MOST_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = root
        for key in reference[2:].split("/"):
            schema = (
                schema.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
            )
    return schema


def json_types(schema: Any) -> set[str]:
    """The JSON types that a schema allows, as far as it names them."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(named) if isinstance(named, list | tuple) else set()
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list | tuple):
            types = types.union(*map(json_types, schema[key]))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not types and isinstance(values, list | tuple):
        types = {"string" if isinstance(value, str) else "other" for value in values}
    return types


def json_of(text: str) -> str:
    """The JSON of a value that was written without quotes: itself if it is JSON or one of Python's constants,
    else a string."""
    bare = text.strip()
    if bare in ("True", "False", "None"):
        return {"True": "true", "False": "false", "None": "null"}[bare]
    if bare.startswith(_LITERALS):
        try:
            return strict_json(json.loads(bare))
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def strict_json(value: Any) -> str:
    """The JSON of a value that `json.loads` gave, as every reader takes it: halves of surrogate pairs become
    U+FFFD. ValueError for numbers that no double holds, for which Python has words of its own."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_double(number: str) -> bool:
    """Whether a number is one for readers of JSON that have doubles only, and for Python, which reads no more
    than some thousand digits."""
    return math.isfinite(float(number))


def escaped(text: str) -> str:
    """`text` as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
