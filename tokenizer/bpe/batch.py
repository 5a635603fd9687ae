"""Byte-pair encoding of many words at once, with array operations.

Merging word by word costs microseconds for every merge. Here all words take their next merge together, at the
cost of a few array operations; the results are those of merging.py.

A text's number is its polynomial hash, Σ value[byte i] · base^i modulo 2^64. The number of two texts joined
follows from their numbers, so that the id that a pair makes is found without building the text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..strings import NO_ID, Strings

MAX_SYMBOLS = 48  # of a word; longer ones are rare
_SMALL = 512  # words that are merged together whatever their lengths
_WIDTHS = (6, 9, 13, 20, MAX_SYMBOLS)
_ID_BITS, _ROW_BITS = 24, 6
_ID_MASK, _ROW_MASK = (1 << _ID_BITS) - 1, (1 << _ROW_BITS) - 1
_NO_PAIR = np.int64(1 << 62)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MOST_PROBES = 200
_BLOCK = 8192  # texts
_CUT_BITS = 24
_SPACE = 0x20


class Cuts(NamedTuple):
    """Ranks of pairs by the id that they make and where that is cut in two, in bytes.

    `cuts` has one place for each id, 0 for none and -1 for any, and `ranks` the rank of the pair cut there.
    `more` are further ones, id << _CUT_BITS | cut, ascending, and `more_ranks` theirs; the last of equals
    counts.
    """

    ranks: np.ndarray  # int64 [n_ids + 1]
    cuts: np.ndarray  # int64 [n_ids + 1]
    more: np.ndarray  # int64 [m]
    more_ranks: np.ndarray  # int64 [m]

    def find(self, made: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        """The ranks of pairs, -1 for none; an id may be NO_ID."""
        expected = self.cuts[made]
        found = np.where((expected == cuts) | (expected == -1), self.ranks[made], -1)
        if len(self.more):
            wanted = made << _CUT_BITS | cuts
            places = np.searchsorted(self.more, wanted, "right") - 1
            found = np.where((places >= 0) & (self.more[places] == wanted), self.more_ranks[places], found)
        return found


class _Numbers:
    """Polynomial hashes of texts, with a secret base and secret values for each byte."""

    def __init__(self) -> None:
        secret = np.frombuffer(os.urandom(8 * 257), np.uint64)
        self.values = secret[:256] | np.uint64(1)
        self.base = int(secret[256]) | 1
        if self.base % 8 in (1, 7):  # with a base near ±1 the lowest bits would say little
            self.base ^= 2

    def powers(self, base: int, n: int) -> np.ndarray:
        factors = np.full(n, base, np.uint64)
        factors[:1] = 1
        return np.multiply.accumulate(factors)

    def of(self, raw: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """The numbers (uint64) of raw[start:stop] for each start and stop, both ascending."""
        numbers = np.empty(len(starts), np.uint64)
        blocks = [slice(i, i + _BLOCK) for i in range(0, len(starts), _BLOCK)]
        longest = max((int(stops[block][-1] - starts[block][0]) for block in blocks), default=0)
        forth = self.powers(self.base, longest)
        back = self.powers(pow(self.base, -1, 1 << 64), longest + 1)
        for block in blocks:  # small enough for the processor's cache
            first, last = int(starts[block][0]), int(stops[block][-1])
            sums = np.zeros(last - first + 1, np.uint64)
            np.cumsum(self.values[raw[first:last]] * forth[: last - first], out=sums[1:])
            begins = starts[block] - first
            numbers[block] = (sums[stops[block] - first] - sums[begins]) * back[begins]
        return numbers


class Entries:
    """A vocabulary by the numbers of its texts."""

    def __init__(self, texts: Strings, ids: np.ndarray, n_ids: int) -> None:
        """`ids` (int64 [n]) are those of `texts`, NO_ID for a text that is as good as not there; all are
        below n_ids. Of a text that is there twice the last counts."""
        usable = np.flatnonzero(ids != NO_ID)
        ids, starts, stops = ids[usable], texts.starts[usable], texts.stops[usable]
        self._of = _Numbers()
        sizes = stops - starts
        self.numbers = np.zeros(n_ids + 1, np.uint64)  # the last belongs to what stands beyond a word's ends
        self.powers = np.ones(n_ids + 1, np.uint64)
        self.sizes = np.zeros(n_ids + 1, np.int64)
        numbers = self._of.of(texts.raw, starts, stops)
        self.numbers[ids] = numbers
        self.sizes[ids] = sizes
        self.powers[ids] = self._of.powers(self._of.base, int(sizes.max(initial=0)) + 1)[sizes]
        bits = max(10, (4 * len(ids)).bit_length() - 1)
        self._shift = np.uint64(64 - bits)
        self._mask = np.int64((1 << bits) - 1)
        self._slots = np.full(1 << bits, -1, np.int32)
        self._keys = numbers  # by place, unlike `numbers`, in which an id with two texts would have but one
        self._ids = ids
        self.usable = self._fill()

    def _fill(self) -> bool:
        left = np.arange(len(self._keys), dtype=np.int32)
        places = self._first_places(self._keys)
        for _ in range(_MOST_PROBES):
            free = self._slots[places] < 0
            self._slots[places[free]] = left[free]  # of several the last stays
            there = self._keys[self._slots[places]] == self._keys[left]
            left, places = left[~there], (places[~there] + 1) & self._mask
            if not len(left):
                return True
        return False

    def _first_places(self, numbers: np.ndarray) -> np.ndarray:
        return ((numbers * _MIX) >> self._shift).astype(np.int64)

    def find(self, numbers: np.ndarray) -> np.ndarray:
        """The ids (int64) of texts by their numbers, NO_ID for those that are no entries."""
        places = self._first_places(numbers)
        found = self._slots[places]
        wrong = np.flatnonzero((found >= 0) & (self._keys[found] != numbers))
        while len(wrong):
            places[wrong] = places[wrong] + 1 & self._mask
            found[wrong] = now = self._slots[places[wrong]]
            wrong = wrong[(now >= 0) & (self._keys[now] != numbers[wrong])]
        return np.where(found >= 0, self._ids[found], NO_ID)

    def find_texts(self, raw: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        return self.find(self._of.of(raw, starts, stops))


def cuts_of_merges(entries: Entries, merges: Strings) -> Cuts | None:
    """Merges "a b" in order of rank; None unless each has just one space, inside."""
    spaces = np.flatnonzero(merges.raw == _SPACE)
    if len(spaces) != len(merges) or not ((merges.starts < spaces) & (spaces < merges.stops - 1)).all():
        return None
    order = np.arange(len(merges))
    joined = merges.raw[merges.raw != _SPACE]
    made = entries.find_texts(joined, merges.starts - order, merges.stops - order - 1)
    cuts = spaces - merges.starts
    known = np.flatnonzero(made != NO_ID)
    made, cuts, order = made[known], cuts[known], order[known]
    if cuts.max(initial=0) >> _CUT_BITS:
        return None
    n_ids = len(entries.sizes)
    ranks, at = np.full(n_ids, -1), np.zeros(n_ids, np.int64)
    ranks[made[::-1]] = order[::-1]  # of several the first stays
    at[made[::-1]] = cuts[::-1]
    again = ranks[made] != order
    more, more_ranks = made[again] << _CUT_BITS | cuts[again], order[again]
    by_key = np.argsort(more, kind="stable")
    return Cuts(ranks, at, more[by_key], more_ranks[by_key])


def cuts_anywhere(entries: Entries, order: np.ndarray) -> Cuts:
    """Any pair that makes an entry, the least `order` (integers by id) first."""
    n_ids = len(entries.sizes)
    ranks = np.zeros(n_ids, np.int64)
    ranks[: len(order)] = np.unique(order, return_inverse=True)[1][:n_ids]
    nothing = np.zeros(0, np.int64)
    return Cuts(ranks, np.full(n_ids, -1), nothing, nothing)


class BatchMerger:
    """Joins the symbols (ids of entries) of many words; see `Merger`, whose rules these are."""

    def __init__(self, entries: Entries, cuts: Cuts, whole: bool) -> None:
        """With `whole`, a word that is an entry as a whole is that entry."""
        self._entries = entries
        self._cuts = cuts
        self._whole = whole
        self._outside = len(entries.sizes) - 1

    def merge(
        self, symbols: np.ndarray, sizes: np.ndarray, fit: np.ndarray
    ) -> Iterator[tuple[np.ndarray, list[list[int]]]]:
        """Groups of words, as indices and their ids. `symbols` (int64) are those of all words, one after the
        other, `sizes` (int64 [n]) how many each has; only words in `fit` (bool [n]) are merged, which have
        1 to MAX_SYMBOLS."""
        starts = np.cumsum(sizes) - sizes
        least = 0
        many = np.count_nonzero(fit) > _SMALL
        for width in _WIDTHS if many else (int(sizes[fit].max(initial=1)),):
            group = np.flatnonzero(fit & (sizes > least) & (sizes <= width))
            least = width
            if len(group):
                yield group, self._merged(symbols, starts[group], sizes[group], width)

    def _merged(
        self, symbols: np.ndarray, starts: np.ndarray, sizes: np.ndarray, width: int
    ) -> list[list[int]]:
        n = len(sizes)
        rows = np.arange(width)[:, None]
        inside = rows < sizes
        grid = np.full(
            (width + 1, n), self._outside, np.int64
        )  # a word is a column; one row more for outside
        grid[:-1][inside] = symbols[(starts + rows)[inside]]
        state = grid.reshape(-1)
        pairs = np.full((width + 1, n), _NO_PAIR)
        pairs[:-1] = self._pairs(state[:-n], state[n:], np.repeat(np.arange(width), n)).reshape(width, n)
        flat = pairs.reshape(-1)
        steps = np.arange(width + 1, dtype=np.int64)
        after = np.repeat(np.minimum(steps + 1, width), n)  # rows of the neighbours; `width` is outside
        before = np.repeat(np.where(steps == 0, width, steps - 1), n)
        alive = np.zeros((width + 1, n), bool)
        alive[:-1] = inside
        living = alive.reshape(-1)
        if self._whole:
            entries = self._find_whole(grid)
            whole = np.flatnonzero(entries != NO_ID)
            grid[0, whole] = entries[whole]
            alive[1:, whole] = False
            pairs[:, whole] = _NO_PAIR
        while True:
            best = np.minimum.reduce(pairs[:-1], axis=0)
            words = np.flatnonzero(best < _NO_PAIR)
            if not len(words):
                break
            best = best[words]
            row = best >> _ID_BITS & _ROW_MASK
            made = best & _ID_MASK
            here = row * n + words
            right = after[here] * n + words
            after_row = after[right]
            right_after = after_row * n + words
            before_row = before[here]
            left = before_row * n + words
            state[here] = made
            flat[right] = _NO_PAIR
            living[right] = False
            after[here] = after_row
            before[right_after] = row
            k = len(words)
            changed = self._pairs(
                np.concatenate([made, state[left]]),
                np.concatenate([state[right_after], made]),
                np.concatenate([row, before_row]),
            )
            flat[here] = changed[:k]
            flat[left] = changed[k:]
        ids = grid.T[alive.T].tolist()
        stops = np.cumsum(alive.sum(axis=0)).tolist()
        return [ids[a:b] for a, b in zip([0, *stops], stops, strict=False)]

    def _find_whole(self, grid: np.ndarray) -> np.ndarray:
        """The ids of the texts that the columns spell, NO_ID for no entries."""
        numbers = np.zeros(grid.shape[1], np.uint64)
        for row in grid[::-1]:
            numbers = self._entries.numbers[row] + self._entries.powers[row] * numbers
        return self._entries.find(numbers)

    def _pairs(self, left: np.ndarray, right: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """What neighbours become: rank, row and the id that they make, in one int64; _NO_PAIR for nothing."""
        entries = self._entries
        numbers = entries.numbers
        made = entries.find(numbers[left] + entries.powers[left] * numbers[right])
        size = entries.sizes[left]
        ranks = self._cuts.find(made, size)
        fits = (made >= 0) & (ranks >= 0) & (left != self._outside) & (right != self._outside)
        fits &= entries.sizes[made] == size + entries.sizes[right]
        return np.where(fits, ((ranks << _ROW_BITS) | rows) << _ID_BITS | made, _NO_PAIR)
