"""Typed access to the `tokenizer.ggml.…` keys of a GGUF file's metadata, and this program's own keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..bpe.scored import TokenType
from ..errors import TokenizerError
from ..strings import Strings

PREFIX = "tokenizer.ggml."
# Keys for what GGUF has none for, arrays of token ids: the tokens in front of a text, where it is not just
# the begin token; and the added tokens that have a flag of tokenizer.json (see AddedToken).
OWN = "kukri.tokenizer."
PREFIX_IDS = f"{OWN}prefix_ids"
FLAGS = ("lstrip", "rstrip", "single_word")


@runtime_checkable
class Packed(Protocol):
    """An array of strings that was read without making them."""

    packed: bytes  # UTF-8, a zero byte before, between and after the strings, none in them


def flag_key(flag: str) -> str:
    """The key of the ids of the tokens with one of FLAGS."""
    return f"{OWN}{flag}_ids"


def text(metadata: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = metadata.get(PREFIX + key, default)
    if not isinstance(value, str):
        raise TokenizerError(_wrong(key, value, "a string"))
    return value


def texts(metadata: Mapping[str, Any], key: str) -> Sequence[str]:
    """An array of strings, packed if that is how it was read and nothing in it forbids it."""
    value = metadata.get(PREFIX + key)
    if isinstance(value, Packed):
        return Strings(value.packed)
    if isinstance(value, list) and set(map(type, value)) == {str, bytes}:
        first = next(i for i, item in enumerate(value) if isinstance(item, bytes))
        raise TokenizerError(f"{PREFIX}{key}: entry {first} is not UTF-8")
    if not isinstance(value, list) or set(map(type, value)) - {str}:
        raise TokenizerError(_wrong(key, value, "an array of strings"))
    try:
        "".join(value).encode()
    except UnicodeEncodeError:
        raise TokenizerError(f"{PREFIX}{key} has an entry that is not Unicode text") from None
    return value


def flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(PREFIX + key, default)
    if not isinstance(value, bool):
        raise TokenizerError(_wrong(key, value, "a bool"))
    return value


def token_id(metadata: Mapping[str, Any], key: str, count: int, notes: list[str]) -> int | None:
    """The id of a special token. One that is not below `count` is no token, and adds a line to `notes`."""
    value = metadata.get(PREFIX + key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TokenizerError(_wrong(key, value, "an integer"))
    if 0 <= value < count:
        return value
    notes.append(f"{PREFIX}{key} is {value}, but there are {count} tokens: it counts as not there")
    return None


def token_ids(metadata: Mapping[str, Any], key: str, count: int, notes: list[str]) -> list[int]:
    """An array of token ids by its whole key, or a single one; treated like that of `token_id`."""
    value = metadata.get(key)
    if value is None:
        return []
    values = np.atleast_1d(value) if isinstance(value, int | np.ndarray) else np.zeros(0, object)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise TokenizerError(f"{key} is {type(value).__name__} and should be an array of integers")
    if len(values) > count:
        raise TokenizerError(f"{key} has {len(values)} entries for {count} tokens")
    found: list[int] = values.tolist()
    wrong = [id for id in found if not 0 <= id < count]
    if wrong:
        notes.append(f"{key} has {wrong[0]}, but there are {count} tokens: it counts as not there")
    return [id for id in found if 0 <= id < count]


def array(metadata: Mapping[str, Any], key: str, count: int) -> np.ndarray:
    value = metadata.get(PREFIX + key)
    if not isinstance(value, np.ndarray) or value.ndim != 1:
        raise TokenizerError(_wrong(key, value, "an array of numbers"))
    if len(value) != count:
        raise TokenizerError(f"{PREFIX}{key} has {len(value)} entries for {count} tokens")
    return value


def token_types(metadata: Mapping[str, Any], count: int) -> np.ndarray:
    """TokenType of each token, int [count]; all NORMAL in a file that does not say."""
    if PREFIX + "token_type" not in metadata:
        return np.full(count, TokenType.NORMAL, np.int32)
    types = array(metadata, "token_type", count)
    if types.dtype.kind not in "iu":
        raise TokenizerError(f"{PREFIX}token_type is {types.dtype} and should be int32")
    return types


def _wrong(key: str, value: object, expected: str) -> str:
    if value is None:
        return f"{PREFIX}{key} is missing"
    if isinstance(value, bytes) and expected == "a string":
        return f"{PREFIX}{key} is not UTF-8"
    return f"{PREFIX}{key} is {type(value).__name__} and should be {expected}"
