"""Many words merged together say what one after the other says."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest

from kukri.tokenizer.bpe import batch, bpe
from kukri.tokenizer.bpe.bpe import BPE
from kukri.tokenizer.bpe.ranks import merge_ranks, packed_ranks, score_ranks
from kukri.tokenizer.pretokenize.pretokenize import Split, chain_steps, cut_parts, spell_bytes
from kukri.tokenizer.strings import Lookup, PackedLookup, Strings

LETTERS = "abcdé字"


def packed(texts: list[str]) -> Strings:
    found = Strings.pack(texts)
    assert found is not None
    return found


def vocabulary(seed: int, several_cuts: bool) -> tuple[list[str], list[str]]:
    """Entries and merges "a b" that make them, of some entries in more than one way."""
    rng = random.Random(seed)
    pieces = [*LETTERS]
    merges: list[str] = []
    while len(merges) < 200:
        a, b = rng.choice(pieces), rng.choice(pieces)
        if len(a + b) > 9 or f"{a} {b}" in merges or (a + b in pieces and not several_cuts):
            continue
        merges.append(f"{a} {b}")
        if a + b not in pieces:
            pieces.append(a + b)
    return pieces, merges


def words(seed: int, letters: str = LETTERS, longest: int = 60) -> list[str]:
    rng = random.Random(seed)
    sizes = [1, 2, 3, 47, 48, 49, *(rng.randint(1, longest) for _ in range(700))]
    return sorted({"".join(rng.choices(letters, k=size)) for size in sizes})


def merging(pieces: list[str], merges: list[str], packs: bool, whole: bool) -> BPE:
    """A model of merges, its vocabulary packed or not; `whole`: entries are taken as they are."""
    if packs:
        vocab: Lookup = PackedLookup(packed(pieces))
        return BPE(vocab, packed_ranks(packed(merges), vocab, packed(pieces)), " ", ignore_merges=whole)
    vocab = Lookup(zip(pieces, range(len(pieces)), strict=True))
    return BPE(vocab, merge_ranks(merges, vocab, " "), " ", ignore_merges=whole)


def same(one: BPE, other: BPE, texts: list[str]) -> None:
    one.learn(texts)
    learnt = sum(text in one._words for text in texts)
    assert learnt > len(texts) // 2
    for text in texts:
        assert list(one.encode([text])) == other.encode_word(text), ascii(text)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("several_cuts", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_merges(seed: int, several_cuts: bool, whole: bool) -> None:
    pieces, merges = vocabulary(seed, several_cuts)
    if several_cuts:
        merges += merges[:5]  # the last of equal ones counts
    texts = [*words(seed), *pieces]

    def model(packs: bool) -> BPE:
        return merging(pieces, merges, packs, whole)

    same(model(True), model(False), texts)
    same(model(False), model(True), texts)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("several", [1, 5])
def test_scores(seed: int, several: int) -> None:
    """Also where several entries have the same score: the leftmost pair goes first."""
    pieces, _ = vocabulary(seed, True)
    scores = np.random.default_rng(seed).permutation(len(pieces)).astype(np.float32) // several - 9
    usable = bytes(i < len(LETTERS) or (i not in (7, 8) and i % 9 != 3) for i in range(len(pieces)))

    def model() -> BPE:
        vocab = PackedLookup(packed(pieces), usable=usable)
        vocab.respell({"ab字c": 7, "é字": 8})
        return BPE(vocab, score_ranks(vocab, scores), "", unknown_id=0)

    same(model(), model(), [*words(seed), *words(seed, LETTERS + "x")[::9]])


@pytest.mark.parametrize("n", [2, 60])
def test_of_equal_scores_the_leftmost_pair_goes_first(n: int) -> None:
    pieces = ["a", "b", "c", "bc", "ab"]
    vocab = Lookup(zip(pieces, range(5), strict=True))
    model = BPE(vocab, score_ranks(vocab, np.array([0, 0, 0, -1, -1], np.float32)), "")
    assert model.encode_word("abc" * n) == [4, 2] * n


def test_bytes_without_an_entry_and_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "_BATCHES_PAY", 1)
    monkeypatch.setattr(bpe, "_LEAST_BATCH", 12)
    pieces = ["a", "b", "\u0120", "ab", "\u0120ab"]
    vocab = Lookup(zip(pieces, range(5), strict=True))
    model = BPE(vocab, merge_ranks(["a b", "\u0120 ab"], vocab, " "), " ", byte_level=True)
    texts = [" ab", "ab", "b", "", "ac", "é", *(" ab" * n for n in range(2, 20))]
    model.learn(texts)
    assert " abab" not in model._words
    assert {" ab", "ab", " ab ab", " ab" * 16} <= set(model._words)
    assert not {"ac", "é", "", " ab" * 17} & set(model._words)
    for text in texts:
        assert list(model.encode([text])) == model.encode_word(text)


@pytest.mark.parametrize("merges", [["ab"], ["a  b"], [" ab"], ["a b", "ab "]])
def test_merges_that_are_no_pairs(merges: list[str]) -> None:
    pieces = packed(["a", "b", "ab"])
    vocab = PackedLookup(pieces)
    entries = batch.Entries(pieces, np.arange(3), 3)
    assert batch.cuts_of_merges(entries, packed(merges)) is None
    ranks = packed_ranks(packed(merges), vocab, pieces)
    assert BPE(vocab, ranks, " ").encode_word("ab") == ([2] if "a b" in merges else [0, 1])


def test_the_last_of_equal_entries() -> None:
    texts = packed(["a", "b", "a", "c", "b", "a"])
    ids = np.array([0, 1, 2, 3, -1, 5])
    entries = batch.Entries(texts, ids, 6)
    found = entries.find_texts(texts.raw, texts.starts, texts.stops)
    assert found.tolist() == [5, 1, 5, 3, 1, 5]
    assert entries.find(np.array([0, 12345], np.uint64)).tolist() == [-1, -1]


@pytest.mark.parametrize(
    "steps",
    [
        [Split(r" ?\p{L}+| ?[^\s\p{L}]+|\s+(?!\S)|\s+")],
        [Split(r" ?\p{L}+| ?[^\s\p{L}]+|\s+(?!\S)|\s+"), spell_bytes, Split(r"[0-9]")],
    ],
)
def test_parts_are_cut_together_as_alone(steps: list) -> None:
    cut = chain_steps(steps)
    parts = [" a", " b,", " é1.", " 12", "c", "  d", " e \n", " ", "\n", " f\n\ng", " 字,"]
    expected: Mapping[str, list[str]] = {part: list(cut(part, False)) for part in parts}
    assert {part: list(words) for part, words in cut_parts(cut, parts).items()} == expected
