"""Tools: functions that a model may call, as JSON schemas or as Python functions."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_ARGUMENT = re.compile(r"^\s*(?::param\s+(?:\w+\s+)?)?[*`]*(\w+)[*`]*\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_SECTION = re.compile(r"^\s*(?:Args|Arguments|Parameters|Params)\s*:?\s*$", re.IGNORECASE)
_OTHER_SECTION = re.compile(
    r"^\s*(?:Returns?|Raises|Yields?|Examples?|Notes?)\s*:?\s*$|^\s*:returns?:", re.IGNORECASE
)


@dataclass(frozen=True)
class Tool:
    """A function that a model may call: `schema` as chat APIs have it, and what runs it, if anything does.

    `function` takes the arguments as keywords. Its result goes to the model as text, or as JSON if it is
    none.
    """

    schema: Mapping[str, Any]
    function: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return str(self.schema["function"]["name"])

    @classmethod
    def of(cls, tool: object) -> Tool:
        """A tool of what `tools=` takes: a Python function, a schema, or a Tool.

        A function's schema is made of its name, its signature and its docstring: the first paragraph says
        what it does, and lines `name: text` below `Args:`, or `:param name: text`, what its parameters are.
        Raises TypeError or ValueError for what is none.
        """
        if isinstance(tool, Tool):
            return tool
        if isinstance(tool, Mapping):
            return cls(_checked(tool))
        if callable(tool):
            return cls(schema_of(tool), tool)
        raise TypeError(f"a tool is a JSON schema or a Python function, not {type(tool).__name__}")


def tools_of(tools: Iterable[object]) -> list[Tool]:
    """The tools of a request, see `Tool.of`. ValueError if two have the same name."""
    found = [Tool.of(tool) for tool in tools]
    names = [tool.name for tool in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two tools have the name {name}")
    return found


def _checked(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema in the shape of chat APIs. ValueError for one without a name."""
    function = schema.get("function") if schema.get("type", "function") == "function" else None
    if not isinstance(function, Mapping):
        function = {key: value for key, value in schema.items() if key != "type" or value != "function"}
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError(
            'a tool needs a name: {"type": "function", "function": {"name": …, "parameters": …}}'
        )
    given = dict(function)
    for other in ("input_schema", "inputSchema"):  # as others call the parameters
        if other in given:
            given.setdefault("parameters", given.pop(other))
    if not isinstance(given.setdefault("parameters", {"type": "object", "properties": {}}), Mapping):
        raise ValueError(f"the parameters of the tool {given['name']} are no JSON schema")
    given.setdefault("description", "")
    return {"type": "function", "function": given}


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a Python function, see `Tool.of`. ValueError if its signature cannot be read."""
    name = getattr(function, "__name__", type(function).__name__)
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"{name} is no name for a tool; give a function with a name")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ValueError(f"the signature of {name} cannot be read") from None
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation may be any expression
        hints = {}
    about, texts = _described(inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    required = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ValueError(f"{name} takes {parameter.name} by position only, and models give names")
        schema = _schema(hints.get(parameter.name, parameter.annotation))
        if parameter.name in texts:
            schema["description"] = texts[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif isinstance(parameter.default, str | int | float | bool):
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


def _schema(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hasattr(hint, "__metadata__"):  # Annotated[T, "what it is"]
        texts = [each for each in hint.__metadata__ if isinstance(each, str)]
        return {**_schema(arguments[0]), **({"description": texts[0]} if texts else {})}
    if origin is Literal:
        names = {_JSON_TYPES.get(type(value)) for value in arguments}
        return {**({"type": names.pop()} if len(names) == 1 else {}), "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        kinds = [_schema(each) for each in arguments if each is not type(None)]
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if origin in (list, tuple, set, frozenset) or getattr(origin, "__name__", "") in ("Sequence", "Iterable"):
        items = [each for each in arguments if each is not ...]
        return {"type": "array", **({"items": _schema(items[0])} if items else {})}
    if origin is dict or getattr(origin, "__name__", "") == "Mapping":
        return {"type": "object"}
    kind = _JSON_TYPES.get(hint)
    return {"type": kind} if kind else {}


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of the function, and of each parameter."""
    about: list[str] = []
    texts: dict[str, str] = {}
    in_section, latest = False, ""
    for line in doc.splitlines():
        found = _ARGUMENT.match(line)
        if _SECTION.match(line):
            in_section = True
        elif _OTHER_SECTION.match(line):
            in_section, latest = False, ""
            about.append("")
        elif found and (in_section or line.lstrip().startswith(":param")):
            latest = found[1]
            texts[latest] = found[2].strip()
        elif latest and line.strip():
            texts[latest] += " " + line.strip()
        elif not in_section:
            about.append(line.strip())
    paragraph = "\n".join(about).strip().split("\n\n")[0]
    return " ".join(paragraph.split()), texts
