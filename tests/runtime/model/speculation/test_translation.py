"""Drafts of a model with another tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import kukri
from kukri.runtime.model.speculation.translation import OVERLAP, TokenTranslation

from ....tiny_model import write_tiny_model


class Pieces:
    """A vocabulary of texts, of which the longest that fits is taken; others are single characters."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = [*sorted(pieces, key=len, reverse=True), *map(chr, range(32, 127))]

    def encode(self, text: str, special: bool = False) -> list[int]:
        ids = []
        while text:
            ids.append(next(i for i, piece in enumerate(self.pieces) if text.startswith(piece)))
            text = text[len(self.pieces[ids[-1]]) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids)


TARGET, DRAFT = Pieces("the ", "cat", "s at", "on "), Pieces("th", "e c", "at s", "at on")
TEXT = "the cat sat on the cats, the cat sat on "


@pytest.mark.parametrize("begin", [1, 5, 20, 39])
def test_texts_agree(begin):
    translation, owner = TokenTranslation(TARGET, DRAFT, 1000, [7]), object()
    ids = TARGET.encode(TEXT)
    for n in range(begin, len(ids)):  # as a sequence grows
        read = translation.to_draft(owner, ids[:n])
        assert read[0] == 7
        assert DRAFT.decode(read[1:]) == TARGET.decode(ids[:n])
        following = TARGET.decode(ids[n : n + 4])
        proposed = translation.to_target(ids[:n], DRAFT.encode(following))
        assert TARGET.decode(proposed) == following
    other = TARGET.encode("on the " * 9)
    assert DRAFT.decode(translation.to_draft(owner, other)[1:]) == "on the " * 9


def test_ids_that_the_model_does_not_know_are_not_drafted():
    translation = TokenTranslation(TARGET, DRAFT, 10)
    assert translation.to_target(TARGET.encode("on "), DRAFT.encode("the cat~the ")) == TARGET.encode(
        "the cat"
    )


def test_most_of_a_long_text_is_encoded_once():
    translation, owner, encoded = TokenTranslation(TARGET, DRAFT, 1000), object(), list[int]()
    encode = DRAFT.encode
    translation._draft = Pieces("th", "e c", "at s", "at on")
    translation._draft.encode = lambda text, special=False: encoded.append(len(text)) or encode(text)
    ids = TARGET.encode(TEXT * 20)
    translation.to_draft(owner, ids[:-5])
    encoded.clear()
    translation.to_draft(owner, ids)
    assert sum(encoded) < 4 * (OVERLAP + 5)


def test_a_draft_model_with_other_ids(tmp_path: Path, monkeypatch):
    """The same model, whose tokenizer counts as another one."""
    path = write_tiny_model(tmp_path / "tiny.gguf")
    monkeypatch.setattr("kukri.runtime.model.speculation.draft.same_tokens", lambda draft, target: False)
    texts = ["the thing in an hour", "Once upon a time", "x" * 60]
    with kukri.load(path, device="reference", speculate="off") as plain:
        expected = [list(plain.generate(plain.encode(t), temperature=0, max_tokens=40)) for t in texts]
    with kukri.load(path, device="reference", speculate="draft", draft=path) as model:
        model.engine._drafter.seconds = lambda n, n_sequences, step: 0.0
        accepted = 0
        for text, answer in zip(texts, expected, strict=True):
            assert list(model.generate(model.encode(text), temperature=0, max_tokens=40)) == answer
            accepted += model.stats.accepted_tokens
    assert accepted > 60
