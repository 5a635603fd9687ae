"""Packed vocabularies say what dictionaries and the json module say."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kukri.tokenizer import Tokenizer, load_tokenizer
from kukri.tokenizer.bpe.ranks import NO_RANK, merge_ranks, packed_ranks
from kukri.tokenizer.pretokenize.pretokenize import BYTE_SYMBOLS
from kukri.tokenizer.readers import packed_json
from kukri.tokenizer.readers.packed_json import read_packed
from kukri.tokenizer.strings import NO_ID, Lookup, PackedLookup, Replaced, Strings

WORDS = [
    "",
    "a",
    "ab",
    "abcdefgh",
    "abcdefghi",
    "é",
    "\U0001f600",
    "字" * 9,
    "<|im_start|>",
    " " * 40,
    " " * 41,
]


def packed(texts: list[str]) -> Strings:
    found = Strings.pack(texts)
    assert found is not None
    return found


def test_strings_are_a_sequence() -> None:
    strings = packed(WORDS)
    assert len(strings) == len(WORDS)
    assert [*strings] == strings.tolist() == strings[:] == WORDS
    assert strings[-1] == WORDS[-1]
    assert Strings.pack(["a\0b"]) is None
    assert [*packed([])] == []


def test_replaced_strings() -> None:
    pieces = Replaced(["a", "b"], {1: "c", 4: "e"})
    assert [*pieces] == pieces[:] == ["a", "c", None, None, "e"]


@pytest.mark.parametrize("patience", [0, 5, 1 << 30])
def test_lookups_before_and_after_there_is_a_dictionary(patience: int) -> None:
    rng = random.Random(1)
    texts = [*WORDS, *("".join(rng.choices("abé字", k=rng.randint(1, 20))) for _ in range(3000)), "ab"]
    usable = bytes(i % 7 != 3 for i in range(len(texts)))
    expected = {text: i for i, text in enumerate(texts) if usable[i]}
    found = PackedLookup(packed(texts), usable=usable, patience=patience)
    found["pinned"] = 5
    absent = ["", "zz", "a\0ab", "abcdefghj", " " * 42, "pinned!"]
    asked = [*texts, *absent]
    rng.shuffle(asked)
    for text in asked:
        assert found[text] == expected.get(text, NO_ID), ascii(text)
    assert found["pinned"] == 5


def test_texts_chosen_to_share_a_bucket() -> None:
    texts = [f"12345678{i:05}12345678" for i in range(500)]
    found = PackedLookup(packed(texts), patience=1 << 30)
    assert [found[text] for text in texts] == list(range(500))


@pytest.mark.parametrize("extra", [[], ["l l"], ["h e", "a ll"]])
def test_packed_ranks_are_those_of_a_dictionary(extra: list[str]) -> None:
    pieces = ["e", "h", "l", "o", "a", "he", "ll", "hell", "ello", "all"]
    merges = ["h e", "l l", "he ll", "e llo", *extra][: None if extra else 3]
    merges = [merge for merge in merges if merge.replace(" ", "") in pieces]
    vocab = Lookup(zip(pieces, range(len(pieces)), strict=True))
    expected = merge_ranks(merges, vocab, " ")
    found = packed_ranks(packed(merges), PackedLookup(packed(pieces)), packed(pieces))
    halves = [*pieces, "x"]
    pairs = [f"{a} {b}" for a in halves for b in halves]
    order = sorted((pair for pair in pairs if expected[pair] != NO_RANK), key=expected.__getitem__)
    assert sorted((pair for pair in pairs if found[pair] != NO_RANK), key=found.__getitem__) == order


def content(**changes: Any) -> dict[str, Any]:
    pieces = [*BYTE_SYMBOLS, "he", "ll", "hell", "\u0120hell", '\\"', "\u2028\U0001f600"]
    merges = ["h e", "l l", "he ll", "\u0120 hell", '\\ "']
    model = {"type": "BPE", "vocab": {p: i for i, p in enumerate(pieces)}, "merges": merges}
    return {
        "added_tokens": [{"id": len(pieces), "content": '<"vocab":{>', "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "decoder": {"type": "ByteLevel"},
        "model": {**model, **changes},
    }


TEXT = 'hell hello he"ll \\" x'


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_a_packed_file_is_read_like_any_other(
    indent: int | None, escaped: bool, pairs: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = content()
    if pairs:
        written["model"]["merges"] = [merge.split(" ") for merge in written["model"]["merges"]]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(written, indent=indent, ensure_ascii=escaped), encoding="utf-8")
    expected = load_tokenizer(path)
    monkeypatch.setattr(packed_json, "LEAST_BYTES", 0)
    assert read_packed(path.read_bytes()) is not None
    found = load_tokenizer(path)
    assert _everything(found) == _everything(expected)


def _everything(tokenizer: Tokenizer) -> tuple[Any, ...]:
    ids = tokenizer.encode(TEXT), tokenizer.encode(TEXT + '<"vocab":{>', special=True)
    return tokenizer.vocab_size, ids, [tokenizer.token_text(i) for i in range(tokenizer.vocab_size)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"he": 256', '"he": 1256'),
        lambda text: text.replace('"he": 256', '"he": 0256'),
        lambda text: text.replace('"he": 256', '"he": "256"'),
        lambda text: text.replace('"he": 256', '"he" 256'),
        lambda text: text.replace('"h e"', '"h e", 7'),
        lambda text: text.replace('"h e"', '"he"'),
        lambda text: text.replace('"h e"', '["h", "e"]'),
        lambda text: text.replace('"h e"', '"h\\u0000 e"'),
        lambda text: text.replace('"h e"', '"h\\ud800 e"'),
        lambda text: text.replace('"h e"', '"h\\q e"'),
        lambda text: text.replace('"h e"', '"h\n e"'),
        lambda text: text.replace('"merges"', '"margins"'),
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("]", ""),
    ],
)
def test_other_layouts_are_left_to_the_json_module(damage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_json, "LEAST_BYTES", 0)
    text = json.dumps(content(), ensure_ascii=False)
    assert read_packed(text.encode()) is not None
    assert damage(text) != text
    assert read_packed(damage(text).encode()) is None
