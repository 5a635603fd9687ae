"""WordPiece: each word is cut into the longest pieces of the vocabulary, from left to right.

Schuster and Nakajima 2012, "Japanese and Korean Voice Search"; as in BERT.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LONGEST_WORD = 100  # characters; a longer one is unknown
_KNOWN_WORDS = 200_000  # whose ids are kept


class WordPiece:
    """Words → ids. `starts` are the ids of pieces that begin a word, `continuations` those of the others."""

    def __init__(
        self,
        starts: Mapping[str, int],
        continuations: Mapping[str, int],
        unknown_id: int,
        longest_word: int = LONGEST_WORD,
    ) -> None:
        self._starts = starts
        self._continuations = continuations
        self._unknown = (unknown_id,)
        self._longest_word = longest_word
        self._longest_piece = max(map(len, [*starts, *continuations]), default=0)
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, words: Iterable[str]) -> Iterable[int]:
        for word in words:
            ids = self._known.get(word)
            if ids is None:
                ids = self._pieces(word)
                if len(self._known) >= _KNOWN_WORDS:
                    self._known.clear()
                self._known[word] = ids
            yield from ids

    def learn(self, words: Iterable[str]) -> None:
        """Nothing: a word is kept when it is encoded."""

    def _pieces(self, word: str) -> tuple[int, ...]:
        if len(word) > self._longest_word:
            return self._unknown
        ids, at, vocab = list[int](), 0, self._starts
        while at < len(word):
            for end in range(min(len(word), at + self._longest_piece), at, -1):
                if (id := vocab.get(word[at:end])) is not None:
                    ids.append(id)
                    break
            else:
                return self._unknown
            at, vocab = end, self._continuations
        return tuple(ids)
