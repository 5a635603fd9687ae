"""Unigram language models: each word is cut into the pieces whose scores have the largest sum.

Kudo 2018, "Subword Regularization: Improving Neural Network Translation Models with Multiple Subword
Candidates"; as in SentencePiece and `tokenizers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

UNKNOWN_PENALTY = 10.0  # of a character that is no piece, below the lowest score
_LONGEST_PIECE = 256  # characters
_KNOWN_LENGTH, _KNOWN_WORDS = 64, 200_000  # words whose ids are kept


class Unigram:
    """Words → ids. `pieces` are ids and scores (log probabilities) by piece.

    Neighbouring characters that are no pieces become one unknown token, or with `byte_ids` (the ids of
    "<0x00>" … "<0xFF>") their UTF-8 bytes.
    """

    def __init__(
        self,
        pieces: Mapping[str, tuple[int, float]],
        unknown_id: int | None,
        byte_ids: list[int] | None = None,
    ) -> None:
        self._pieces = pieces
        self._unknown_id = unknown_id
        self._byte_ids = byte_ids
        self._longest = min(max(map(len, pieces), default=1), _LONGEST_PIECE)
        lowest = min((score for _, score in pieces.values()), default=0.0)
        self._unknown_score = lowest - UNKNOWN_PENALTY
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, words: Iterable[str]) -> Iterable[int]:
        for word in words:
            ids = self._known.get(word)
            if ids is None:
                ids = tuple(self._best(word))
                if len(word) <= _KNOWN_LENGTH:
                    if len(self._known) >= _KNOWN_WORDS:
                        self._known.clear()
                    self._known[word] = ids
            yield from ids

    def learn(self, words: Iterable[str]) -> None:
        """Nothing: a word is kept when it is encoded."""

    def _best(self, word: str) -> Iterable[int]:
        """The ids of the best cut (Viterbi): the best one of each beginning, by its last piece."""
        pieces, n = self._pieces, len(word)
        best = [0.0] + [-float("inf")] * n
        last: list[tuple[int, int | None]] = [(0, None)] * (n + 1)  # start and id of the last piece
        for start in range(n):
            score = best[start]
            for end in range(start + 1, min(n, start + self._longest) + 1):
                found = pieces.get(word[start:end])
                if found is not None and score + found[1] > best[end]:
                    best[end], last[end] = score + found[1], (start, found[0])
            if word[start] not in pieces and score + self._unknown_score > best[start + 1]:
                best[start + 1], last[start + 1] = score + self._unknown_score, (start, None)
        cut, end = list[tuple[int, int, int | None]](), n
        while end:
            start, id = last[end]
            cut.append((start, end, id))
            end = start
        return self._ids(word, cut[::-1])

    def _ids(self, word: str, cut: list[tuple[int, int, int | None]]) -> Iterable[int]:
        was_unknown = False
        for start, end, id in cut:
            if id is not None:
                yield id
            elif self._byte_ids is not None:
                yield from (self._byte_ids[byte] for byte in word[start:end].encode())
            elif not was_unknown and self._unknown_id is not None:
                yield self._unknown_id
            was_unknown = id is None
