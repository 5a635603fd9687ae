"""Arrays of strings that stay as they were read until somebody asks for one of them.

A vocabulary is hundreds of thousands of strings, of which a start needs a handful; a Python string for
each would take longer than all the rest of a file's metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

import numpy as np


class Texts(Sequence[str]):
    """Texts without NUL in them; equal to any list of the same texts.

    `packed` is all of them in UTF-8, known to be valid, with a zero byte before, between and after them.
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
        if isinstance(other, Texts):
            return self.packed == other.packed
        return self._list == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"Texts({self._list!r})"

    @cached_property
    def _list(self) -> list[str]:
        return self.packed.decode().split("\0")[1:-1]


def pack_short(window: bytes, n: int) -> tuple[bytes, int, int]:
    """Up to n strings of a GGUF array from the start of `window`, without a loop over them.

    Returns them, a zero byte in front of each, their number, and the bytes that they take in the window. It
    stops before the first that is empty, longer than 255 bytes, cut off, or has a NUL in it, and takes none
    if they are not UTF-8. The others are a length byte, seven zero bytes and a text without zeros, so that
    the zeros give all positions.
    """
    raw = np.frombuffer(window, np.uint8)
    zeros = np.flatnonzero(raw == 0)
    zeros = zeros[: len(zeros) // 7 * 7].reshape(-1, 7)[:n]
    starts = zeros[:, 0] - 1
    ends = zeros[:, 0] + 7 + raw[starts]
    fine = (zeros[:, 6] == zeros[:, 0] + 6) & (ends <= len(raw))
    fine[:1] &= starts[:1] == 0
    fine[1:] &= starts[1:] == ends[:-1]
    n = len(fine) if fine.all() else int(fine.argmin())
    if (
        n and not raw[starts[n - 1] + 8 : ends[n - 1]].all()
    ):  # before it, a zero would have moved the next start
        n -= 1
    if n == 0:
        return b"", 0, 0
    size = int(ends[n - 1])
    kept = np.ones(size, bool)
    kept[zeros[:n]] = False
    separated = raw[:size].copy()
    separated[starts[:n]] = 0
    packed = separated[kept].tobytes()
    try:
        packed.decode()  # a zero between them keeps a character from being spread over two
    except UnicodeDecodeError:
        return b"", 0, 0
    return packed, n, size
