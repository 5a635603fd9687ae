"""The quantisation section of a config.json, read with checks of key and type."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from ..errors import DamagedFile, UnsupportedModel

MAX_SIZE = 2**31 - 1
SECTIONS = ("quantization_config", "compression_config", "quantization")  # keys of config.json


def short(value: object) -> str:
    """A value from a file as it may stand in an error message: shortened, on one line."""
    return " ".join(reprlib.repr(value).split())


class Settings:
    """`quantization_config` or an object inside it. A null counts as absent; wrong types raise DamagedFile.

    `source` says in error messages where the values stand.
    """

    def __init__(self, values: Mapping[str, Any], source: str = "quantization_config") -> None:
        self.values = values
        self.source = source

    def fail(self, key: str, expected: str) -> DamagedFile:
        return DamagedFile(f"{self.source}: {key} is {short(self.values.get(key))}, not {expected}")

    def integer(self, key: str, default: int, low: int = 1) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) is not int or not low <= value <= MAX_SIZE:
            raise self.fail(key, f"an integer from {low} on")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.fail(key, "a string")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return bool(value)

    def section(self, key: str) -> Settings | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fail(key, "an object")
        return Settings(value, f"{self.source}: {key}")

    def sections(self, key: str) -> list[Settings]:
        """The values of the object at `key`, which must be objects themselves; [] if `key` is absent."""
        parent = self.section(key)
        children = [] if parent is None else [parent.section(name) for name in parent.values]
        return [child for child in children if child is not None]

    def pair(self, key: str) -> tuple[int, int] | None:
        """A list of two positive integers, or None if `key` is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        sizes = value if isinstance(value, list) else []
        if len(sizes) != 2 or any(type(n) is not int or not 1 <= n <= MAX_SIZE for n in sizes):
            raise self.fail(key, "two sizes")
        return sizes[0], sizes[1]

    def one_of(self, key: str, default: str, known: tuple[str, ...], kind: str) -> str:
        """The value of `key` in lower case, which must be one of `known`.

        Raises UnsupportedModel, which names the packing `kind` and the known values.
        """
        value = self.text(key, default).lower()
        if value not in known:
            raise UnsupportedModel(
                f"{kind} with {key} {short(value)} is not supported; supported are {', '.join(known)}"
            )
        return value


def find_settings(config: Mapping[str, Any], modelopt: Mapping[str, Any]) -> Settings | None:
    """The quantisation settings of a model or of its text part; None for a model that is not quantised.

    `config` is config.json, `modelopt` hf_quant_config.json, which older versions of ModelOpt write instead.
    """
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        whole = Settings(part, "config.json")
        for key in SECTIONS:
            section = whole.section(key)
            if section is not None and section.values:
                return section
    older = Settings(modelopt, "hf_quant_config.json").section("quantization")
    return older and Settings({"quant_method": "modelopt", **older.values}, older.source)
