"""Ranks of pairs, for the two kinds of BPE vocabularies: a pair of a lower rank is merged first.

One kind has a list of merges, and a pair's rank is its place in it (Sennrich et al. 2016, "Neural machine
translation of rare words with subword units"). The other, SentencePiece's (Kudo and Richardson 2018), has a
score for each piece, and a pair's rank is that of the piece that it makes, the best score first.

All are look-ups from a pair to its rank, NO_RANK for pairs that do not merge. A pair is the text of its two
halves with a `joiner` between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np

from ..strings import NO_ID, Lookup, PackedLookup, Strings

NO_RANK = 1 << 80
_SPACE = 0x20


def merge_ranks(merges: Sequence[str], vocab: Mapping[str, int], joiner: str) -> Lookup:
    """Merges in order, each a pair joined by `joiner`, as ranks.

    A merge that makes no entry of `vocab` has none.
    """
    makes_an_entry = (pair.replace(joiner, "", 1) in vocab for pair in merges)
    return Lookup(compress(zip(merges, range(len(merges)), strict=True), makes_an_entry), NO_RANK)


class InOrder(NamedTuple):
    """Merges that make entry after entry from id `first` on, cut in two after `cuts` (int [n]) bytes."""

    first: int
    cuts: np.ndarray


class ProductRanks(Lookup):
    """Ranks of pairs worked out from the id of what the pair makes: `rank` is given it and the pair.

    `order` is where they come from: merges "a b", the first goes first (with `in_order`, if they are); or a
    number (int64) for each id that any pair may make, the least goes first.
    """

    def __init__(
        self,
        vocab: Lookup,
        joiner: str,
        rank: Callable[[int, str], int],
        order: Strings | np.ndarray,
        in_order: InOrder | None = None,
    ) -> None:
        super().__init__(absent=NO_RANK)
        self._vocab = vocab
        self._joiner = joiner
        self._rank = rank
        self.order = order
        self.in_order = in_order

    def __missing__(self, pair: str) -> int:
        id = self._vocab[pair.replace(self._joiner, "", 1) if self._joiner else pair]
        return NO_RANK if id == NO_ID else self._rank(id, pair)


def packed_ranks(merges: Strings, vocab: Lookup, pieces: Strings) -> Lookup:
    """Ranks for packed merges, "a b" each. One that makes no entry of the vocabulary has none."""
    if not len(merges):
        return Lookup(absent=NO_RANK)

    made = merges.raw[merges.raw != _SPACE]
    ends = np.flatnonzero(made == 0)
    first = vocab[made[1 : ends[1]].tobytes().decode()]
    stop = first + len(merges)
    if first != NO_ID and len(ends) == len(merges) + 1 and stop <= len(pieces):
        start = pieces.starts[first] - 1
        spaces = np.flatnonzero(merges.raw == _SPACE)
        alone = len(spaces) == len(merges) and bool(
            ((merges.starts < spaces) & (spaces < merges.stops - 1)).all()
        )
        if alone and np.array_equal(made, pieces.raw[start : pieces.stops[stop - 1] + 1]):
            in_order = InOrder(first, spaces - merges.starts)
            return ProductRanks(vocab, " ", _in_order(merges, spaces, first), merges, in_order)
    places = PackedLookup(merges, NO_RANK, patience=len(merges) // 8)
    return ProductRanks(vocab, " ", lambda id, pair: places[pair], merges)


def _in_order(merges: Strings, spaces: np.ndarray, first: int) -> Callable[[int, str], int]:
    """The rank where the merges make one entry after the other from id `first` on: only the place at which a
    piece is cut in two must be compared. `spaces` are the positions of these cuts."""
    characters = np.cumsum((merges.raw & 0xC0) != 0x80, dtype=np.int32)
    cuts = (characters[spaces] - characters[merges.starts - 1] - 1).data
    stop = first + len(merges)

    def rank(id: int, pair: str) -> int:
        return id if first <= id < stop and cuts[id - first] == pair.find(" ") else NO_RANK

    return rank


def score_ranks(vocab: Lookup, scores: np.ndarray) -> Lookup:
    """Ranks of pairs without a joiner, by the scores (float [n]) of the vocabulary."""
    # the bits of a float64, read as an integer, are in the order of the numbers once negative ones are turned
    numbers = np.where(np.isnan(scores), -np.inf, scores).astype(np.float64) + 0.0
    bits = numbers.view(np.int64)
    order = ~(bits ^ ((bits >> 63) & np.int64((1 << 63) - 1)))  # ~x, unlike -x, always exists
    ranks = order.data
    return ProductRanks(vocab, "", lambda id, pair: ranks[id], order)
