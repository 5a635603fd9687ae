"""Metadata: checked reading of the values in GGUF metadata and config.json."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...quant.errors import DamagedFile, UnsupportedModel

MAX_SIZE = 2**31 - 1  # sizes and positions are int32 in every machine


def show(value: object) -> str:
    """`value` for an error message: short, and on one line."""
    return " ".join(reprlib.repr(value).split())


class Metadata:
    """Metadata of a model, read by key and type.

    A value of another type or out of range raises DamagedFile, as does a key that is absent and has no
    default. A null counts as absent. `source` names the file in errors; `prefix` is put before every key
    ("llama." in GGUF metadata).
    """

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values = values
        self.source = source
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self.values.get(self.prefix + key) is not None

    def fail(self, key: str, expected: str) -> DamagedFile:
        """The error for a value of `key` that is not `expected`."""
        name = self.prefix + key
        return DamagedFile(f"{self.source}: {name} is {show(self.values.get(name))}, not {expected}")

    def _get(self, key: str, default: Any, nonzero: bool = False) -> Any:
        """The value of `key`. An array with one value a layer counts as its value if all are equal."""
        value = self.values.get(self.prefix + key)
        if value is None:
            value = default
        if value is None:
            raise DamagedFile(f"{self.source} has no {self.prefix + key}")
        if isinstance(value, np.ndarray):
            if value.ndim != 1 or not value.size:
                raise self.fail(key, "a number")
            if nonzero and (value != 0).any():
                value = value[value != 0]
            if (value != value[0]).any():
                raise UnsupportedModel(
                    f"{self.source}: {self.prefix + key} differs from layer to layer, "
                    "which is not supported; one value for all layers is"
                )
            return value[0].item()
        return value

    def integer(
        self, key: str, default: int | None = None, low: int = 1, high: int = MAX_SIZE, nonzero: bool = False
    ) -> int:
        """An integer from `low` to `high`.

        With `nonzero`, zeros in an array of one value a layer are ignored.
        """
        value = self._get(key, default, nonzero)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.fail(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None, zero: bool = False, high: float = 1e30) -> float:
        """A number above 0, or from 0 if `zero`, up to `high`; never NaN."""
        value = self._get(key, default)
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= high
        if not fits or (value == 0 and not zero):
            raise self.fail(key, f"a number {'from' if zero else 'above'} 0 up to {high:g}")
        return float(value)

    def numbers(self, key: str, count: int) -> tuple[float, ...] | None:
        """A list of `count` numbers above 0; None if the key is absent."""
        values = self.values.get(self.prefix + key)
        if values is None:
            return None
        known = isinstance(values, list) and len(values) == count
        if not known or not all(type(v) in (int, float) and 0 < v < 1e30 for v in values):
            raise self.fail(key, f"a list of {count} numbers above 0")
        return tuple(float(v) for v in values)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, "a string")
        return value

    def section(self, key: str) -> Metadata | None:
        """The nested mapping at `key`; None if the key is absent."""
        value = self.values.get(self.prefix + key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fail(key, "an object")
        return Metadata(value, f"{self.source}: {key}")
