"""WordPiece and unigram models, and the table of replacements, by themselves."""

from __future__ import annotations

import itertools
import math

import pytest

from kukri.tokenizer import TokenizerError
from kukri.tokenizer.pieces.charsmap import charsmap
from kukri.tokenizer.pieces.unigram import UNKNOWN_PENALTY, Unigram
from kukri.tokenizer.pieces.word_piece import WordPiece

SCORES = {"a": -1.0, "b": -2.0, "ab": -2.5, "abc": -9.0, "c": -3.0, "bc": -4.5, "ca": -3.2}
PIECES = {piece: (id, score) for id, (piece, score) in enumerate(SCORES.items())}


def best_by_trying(word: str) -> float:
    """The highest sum of scores of any cut of a word."""
    best = -math.inf
    for cuts in itertools.product([False, True], repeat=len(word) - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [len(word)]
        parts = [word[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        if all(part in SCORES or len(part) == 1 for part in parts):
            lowest = min(SCORES.values()) - UNKNOWN_PENALTY
            best = max(best, sum(SCORES.get(part, lowest) for part in parts))
    return best


@pytest.mark.parametrize("word", ["".join(w) for n in (1, 3, 5) for w in itertools.product("abcx", repeat=n)])
def test_the_best_cut(word: str) -> None:
    ids = list(Unigram(PIECES, None).encode([word]))
    names = list(SCORES)
    found = sum(SCORES[names[id]] for id in ids)
    n_unknown = len(word) - sum(len(names[id]) for id in ids)
    lowest = min(SCORES.values()) - UNKNOWN_PENALTY
    assert found + n_unknown * lowest == pytest.approx(best_by_trying(word))


def test_unknown_characters() -> None:
    assert list(Unigram(PIECES, 99).encode(["axxbx"])) == [0, 99, 1, 99]  # neighbours are one token
    byte_ids = list(range(1000, 1256))
    assert list(Unigram(PIECES, 99, byte_ids).encode(["aé"])) == [0, 1000 + 0xC3, 1000 + 0xA9]


def test_word_piece_takes_the_longest() -> None:
    model = WordPiece({"un": 0, "unable": 1, "a": 2}, {"able": 3, "a": 4, "b": 5}, unknown_id=9)
    assert list(model.encode(["unable", "unab", "unx", "a", "ab", "", "ba"])) == [1, 0, 4, 5, 9, 2, 2, 5, 9]
    assert list(WordPiece({"a": 0}, {"a": 1}, 9, longest_word=3).encode(["aaa", "aaaa"])) == [0, 1, 1, 9]


@pytest.mark.parametrize("raw", [b"", b"\4\0\0", b"\5\0\0\0aaaaa", b"\xff\xff\xff\xff", b"\0\0\0\0"])
def test_damaged_tables(raw: bytes) -> None:
    with pytest.raises(TokenizerError):
        charsmap(raw)


def test_a_table_that_leads_out_of_itself() -> None:
    table = charsmap(b"\4\0\0\0" + b"\xff" * 4)
    with pytest.raises(TokenizerError, match="damaged"):
        table("a")
