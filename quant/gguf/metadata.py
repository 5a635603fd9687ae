"""GGUF metadata: reading keys and values from an untrusted file, and typed access to them.

Source: the GGUF specification (docs/gguf.md of ggml).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeVar, overload

import numpy as np

from ..errors import DamagedFile
from ..mapped_file import MappedFile
from .budget import HeaderBudget
from .string_array import StringArray, pack_short_strings

MAX_KEY_BYTES = (1 << 16) - 1
MAX_DEPTH = 4  # levels of nested arrays
STRING_WINDOW = 1 << 19  # bytes of a string array that `pack_short_strings` gets at once, at most
LEAST_WINDOW = 1 << 12  # and at least
SINGLE_STRINGS = 1 << 8  # strings read one by one before `pack_short_strings` is tried again
MIN_PACKED = 1 << 8  # strings; a shorter array is a list

UINT32, BOOL, STRING, ARRAY = 4, 7, 8, 9  # value types that the code below names
_NUMBERS = {  # value type id → struct and NumPy code
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    UINT32: "I",
    5: "i",
    6: "f",
    BOOL: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_SCALARS = {kind: struct.Struct("<" + code) for kind, code in _NUMBERS.items()}
_DTYPES = {kind: np.dtype(code).newbyteorder("<") for kind, code in _NUMBERS.items()}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_LEAST_BYTES = {**{kind: s.size for kind, s in _SCALARS.items()}, STRING: 8, ARRAY: 12}

T = TypeVar("T")
D = TypeVar("D")


class HeaderReader:
    """Reads the part of a GGUF file before the tensor data, from front to back. Raises DamagedFile.

    What it reads is taken off `budget`, but for the bytes of the header, which the caller knows at its end.
    """

    def __init__(self, file: MappedFile, budget: HeaderBudget) -> None:
        self.position = 0
        self._buffer = file.buffer
        self._name = file.path.name
        self._end = min(file.n_bytes, budget.header_bytes)
        self._is_whole = file.n_bytes == self._end
        self._budget = budget

    def head(self, n: int) -> bytes:
        """The first n bytes of the file, or all of it."""
        return self._buffer[:n]

    def damaged(self, message: str) -> DamagedFile:
        return DamagedFile(f"{self._name}: {message}")

    def take(self, n: int, label: str) -> bytes:
        """The next n bytes; `label` names them in errors, here and below."""
        if n > self._end - self.position:
            if not self._is_whole:
                raise self.damaged(f"{label} lies beyond the first {self._end} bytes")
            raise self.damaged(f"{label} runs past the end of the file")
        self.position += n
        return self._buffer[self.position - n : self.position]

    def u32(self, label: str) -> int:
        return int(_U32.unpack(self.take(4, label))[0])

    def u64(self, label: str) -> int:
        return int(_U64.unpack(self.take(8, label))[0])

    def count(self, label: str, least_bytes: int, what: str) -> int:
        """A number of items that the rest of the file can hold at `least_bytes` each.

        They are taken off the budget's field `what`.
        """
        n = self.u64(f"the number of {label}")
        if n * least_bytes > self._end - self.position:
            held = "the file" if self._is_whole else f"the first {self._end} bytes"
            raise self.damaged(f"claims {n} {label}, more than {held} can hold")
        limit = getattr(self._budget, what)
        if not self._budget.spend(what, n):
            raise self.damaged(f"has {n} {label}; at most {limit} are read")
        return n

    def name(self, label: str) -> str:
        """A metadata key or tensor name: UTF-8 of 1 to MAX_KEY_BYTES bytes."""
        n = self.u64(f"the length of {label}")
        if not 0 < n <= MAX_KEY_BYTES:
            raise self.damaged(f"{label} is {n} bytes long; 1 to {MAX_KEY_BYTES} are allowed")
        try:
            return self._taken_off(n, label, "name_bytes").decode()
        except UnicodeDecodeError:
            raise self.damaged(f"{label} is not UTF-8") from None

    def metadata(self, n: int) -> tuple[dict[str, Any], dict[str, int]]:
        """n keys with their values, and the GGUF value type of each.

        A text that is not UTF-8, also in an array, stays bytes: who needs it finds that it is no str.
        """
        values: dict[str, Any] = {}
        types: dict[str, int] = {}
        for i in range(n):
            key = self.name(f"metadata key {i + 1} of {n}")
            if key in values:
                raise self.damaged(f"metadata key {quoted(key)} appears twice")
            types[key] = self.u32(f"the type of {quoted(key)}")
            values[key] = self._value(types[key], f"metadata {quoted(key)}", MAX_DEPTH)
        return values, types

    def _value(self, kind: int, label: str, depth: int) -> Any:
        if kind == STRING:
            return _decoded(self._taken_off(self.u64(label), label, "text_bytes"))
        if kind == ARRAY:
            return self._array(label, depth)
        if kind not in _SCALARS:
            raise self.damaged(f"{label} has an unknown value type, {kind}")
        raw = self.take(_SCALARS[kind].size, label)
        if kind == BOOL and raw > b"\x01":
            raise self.damaged(f"{label} is a bool with the value {raw[0]}")
        return _SCALARS[kind].unpack(raw)[0]

    def _array(self, label: str, depth: int) -> Any:
        if depth == 0:
            raise self.damaged(f"{label} nests arrays more than {MAX_DEPTH} deep")
        kind = self.u32(label)
        if kind not in _LEAST_BYTES:
            raise self.damaged(f"{label} is an array of an unknown value type, {kind}")
        what = {STRING: "strings", ARRAY: "nested"}.get(kind, "elements")
        n = self.count(f"elements in {label}", _LEAST_BYTES[kind], what)
        if kind == STRING:
            return self._strings(n, label)
        if kind == ARRAY:
            return [self._array(label, depth - 1) for _ in range(n)]
        raw = self.take(n * _SCALARS[kind].size, label)
        if kind == BOOL and raw.strip(b"\x00\x01"):
            raise self.damaged(f"{label} has a bool that is neither 0 nor 1")
        return np.frombuffer(raw, _DTYPES[kind]).copy()

    def _taken_off(self, n: int, label: str, what: str) -> bytes:
        """The next n bytes, taken off the budget's field `what`."""
        raw = self.take(n, label)
        if not self._budget.spend(what, n):
            raise self.damaged(f"{label} is {n} bytes long, more than is read")
        return raw

    def _strings(self, n: int, label: str) -> list[str | bytes] | StringArray:
        # Vocabularies are large: strings are read one by one only where they cannot be read at once. Where
        # little of a window can, the next is smaller, so that looking takes no longer than reading does.
        start, done, window_bytes = self.position, 0, STRING_WINDOW
        chunks: list[bytes] = []
        while done < n and n >= MIN_PACKED:
            window = self._buffer[self.position : min(self._end, self.position + window_bytes)]
            chunk, n_read, size = pack_short_strings(window, n - done)
            self.position += size
            if 2 * size > window_bytes:
                window_bytes = min(2 * window_bytes, STRING_WINDOW)
            else:
                window_bytes = max(window_bytes // 4, min(LEAST_WINDOW, STRING_WINDOW))
            if not n_read:
                texts = self._single_strings(done, min(n, done + SINGLE_STRINGS), label)
                chunk, n_read = b"".join(b"\0" + text for text in texts), len(texts)
                # The zeros keep a character from extending over two strings.
                if chunk.count(0) != n_read or isinstance(_decoded(chunk), bytes):
                    break
            chunks.append(chunk)
            done += n_read
        if done == n and chunks:
            return StringArray(b"".join([*chunks, b"\0"]), n)
        self.position = start
        texts = self._single_strings(0, n, label)
        try:
            return [text.decode() for text in texts]
        except UnicodeDecodeError:
            return [_decoded(text) for text in texts]

    def _single_strings(self, first: int, stop: int, label: str) -> list[bytes]:
        """Strings number `first` … `stop` - 1 of an array as bytes, read one by one."""
        buffer, position, end = self._buffer, self.position, self._end
        length_at = _U64.unpack_from
        texts: list[bytes] = []
        try:
            for _ in range(first, stop):
                start = position + 8
                position = start + length_at(buffer, position)[0]
                if position > end:
                    break
                texts.append(buffer[start:position])
        except struct.error:  # no room for a length
            position = end + 1
        self.take(position - self.position, f"element {first + len(texts)} of {label}")
        return texts


def _decoded(text: bytes) -> str | bytes:
    """A text that is UTF-8, else its bytes."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def quoted(name: str) -> str:
    """A name from a file for a message: quoted, on one line, at most 64 characters."""
    return repr(name if len(name) <= 64 else name[:61] + "…")


_MISSING: Any = object()


@overload
def require(metadata: Mapping[str, Any], key: str, kind: type[T]) -> T: ...
@overload
def require(metadata: Mapping[str, Any], key: str, kind: type[T], default: D) -> T | D: ...
def require(metadata: Mapping[str, Any], key: str, kind: type, default: Any = _MISSING) -> Any:
    """The value of `key`, which must be of `kind`: int, float, bool, str or list (of strings).

    An int passes as a float, a bool neither as int nor as float, a StringArray as a list. Without a default
    the key is required.
    Raises DamagedFile.
    """
    if key not in metadata:
        return _default_or_error(default, key)
    value = metadata[key]
    if kind is float and type(value) is int:
        return float(value)
    if kind is list and isinstance(value, StringArray):
        return value[:]
    if type(value) is not kind or (type(value) is list and not _all_strings(value)):
        raise _wrong(key, kind, value)
    return value


@overload
def require_array(metadata: Mapping[str, Any], key: str, kind: type[np.generic]) -> np.ndarray: ...
@overload
def require_array(
    metadata: Mapping[str, Any], key: str, kind: type[np.generic], default: D
) -> np.ndarray | D: ...
def require_array(
    metadata: Mapping[str, Any], key: str, kind: type[np.generic], default: Any = _MISSING
) -> Any:
    """The numeric array `key`, whose dtype must be a `kind`: np.integer, np.floating or np.bool_.

    Without a default the key is required. Raises DamagedFile.
    """
    if key not in metadata:
        return _default_or_error(default, key)
    value = metadata[key]
    if not isinstance(value, np.ndarray) or not np.issubdtype(value.dtype, kind):
        raise _wrong(key, kind, value)
    return value


_KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list of texts",
    np.integer: "an array of whole numbers",
    np.floating: "an array of floating point numbers",
    np.bool_: "an array of true and false",
    bytes: "bytes that are not UTF-8",
}


def _default_or_error(default: Any, key: str) -> Any:
    if default is _MISSING:
        raise DamagedFile(f"metadata has no {quoted(key)}")
    return default


def _wrong(key: str, kind: type, value: Any) -> DamagedFile:
    if isinstance(value, StringArray):
        actual = _KINDS[list]
    elif isinstance(value, np.ndarray):
        actual = f"an array of {value.dtype.name}"
    elif isinstance(value, list) and any(type(item) is bytes for item in value):
        actual = _KINDS[bytes]
    elif isinstance(value, list) and not _all_strings(value):
        actual = "a nested array"
    else:
        actual = _KINDS.get(type(value), type(value).__name__)
    return DamagedFile(f"metadata {quoted(key)} should be {_KINDS[kind]} but is {actual}")


def _all_strings(values: list) -> bool:
    return all(type(value) is str for value in values)
