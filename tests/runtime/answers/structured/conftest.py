"""The tokenizer of the tiny model, and its vocabulary in a trie."""

from __future__ import annotations

from pathlib import Path

import pytest

import kukri
from kukri.runtime.answers.structured.vocabulary import Vocabulary
from kukri.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return kukri.load_tokenizer(tiny)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer, tokenizer.end_ids)
