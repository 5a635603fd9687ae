"""JSON schemas: of Python types, without unasked properties, and where in one a keyword stands."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
import types
import typing
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...engine.errors import ConstraintError

MOST_NAMED = 3  # places that a message names

# Where these are, what closes an object could contradict another part of the schema.
_JOINING = {"allOf", "oneOf", "not", "if", "unevaluatedProperties", "dependentSchemas", "$dynamicRef"}
_OPEN = {
    "additionalProperties", "patternProperties", "propertyNames", "minProperties", "anyOf", "$ref", "enum",
    "const",
}  # fmt: skip
_DATA = {"enum", "const", "default", "examples", "required"}  # keywords whose values are no schemas
_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    dict: {"type": "object"},
    list: {"type": "array"},
    Any: {},
}


def closed(schema: Any) -> Any:
    """`schema`, whose objects have no properties but those that it names, where that contradicts no other
    part of it."""
    keywords = {key for key, _, _ in _keywords(schema)}
    return schema if keywords & _JOINING else _closed(schema)


def _closed(schema: Any) -> Any:
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [_closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            found[key] = {name: _closed(each) for name, each in value.items()}
        else:
            found[key] = value if key in _DATA else _closed(value)
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list) or set(schema) & _OPEN:
        return found
    if all(isinstance(name, str) and name in properties for name in required):
        found["additionalProperties"] = False
    return found


def _keywords(schema: Any, path: str = "") -> Iterator[tuple[str, Any, str]]:
    """(keyword, value, JSON pointer of the schema that has it) for all keywords of a schema."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            yield str(key), value, path
            if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
                if isinstance(value, Mapping):
                    for name, each in value.items():
                        yield from _keywords(each, f"{path}/{key}/{name}")
            elif key not in _DATA:
                yield from _keywords(value, f"{path}/{key}")
    elif isinstance(schema, Sequence) and not isinstance(schema, str):
        for i, each in enumerate(schema):
            yield from _keywords(each, f"{path}/{i}")


def named_parts(message: str, schema: Any) -> str:
    """Where in `schema` the keywords stand that a message of llguidance names in quotes; "" if nowhere."""
    listed = re.search(r"keys: (\[.*?\])", message)
    if schema is None or listed is None:
        return ""
    names = set(re.findall(r'"([^"]*)"', listed[1]))
    places = [f"#{path}/{key}" for key, _, path in _keywords(schema) if key in names]
    return f" (at {', '.join(places[:MOST_NAMED])})" if places else ""


def schema_of_type(type_: Any) -> dict[str, Any]:
    """The JSON schema of a pydantic model or adapter, a dataclass, a TypedDict, or a type that may be the
    type of one of their fields. ConstraintError for others."""
    for method in ("model_json_schema", "json_schema"):  # of pydantic's models and type adapters
        if callable(found := getattr(type_, method, None)):
            return dict(found())
    definitions: dict[str, Any] = {}
    schema = _TypeReader(definitions).read(type_, getattr(type_, "__name__", "response_format"))
    return {**schema, "$defs": definitions} if definitions else schema


class _TypeReader:
    """Turns types into schemas; classes with fields become definitions, which may contain each other."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._names: dict[Any, str] = {}

    def read(self, type_: Any, where: str) -> dict[str, Any]:
        """The schema of a type; `where` names it in an error."""
        try:
            if type_ in _SIMPLE:
                return dict(_SIMPLE[type_])
        except TypeError:
            pass  # not hashable, so none of them
        origin, arguments = typing.get_origin(type_), typing.get_args(type_)
        if origin is not None:
            return self._generic(type_, origin, arguments, where)
        if isinstance(type_, type) and issubclass(type_, enum.Enum):
            return {"enum": [member.value for member in type_]}
        if callable(found := getattr(type_, "model_json_schema", None)):
            return self._refer(type_, lambda: dict(found(ref_template="#/$defs/{model}")))
        if dataclasses.is_dataclass(type_) or typing.is_typeddict(type_):
            return self._refer(type_, lambda: self._fields(type_))
        raise ConstraintError(
            f"{where}: {type_!r:.60} has no JSON schema; a response format is a dict, a pydantic model, a "
            "dataclass or a TypedDict"
        )

    def _generic(self, type_: Any, origin: Any, arguments: Any, where: str) -> dict[str, Any]:
        if origin is typing.Annotated:
            schema = self.read(arguments[0], where)
            described = [each for each in arguments[1:] if isinstance(each, str)]
            return {**schema, "description": described[0]} if described else schema
        if origin in (typing.Required, typing.NotRequired):
            return self.read(arguments[0], where)
        if origin is typing.Literal:
            return {"enum": list(arguments)}
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.read(each, where) for each in arguments]}
        if origin is tuple and arguments[1:] != (...,):
            items = [self.read(each, where) for each in arguments]
            return {
                "type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items),
                "items": False,
            }  # fmt: skip
        if isinstance(origin, type) and issubclass(origin, Mapping) and arguments[0] is str:
            return {"type": "object", "additionalProperties": self.read(arguments[1], where)}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"type": "array", "items": self.read(arguments[0], where)}
        raise ConstraintError(f"{where}: {type_!r:.60} has no JSON schema")

    def _refer(self, type_: Any, make: Any) -> dict[str, Any]:
        """A reference to the definition of a class."""
        if type_ not in self._names:
            name, n = type_.__name__, 1
            while name in self._definitions:
                n += 1
                name = f"{type_.__name__}{n}"
            self._names[type_] = name
            self._definitions[name] = {}
            schema = make()
            self._definitions.update(schema.pop("$defs", {}))
            self._definitions[name] = schema
        return {"$ref": f"#/$defs/{self._names[type_]}"}

    def _fields(self, type_: Any) -> dict[str, Any]:
        """The schema of a dataclass or TypedDict."""
        try:
            hints = typing.get_type_hints(type_, include_extras=True)
        except NameError as problem:
            raise ConstraintError(f"{type_.__name__}: {problem}") from None
        if dataclasses.is_dataclass(type_):
            own = [field for field in dataclasses.fields(type_) if field.init]
            hints = {field.name: hints[field.name] for field in own}
            missing = dataclasses.MISSING
            required = [f.name for f in own if f.default is missing and f.default_factory is missing]
        else:
            required = [name for name in hints if name in type_.__required_keys__]
        properties = {name: self.read(hint, f"{type_.__name__}.{name}") for name, hint in hints.items()}
        return {
            "type": "object", "properties": properties, "required": required, "additionalProperties": False,
        }  # fmt: skip
