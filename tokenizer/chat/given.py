"""A copy of what a chat template is given: messages, tools and variables of JSON's types, of bounded size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .budget import MAX_BITS, MAX_DEPTH, MAX_GIVEN, MAX_NUMBER
from .template import TemplateError

_INPUT = "messages, tools and variables"


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """A copy made of JSON's types only: other objects have methods that no sandbox knows. TemplateError for
    other types, and for what is too large for a template's budget.
    """
    copy: dict[str, Any] = _Copy().of(given, MAX_DEPTH + 1)
    return copy


class _Copy:
    """One copy, with what it has so far."""

    def __init__(self) -> None:
        self.parts = self.characters = 0

    def of(self, value: Any, room: int) -> Any:
        if isinstance(value, str):
            self.characters += len(value)
            if self.characters > MAX_GIVEN:
                raise TemplateError(f"{_INPUT} of over {MAX_GIVEN} characters")
            return value if type(value) is str else str(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Mapping | list | tuple):
            self.parts += len(value)
            if self.parts > MAX_NUMBER:
                raise TemplateError(f"{_INPUT} of over {MAX_NUMBER} parts")
            if not room:
                raise TemplateError(f"{_INPUT} nested too deeply: over {MAX_DEPTH} levels")
            if isinstance(value, Mapping):
                return {self.of(key, 0): self.of(item, room - 1) for key, item in value.items()}
            return [self.of(item, room - 1) for item in value]
        if isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise TemplateError(f"{_INPUT} with a whole number of over {MAX_BITS} bits")
            return int(value)
        if isinstance(value, float):
            return float(value)
        raise TemplateError(f"{_INPUT} are of JSON's types, not {type(value).__name__}")
