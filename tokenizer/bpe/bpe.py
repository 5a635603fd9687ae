"""Byte-pair encoding of words: the model around the merge loop (`merging.py`, many words at once
`batch.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, filterfalse
from typing import NamedTuple, Protocol

import numpy as np

from ..pretokenize.pretokenize import BYTE_SYMBOLS, bytes_to_symbols
from ..strings import NO_ID, Lookup, Strings
from .batch import MAX_SYMBOLS, BatchMerger, Entries, cuts_anywhere, cuts_of_merges
from .merging import NOT_IN_VOCAB, Merger
from .ranks import InOrder, ProductRanks

_CACHED_LENGTH = 64  # characters; longer words are not kept
_CACHED_WORDS = 200_000
_LEAST_BATCH = 200  # words; for fewer the array operations take longer
_BATCHES_PAY = 400  # new words after which the arrays for them are made


class Tables(NamedTuple):
    """What a model works with, in arrays.

    `ids` (int64 [n]) are those of `texts`, NO_ID for a text that is as good as not there. `order` is that of
    `ProductRanks`, as is `in_order`. With `whole`, a word that is an entry as a whole is not merged.
    """

    texts: Strings
    ids: np.ndarray
    order: Strings | np.ndarray
    whole: bool
    in_order: InOrder | None

    @property
    def n_ids(self) -> int:
        return int(self.ids.max(initial=0)) + 1


class Batches(Protocol):
    """What merges words faster than a `BatchMerger`."""

    byte_symbols: np.ndarray  # int64 [256]: the ids of bytes

    def merge(
        self, symbols: np.ndarray, sizes: np.ndarray, fit: np.ndarray
    ) -> Iterator[tuple[np.ndarray, list[list[int]]]]: ...


def _batch_merger(tables: Tables | None) -> BatchMerger | None:
    """What merges many words at once; None for a vocabulary that does not allow it."""
    if tables is None:
        return None
    entries = Entries(tables.texts, tables.ids, tables.n_ids)
    if not entries.usable:
        return None
    order = tables.order
    cuts = cuts_of_merges(entries, order) if isinstance(order, Strings) else cuts_anywhere(entries, order)
    return BatchMerger(entries, cuts, tables.whole) if cuts else None


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
        vocab: Lookup,
        ranks: Lookup,
        joiner: str,
        *,
        byte_level: bool = False,
        ignore_merges: bool = False,
        byte_ids: Sequence[int] | None = None,
        unknown_id: int | None = None,
        fuse_unknown: bool = False,
    ) -> None:
        self._vocab = vocab
        self._merger = Merger(vocab, ranks, joiner)
        self._byte_level = byte_level
        self._ignore_merges = ignore_merges
        self._byte_ids = byte_ids
        self._unknown_id = unknown_id
        self._fuse_unknown = fuse_unknown
        self._words = _Words(self)
        self._ranks = ranks
        self._joiner = joiner
        self._until_batches = _BATCHES_PAY
        self._least_batch = _LEAST_BATCH

    def merge_by(self, batches: Batches) -> None:
        """Merge words that were not seen before by `batches`, however few they are."""
        self._batches = batches
        self._byte_symbols = batches.byte_symbols
        self._until_batches = 0
        self._least_batch = 1

    @cached_property
    def _batches(self) -> BatchMerger | Batches | None:
        return _batch_merger(self.tables())

    def tables(self) -> Tables | None:
        """The same model in arrays, None for one that does not allow it."""
        packed = self._vocab.packed()
        order: Strings | np.ndarray | None = None
        in_order = None
        if isinstance(self._ranks, ProductRanks):
            order, in_order = self._ranks.order, self._ranks.in_order
        elif self._joiner == " ":
            order = Strings.pack(sorted(self._ranks, key=self._ranks.__getitem__))
        if packed is None or order is None:
            return None
        tables = Tables(*packed, order, self._ignore_merges, in_order)
        small = tables.n_ids <= min(NOT_IN_VOCAB, 4 * len(tables.texts) + 1024)
        return tables if small else None

    @property
    def byte_level(self) -> bool:
        return self._byte_level

    @cached_property
    def _byte_symbols(self) -> np.ndarray:
        return np.array([self._vocab[symbol] for symbol in BYTE_SYMBOLS])

    def learn(self, words: Iterable[str]) -> None:
        """Work out words that will be asked for, many new ones at once."""
        unseen = filterfalse(self._words.__contains__, set(words))
        new = [word for word in unseen if 0 < len(word) <= MAX_SYMBOLS]
        self._until_batches -= len(new)
        if len(new) < self._least_batch or self._until_batches > 0 or self._batches is None:
            return
        if len(self._words) + len(new) > _CACHED_WORDS:
            self._words.clear()
        symbols, sizes = self._symbols(new)
        known = np.minimum.reduceat(symbols, np.cumsum(sizes) - sizes) >= 0
        fit = (sizes <= MAX_SYMBOLS) & known
        for group, merged in self._batches.merge(symbols, sizes, fit):
            self._words.update(zip(map(new.__getitem__, group.tolist()), merged, strict=True))

    def _symbols(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Their symbols, one word after the other, NO_ID for unknown ones, and how many each word has."""
        if self._byte_level:
            raw = [word.encode() for word in words]
            symbols = self._byte_symbols[np.frombuffer(b"".join(raw), np.uint8)]
            return symbols, np.fromiter(map(len, raw), np.int64, len(raw))
        codes = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
        distinct, places = np.unique(codes, return_inverse=True)
        ids = np.array([self._vocab[chr(code)] for code in distinct.tolist()])
        return ids[places], np.fromiter(map(len, words), np.int64, len(words))

    def encode(self, words: Iterable[str]) -> Iterable[int]:
        """The ids of the words, one after the other."""
        return chain.from_iterable(map(self._words.__getitem__, words))

    def encode_word(self, word: str) -> list[int]:
        if self._byte_level:
            # of ASCII only the space and control characters have a symbol other than themselves
            plain = word.isascii() and word.isprintable()
            word = word.replace(" ", "\u0120") if plain else bytes_to_symbols(word)
        if self._ignore_merges and (whole := self._vocab[word]) != NO_ID:
            return [whole]
        symbols = self._merger.symbols(word)
        if max(symbols, default=0) < NOT_IN_VOCAB:
            return self._merger.merge(symbols)
        if self._byte_ids is None and self._unknown_id is None:
            return self._merger.merge([symbol for symbol in symbols if symbol < NOT_IN_VOCAB])
        return self._without_unknown(self._merger.merge(symbols))

    def merge_steps(self, word: str) -> list[list[str]]:
        """How a word becomes its tokens: its symbols, then what they are behind each merge, as texts.

        A byte that is no character by itself is U+FFFD. A word that is taken as a whole has one step.
        """
        if self._byte_level:
            word = bytes_to_symbols(word)
        if self._ignore_merges and self._vocab[word] != NO_ID:
            return [[self._spelled(word)]]
        merger = self._merger
        steps = merger.steps(merger.symbols(word))
        return [[self._spelled(merger.text(symbol)) for symbol in step] for step in steps]

    def _spelled(self, text: str) -> str:
        if not self._byte_level:
            return text.replace("\u2581", " ")
        return bytes(map(BYTE_SYMBOLS.index, text)).decode(errors="replace")

    def _without_unknown(self, symbols: list[int]) -> list[int]:
        """Symbols that are no entries as bytes or as the unknown token."""
        ids: list[int] = []
        after_unknown = False
        for symbol in symbols:
            unknown = symbol >= NOT_IN_VOCAB
            if not unknown:
                ids.append(symbol)
            elif self._byte_ids is not None:
                ids += [self._byte_ids[byte] for byte in chr(symbol - NOT_IN_VOCAB).encode()]
            elif self._unknown_id is not None and not (after_unknown and self._fuse_unknown):
                ids.append(self._unknown_id)
            after_unknown = unknown
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
