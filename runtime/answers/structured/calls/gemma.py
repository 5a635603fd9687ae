"""Arguments as Gemma 4 and FunctionGemma write them: {city:<|"|>Paris<|"|>,days:3}."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .....tokenizer.chat.output.tools import referred
from ....engine.errors import ConstraintError
from .members import members
from .rules import Rules, listed
from .values import OTHERS, one_of, refuse, text_up_to, types_of

_KEY = re.compile(r"[^:{}\[\],<\n\s\"]+")
_OF_ITEMS = {"allOf", "not", "if", "uniqueItems", "contains", "prefixItems"}


class GemmaArguments:
    """Turns the schemas of a function's parameters into rules. `quote` encloses texts; `root` has the
    definitions that they refer to; `name` is the function's."""

    def __init__(self, rules: Rules, quote: str, name: str, root: Mapping[str, Any]) -> None:
        self._rules = rules
        self._quote = quote
        self._name = name
        self._root = root
        self._places: dict[str, int] = {}  # of the rules of what is referred to
        self._any: int | None = None

    def object(self, schema: Mapping[str, Any]) -> str:
        """The members of an object, without brackets."""
        refuse(schema, self._name)
        required = schema.get("required") or ()
        properties = schema.get("properties") or {}
        found = [
            (f"{self._key(key)} {self._value(each)}", key in required) for key, each in properties.items()
        ]
        if "properties" not in schema and schema.get("additionalProperties", True) is not False:
            member = f'/[A-Za-z_]\\w*/ ":" {self._value(schema.get("additionalProperties", {}))}'
            return self._rules.rule(f'({member} ("," {member})*)?')
        return members(self._rules, found, '","')

    def _key(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise ConstraintError(
                f"the parameter {key!r:.60} of {self._name} cannot be written as this model does"
            )
        return json.dumps(key + ":")

    def _value(self, schema: Any) -> str:
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if reference is None:
            return self._plain(schema if isinstance(schema, Mapping) else {})
        if reference not in self._places:  # which may contain itself
            self._places[reference] = place = self._rules.later()
            self._rules.fill(place, self._plain(referred(schema, self._root) or {}))
        return f"r{self._places[reference]}"

    def _plain(self, schema: Mapping[str, Any]) -> str:
        refuse(schema, self._name, _OF_ITEMS)
        values = one_of(schema)
        if values is not None:
            return listed(self._literal(value) for value in values)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                return listed(map(self._value, schema[key]))
        types = types_of(schema)
        if not types:
            return self._anything()
        return listed(self._typed(schema, type_) for type_ in sorted(types))

    def _anything(self) -> str:
        if self._any is None:
            self._any = self._rules.later()
            types = [self._typed({}, type_) for type_ in (*OTHERS, "string") if type_ != "integer"]
            self._rules.fill(self._any, listed(types))
        return f"r{self._any}"

    def _typed(self, schema: Mapping[str, Any], type_: str) -> str:
        if type_ == "string":
            text = text_up_to(self._rules, schema, self._quote)
            return f"{self._rules.text(self._quote)} {text}"
        if type_ == "object":
            return f'"{{" {self.object(schema)} "}}"'
        if type_ == "array":
            item = self._value(schema.get("items", {}))
            least, most = schema.get("minItems", 0), schema.get("maxItems", "")
            if most == 0:
                return '"[" "]"'
            more = f'("," {item}){{{max(0, least - 1)},{most and most - 1}}}'
            return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'
        return self._rules.json({**schema, "type": type_}, self._root)

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return self._rules.text(f"{self._quote}{value}{self._quote}")
        return json.dumps(json.dumps(value))
