"""Vocabularies of hundreds of thousands of strings without a Python object for each.

A start reads the whole vocabulary but uses a hundredth of it; a Python string and a dictionary slot for every
entry would take most of the start's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import overload

import numpy as np

NO_ID = -1
_FIRST, _LAST, _SIZE = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9  # odd, bits well mixed
_BUCKETS = 1 << 16
_FULLEST = 64  # entries in one bucket; no honest vocabulary comes near
_SHIFTS = np.array([0, *(8 * (8 - n) for n in range(1, 9))], np.uint64)  # by length
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)


class Strings(Sequence[str]):
    """Texts without NUL in them, as one UTF-8 `blob` with a zero byte before, between and after them."""

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        self.raw = np.frombuffer(blob, np.uint8)
        zeros = np.flatnonzero(self.raw == 0)
        self.starts = zeros[:-1] + 1  # int64 [n]
        self.stops = zeros[1:]
        self._starts, self._stops = self.starts.data, self.stops.data

    @classmethod
    def pack(cls, texts: Sequence[str]) -> Strings | None:
        """`texts` packed; None if one has NUL in it."""
        strings = cls("\0".join(["", *texts, ""]).encode())
        return strings if len(strings) == len(texts) else None

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.blob[self._starts[index] : self._stops[index]].decode()

    def tolist(self) -> list[str]:
        return self.blob.decode().split("\0")[1:-1]


class Replaced(Sequence[str | None]):
    """A vocabulary by id in which some ids stand for other texts, or lie past its end; None between."""

    def __init__(self, pieces: Sequence[str], changes: Mapping[int, str]) -> None:
        self._pieces = pieces
        self._changes = dict(changes)
        self._size = max(len(pieces), max(changes, default=-1) + 1)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> str | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[str | None]: ...
    def __getitem__(self, index: int | slice) -> str | list[str | None] | None:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if not 0 <= index < self._size:
            raise IndexError(index)
        changed = self._changes.get(index)
        return self._pieces[index] if changed is None and index < len(self._pieces) else changed


class Lookup(dict[str, int]):
    """A number for each text, `absent` for every other one; to be read with [] only."""

    def __init__(
        self, entries: Mapping[str, int] | Iterable[tuple[str, int]] = (), absent: int = NO_ID
    ) -> None:
        super().__init__(entries)
        self.absent = absent

    def packed(self) -> tuple[Strings, np.ndarray] | None:
        """All texts that have a number, and these (int64 [n]); None where they cannot be packed."""
        texts = Strings.pack([*self])
        return None if texts is None else (texts, np.fromiter(self.values(), np.int64, len(self)))

    def __missing__(self, text: str) -> int:
        return self.absent


class PackedLookup(Lookup):
    """The position of a text in packed ones, the last if it is there twice; remembers what it was asked.

    The first look-up sorts the texts into buckets by their first and last 8 bytes, which takes a tenth of
    the time that a dictionary of them would; after `patience` look-ups a dictionary is made after all.
    `usable` has a byte for each text; those with 0 are as good as not there.
    """

    def __init__(
        self, texts: Strings, absent: int = NO_ID, usable: bytes | None = None, patience: int | None = None
    ) -> None:
        super().__init__(absent=absent)
        self._texts = texts
        self._usable = usable
        self._patience = len(texts) // 32 if patience is None else patience
        self._changes: dict[str, int] = {}

    def respell(self, changes: Mapping[str, int]) -> None:
        """Give other texts to numbers, beside those that they have."""
        self._changes.update(changes)
        self.update(changes)

    def packed(self) -> tuple[Strings, np.ndarray] | None:
        numbers = np.arange(len(self._texts))
        if self._usable is not None:
            numbers[np.frombuffer(self._usable, np.uint8) == 0] = self.absent
        if not self._changes:
            return self._texts, numbers
        if any("\0" in text for text in self._changes):
            return None
        more = "\0".join([*self._changes, ""]).encode()
        changed = np.fromiter(self._changes.values(), np.int64, len(self._changes))
        return Strings(self._texts.blob + more), np.concatenate([numbers, changed])

    def __missing__(self, text: str) -> int:
        if self._patience < 0:
            return self.absent
        self._patience -= 1
        if self._patience < 0 or self._buckets is None:
            self._fill()
            return self[text]
        found = self[text] = self._find(text)
        return found

    def _fill(self) -> None:
        """Become an ordinary dictionary."""
        self._patience = -1
        items = list(self.items())  # a copy made at once, since another thread may add to this dictionary
        known = {text: number for text, number in items if number != self.absent}
        texts, numbers = self._texts.tolist(), range(len(self._texts))
        usable = self._usable
        pairs = zip(texts, numbers, strict=True)
        self.update(pairs if usable is None else compress(pairs, usable))
        self.update(known)

    def _find(self, text: str) -> int:
        if "\0" in text:
            return self.absent
        assert self._buckets is not None
        order, bounds, starts = self._buckets
        raw = text.encode()
        first, last = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[-8:], "little")
        bucket = (first * _FIRST + last * _LAST + len(raw) * _SIZE) >> 48 & _BUCKETS - 1
        blob, entry = self._texts.blob, b"\0%b\0" % raw
        for i in reversed(order[bounds[bucket] : bounds[bucket + 1]].tolist()):
            if blob.startswith(entry, starts[i] - 1) and (self._usable is None or self._usable[i]):
                return i
        return self.absent

    @cached_property
    def _buckets(self) -> tuple[memoryview, memoryview, memoryview] | None:
        """Positions ordered by bucket, where each bucket begins among them, and where each text starts.

        None if so many texts share a bucket that somebody must have chosen them for that.
        """
        texts = self._texts
        sizes = texts.stops - texts.starts
        padded = np.zeros(len(texts.raw) + 16, np.uint8)
        padded[8:-8] = texts.raw
        words: np.ndarray = np.ndarray((len(padded) - 7,), "<u8", padded.data, strides=(1,))
        short = np.minimum(sizes, 8)
        first = words[texts.starts + 8] & _MASKS[short]
        last = np.where(short > 0, words[texts.stops] >> _SHIFTS[short], 0)
        hashed = (
            first * np.uint64(_FIRST) + last * np.uint64(_LAST) + sizes.astype(np.uint64) * np.uint64(_SIZE)
        )
        bucket = (hashed >> np.uint64(48)).astype(np.uint16)
        counts = np.bincount(bucket, minlength=_BUCKETS)
        if counts.max() > _FULLEST + len(texts) // _BUCKETS * 4:
            return None
        order = np.argsort(bucket, kind="stable").astype(np.int32)  # a radix sort
        bounds = np.zeros(_BUCKETS + 1, np.int64)
        np.cumsum(counts, out=bounds[1:])
        return order.data, bounds.data, texts.starts.data
