"""String arrays of GGUF metadata, kept as one byte string until an element is read.

A vocabulary has hundreds of thousands of strings, and opening a model needs few of them: making a Python
string of each would take longer than reading all other metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

import numpy as np


class StringArray(Sequence[str]):
    """A sequence of strings without NUL; equal to a list of the same strings.

    `packed` is valid UTF-8: all strings, with a zero byte before the first, between them and after the last.
    """

    def __init__(self, packed: bytes, n: int) -> None:
        self.packed = packed
        self._n = n

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._list[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringArray):
            return self.packed == other.packed
        return self._list == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"StringArray({self._list!r})"

    @cached_property
    def _list(self) -> list[str]:
        return self.packed.decode().split("\0")[1:-1]


def pack_short_strings(window: bytes, n: int) -> tuple[bytes, int, int]:
    """Read up to n strings of a GGUF array from the start of `window`, without a loop over them.

    Returns the strings in UTF-8 with a zero byte in front of each, their number, and the number of bytes that
    they take in the window. Reading stops before the first string that is empty, longer than 255 bytes, cut
    off at the end, or contains a NUL; if the bytes are not UTF-8, no string is returned. A string read here
    is a length byte, seven zero bytes and a text without zeros, so the zeros give all positions.
    """
    raw = np.frombuffer(window, np.uint8)
    zeros = np.flatnonzero(raw == 0)
    zeros = zeros[: len(zeros) // 7 * 7].reshape(-1, 7)[:n]
    starts = zeros[:, 0] - 1
    ends = zeros[:, 0] + 7 + raw[starts]
    valid = (zeros[:, 6] == zeros[:, 0] + 6) & (ends <= len(raw))
    valid[:1] &= starts[:1] == 0
    valid[1:] &= starts[1:] == ends[:-1]
    n = len(valid) if valid.all() else int(valid.argmin())
    if n and not raw[starts[n - 1] + 8 : ends[n - 1]].all():
        n -= 1  # a zero in an earlier string would have moved the start of the next one
    if n == 0:
        return b"", 0, 0
    size = int(ends[n - 1])
    kept = np.ones(size, bool)
    kept[zeros[:n]] = False
    separated = raw[:size].copy()
    separated[starts[:n]] = 0
    packed = separated[kept].tobytes()
    try:
        packed.decode()  # the zeros keep a character from extending over two strings
    except UnicodeDecodeError:
        return b"", 0, 0
    return packed, n, size
