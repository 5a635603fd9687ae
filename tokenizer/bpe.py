"""Byte-pair encoding of words: the merge loop and the model around it.

The same loop serves two kinds of vocabulary. One has a list of merges, and a pair's rank is its
place in it (Sennrich et al. 2016, "Neural machine translation of rare words with subword units").
The other, SentencePiece's (Kudo and Richardson 2018), has a score for each piece, and a pair's rank
is the place of the piece that it makes when pieces are sorted by falling score. `ranks` maps the
joined pair to the rank; `joiner` is what stands between the two halves in its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise

from .errors import TokenizerError
from .pretokenize import bytes_to_symbols

_NO_RANK = 1 << 60
_SCAN_LIMIT = 48  # symbols; longer words use the heap
_CACHED_LENGTH = 64  # characters; longer words are not kept
_CACHED_WORDS = 200_000


def merge_ranks(merges: Sequence[str], vocab: Mapping[str, int], joiner: str) -> dict[str, int]:
    """Merges in order, each a pair joined by `joiner`, as ranks; each must make an entry of `vocab`."""
    ranks = dict(zip(merges, range(len(merges)), strict=True))
    made = [pair.replace(joiner, "", 1) for pair in merges]
    if not all(map(vocab.__contains__, made)):
        wrong = next(pair for pair, entry in zip(merges, made, strict=True) if entry not in vocab)
        raise TokenizerError(f"the merge {wrong[:80]!a} makes no entry of the vocabulary")
    return ranks


class BPE:
    """Turns words into ids; remembers short words.

    `vocab` has the ids of symbols and merged pieces. With `byte_level`, words are first spelled in the
    256 symbols of GPT-2. With `ignore_merges`, a word that is an entry as a whole is that entry. A
    character without an entry becomes its UTF-8 bytes by `byte_ids` (256 ids) where given, else
    `unknown_id` where given (one for a run of them with `fuse_unknown`), else nothing: it is dropped
    before merging, so that its neighbours can meet.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        ranks: Mapping[str, int],
        joiner: str,
        *,
        byte_level: bool = False,
        ignore_merges: bool = False,
        byte_ids: Sequence[int] | None = None,
        unknown_id: int | None = None,
        fuse_unknown: bool = False,
    ) -> None:
        self._vocab = vocab
        self._ranks = ranks
        self._joiner = joiner
        self._byte_level = byte_level
        self._ignore_merges = ignore_merges
        self._byte_ids = byte_ids
        self._unknown_id = unknown_id
        self._fuse_unknown = fuse_unknown
        self._words = _Words(self)

    def encode(self, words: Iterable[str]) -> Iterable[int]:
        """The ids of the words, one after the other."""
        return chain.from_iterable(map(self._words.__getitem__, words))

    def encode_word(self, word: str) -> list[int]:
        if self._byte_level:
            word = bytes_to_symbols(word)
        if self._ignore_merges and (whole := self._vocab.get(word)) is not None:
            return [whole]
        vocab = self._vocab
        if self._byte_ids is None and self._unknown_id is None:
            return [vocab[s] for s in merge([c for c in word if c in vocab], self._ranks, self._joiner)]
        ids: list[int] = []
        after_unknown = False
        for symbol in merge(list(word), self._ranks, self._joiner):
            known = vocab.get(symbol)
            if known is not None:
                ids.append(known)
            elif self._byte_ids is not None:
                ids += [self._byte_ids[byte] for byte in symbol.encode()]
            elif self._unknown_id is not None and not (after_unknown and self._fuse_unknown):
                ids.append(self._unknown_id)
            after_unknown = known is None
        return ids


class _Words(dict[str, list[int]]):
    """The ids of words seen before; asking for another one computes it."""

    def __init__(self, model: BPE) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, word: str) -> list[int]:
        ids = self._model.encode_word(word)
        if len(word) <= _CACHED_LENGTH:
            if len(self) >= _CACHED_WORDS:
                self.clear()
            self[word] = ids
        return ids


def merge(symbols: list[str], ranks: Mapping[str, int], joiner: str) -> list[str]:
    """Join neighbours, lowest rank first and leftmost among equals, until no pair has a rank."""
    if len(symbols) < 2:
        return symbols
    return (_merge_scan if len(symbols) <= _SCAN_LIMIT else _merge_heap)(symbols, ranks, joiner)


def _merge_scan(symbols: list[str], ranks: Mapping[str, int], joiner: str) -> list[str]:
    """Quadratic, but each step is a scan at C speed: the fastest way for words of usual length."""
    symbols = list(symbols)
    rank = ranks.get
    pairs = [rank(a + joiner + b, _NO_RANK) for a, b in pairwise(symbols)]
    while pairs:
        best = min(pairs)
        if best == _NO_RANK:
            break
        i = pairs.index(best)
        symbols[i] += symbols.pop(i + 1)
        pairs.pop(i)
        if i:
            pairs[i - 1] = rank(symbols[i - 1] + joiner + symbols[i], _NO_RANK)
        if i < len(pairs):
            pairs[i] = rank(symbols[i] + joiner + symbols[i + 1], _NO_RANK)
    return symbols


def _merge_heap(symbols: list[str], ranks: Mapping[str, int], joiner: str) -> list[str]:
    """O(n log n): a heap of (rank, position) over a doubly linked list of symbols.

    A heap entry is one integer, rank·n + position. It is stale when the rank at that position has
    changed since; a symbol that was merged into its left neighbour has no rank.
    """
    n = len(symbols)
    text: list[str] = list(symbols)
    left = list(range(-1, n - 1))
    right = list(range(1, n + 1))  # n is the end
    rank = ranks.get
    current = [rank(a + joiner + b, _NO_RANK) for a, b in pairwise(text)]
    current.append(_NO_RANK)
    heap = [r * n + i for i, r in enumerate(current) if r != _NO_RANK]
    heapify(heap)
    while heap:
        best, i = divmod(heappop(heap), n)
        if current[i] != best:
            continue
        j = right[i]
        text[i] += text[j]
        text[j] = ""
        current[j] = _NO_RANK
        after = right[i] = right[j]
        if after < n:
            left[after] = i
            current[i] = rank(text[i] + joiner + text[after], _NO_RANK)
            if current[i] != _NO_RANK:
                heappush(heap, current[i] * n + i)
        else:
            current[i] = _NO_RANK
        before = left[i]
        if before >= 0:
            current[before] = rank(text[before] + joiner + text[i], _NO_RANK)
            if current[before] != _NO_RANK:
                heappush(heap, current[before] * n + before)
    return [symbol for symbol in text if symbol]
