"""WordPiece and unigram vocabularies against the `tokenizers` package (tests/data/embedding/tokens.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kukri.tokenizer import load_tokenizer

GOLDENS = json.loads((Path(__file__).parents[2] / "data/embedding/tokens.json").read_text("utf-8"))


@pytest.mark.parametrize("name", [name for name in GOLDENS if name != "texts"])
def test_ids_and_pairs(embedding_model: Callable[[str], Path], name: str) -> None:
    tokenizer = load_tokenizer(embedding_model(name))
    other = tokenizer.encode("penguins")
    for text, ids, (pair, types) in zip(
        GOLDENS["texts"], GOLDENS[name]["ids"], GOLDENS[name]["pairs"], strict=True
    ):
        own = tokenizer.encode(text, special=True)
        assert [*tokenizer.prefix_ids, *own, *tokenizer.suffix_ids] == ids, text
        assert tokenizer.pair(own, other) == (pair, types), text


def test_words_are_put_together_again(embedding_model: Callable[[str], Path]) -> None:
    tokenizer = load_tokenizer(embedding_model("bert"))
    assert tokenizer.decode(tokenizer.encode("Penguins live in Antarctica")) == "penguins live in antarctica"
    tokenizer = load_tokenizer(embedding_model("xlm-roberta"))
    assert tokenizer.decode(tokenizer.encode("Penguins live")) == "Penguins live"


def test_special_tokens_in_a_text_stay_text(embedding_model: Callable[[str], Path]) -> None:
    tokenizer = load_tokenizer(embedding_model("bert"))
    special = {id for name, id in tokenizer.special_tokens.items() if name != "[UNK]"}
    assert not special & set(tokenizer.encode("[CLS] [SEP]"))
