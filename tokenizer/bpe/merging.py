"""The merge loop of byte-pair encoding, over numbers instead of texts.

A symbol is the id of its entry, or `NOT_IN_VOCAB` plus a code point. What becomes of two neighbours is one
number, their rank above the id of the entry that they make. The lowest rank is joined next, the leftmost of
equal ones, whatever their ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import pairwise

from ..strings import NO_ID, Lookup

NOT_IN_VOCAB = 1 << 22
_ID_BITS = 24
_ID_MASK = (1 << _ID_BITS) - 1
_NO_RANK = 1 << 86
_NO_PAIR = _NO_RANK << _ID_BITS
_SCAN_LIMIT = 48  # symbols; longer words use the heap
_KNOWN_PAIRS = 1 << 20


class Merger:
    """Joins symbols by `ranks`: of two texts with `joiner` between, the lowest goes first."""

    def __init__(self, vocab: Lookup, ranks: Lookup, joiner: str) -> None:
        self._vocab = vocab
        self._ranks = ranks
        self._joiner = joiner
        self._texts: dict[int, str] = {}
        self._rows = _Rows(self)
        self._characters = _Characters(self)
        self._left = _KNOWN_PAIRS

    def symbols(self, text: str) -> list[int]:
        """The characters of a text as symbols."""
        return list(map(self._characters.__getitem__, text))

    def text(self, symbol: int) -> str:
        return self._texts[symbol]

    def merge(self, symbols: list[int]) -> list[int]:
        """Join neighbours, lowest rank first and leftmost among equals, until no pair has a rank."""
        if len(symbols) < 2:
            return symbols
        return self.merge_by_scanning(symbols) if len(symbols) <= _SCAN_LIMIT else self.merge_by_heap(symbols)

    def merge_by_scanning(self, symbols: list[int]) -> list[int]:
        """Quadratic, but each step is a scan at C speed: the fastest way for words of usual length."""
        symbols = list(symbols)
        rows = self._rows
        ranks = [rows[a][b] >> _ID_BITS for a, b in pairwise(symbols)]
        while ranks:
            best = min(ranks)
            if best == _NO_RANK:
                break
            i = ranks.index(best)
            made = symbols[i] = rows[symbols[i]][symbols[i + 1]] & _ID_MASK
            del symbols[i + 1], ranks[i]
            if i:
                ranks[i - 1] = rows[symbols[i - 1]][made] >> _ID_BITS
            if i < len(ranks):
                ranks[i] = rows[made][symbols[i + 1]] >> _ID_BITS
        return symbols

    def steps(self, symbols: list[int]) -> Iterator[list[int]]:
        """The symbols before the first join, and behind each one."""
        symbols = list(symbols)
        yield list(symbols)
        while True:
            pairs = [self._rows[a][b] for a, b in pairwise(symbols)]
            best = min((pair >> _ID_BITS for pair in pairs), default=_NO_RANK)
            if best == _NO_RANK:
                return
            i = [pair >> _ID_BITS for pair in pairs].index(best)
            symbols[i : i + 2] = [pairs[i] & _ID_MASK]
            yield list(symbols)

    def merge_by_heap(self, symbols: list[int]) -> list[int]:
        """O(n log n): a heap of (rank, position) over a doubly linked list of symbols.

        A heap entry is one integer, rank·n + position. It is stale when the rank at that position has
        changed since; a symbol that was merged into its left neighbour is -1 and has no pair.
        """
        n = len(symbols)
        symbols = list(symbols)
        left = list(range(-1, n - 1))
        right = list(range(1, n + 1))  # n is the end
        rows = self._rows
        current = [rows[a][b] for a, b in pairwise(symbols)]
        current.append(_NO_PAIR)
        heap = [(pair >> _ID_BITS) * n + i for i, pair in enumerate(current) if pair != _NO_PAIR]
        heapify(heap)
        while heap:
            best, i = divmod(heappop(heap), n)
            if current[i] >> _ID_BITS != best:
                continue
            j = right[i]
            made = symbols[i] = current[i] & _ID_MASK
            symbols[j] = -1
            current[j] = _NO_PAIR
            after = right[i] = right[j]
            if after < n:
                left[after] = i
                current[i] = rows[made][symbols[after]]
                if current[i] != _NO_PAIR:
                    heappush(heap, (current[i] >> _ID_BITS) * n + i)
            else:
                current[i] = _NO_PAIR
            before = left[i]
            if before >= 0:
                current[before] = rows[symbols[before]][made]
                if current[before] != _NO_PAIR:
                    heappush(heap, (current[before] >> _ID_BITS) * n + before)
        return [symbol for symbol in symbols if symbol >= 0]

    def character(self, character: str) -> int:
        """The symbol of a character that was not seen before."""
        id = self._vocab[character]
        symbol = NOT_IN_VOCAB + ord(character) if id == NO_ID else id
        self._texts[symbol] = character
        return symbol

    def pair(self, left: int, right: int) -> int:
        """What two neighbours that were not seen together before become."""
        self._left -= 1
        if self._left < 0:
            self._left = _KNOWN_PAIRS
            self._rows.clear()
        a, b = self._texts[left], self._texts[right]
        made = self._vocab[a + b]
        rank = self._ranks.absent if made == NO_ID else self._ranks[a + self._joiner + b]
        if rank == self._ranks.absent:
            return _NO_PAIR
        self._texts[made] = a + b
        return rank << _ID_BITS | made


class _Characters(dict[str, int]):
    """Symbols by character."""

    def __init__(self, merger: Merger) -> None:
        super().__init__()
        self._merger = merger

    def __missing__(self, character: str) -> int:
        symbol = self[character] = self._merger.character(character)
        return symbol


class _Rows(dict[int, "_Row"]):
    """Pairs by left symbol, then by right symbol."""

    def __init__(self, merger: Merger) -> None:
        super().__init__()
        self._merger = merger

    def __missing__(self, left: int) -> _Row:
        row = self[left] = _Row(self._merger, left)
        return row


class _Row(dict[int, int]):
    __slots__ = ("_left", "_merger")

    def __init__(self, merger: Merger, left: int) -> None:
        super().__init__()
        self._merger = merger
        self._left = left

    def __missing__(self, right: int) -> int:
        pair = self[right] = self._merger.pair(self._left, right)
        return pair
