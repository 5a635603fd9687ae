"""Masks over vocabularies of all kinds."""

from __future__ import annotations

import base64
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from kukri import ConstraintError, ResponseFormat, load_tokenizer
from kukri.quant.gguf.reader import GGUFFile
from kukri.runtime.answers.structured.guided import GuidedConstraint
from kukri.runtime.answers.structured.vocabulary import Vocabulary
from kukri.tokenizer import tokenizer_from_gguf

from ....conftest import DATA

# Byte-level BPE, SentencePiece from three kinds of files, and Tekken.
NAMES = ["gpt_neox", "llama2", "mistral_v3_spm", "gguf/llama-spm", "tekken"]


def write_tekken(folder: Path) -> Path:
    """A small vocabulary: all bytes, and some longer tokens."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [b"an", b" an", b" w", b"or", b"er", b" of", b'"}', b"se", "é".encode(), "漢".encode()]
    vocab = [{"rank": i, "token_bytes": base64.b64encode(t).decode()} for i, t in enumerate(tokens)]
    special = [{"rank": i, "token_str": text} for i, text in enumerate(["<unk>", "<s>", "</s>", "[INST]"])]
    config = {"pattern": r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+", "default_vocab_size": len(tokens) + 4}
    config |= {"default_num_special_tokens": 4, "version": "v7"}
    path = folder / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}))
    return path


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    if request.param == "tekken":
        return load_tokenizer(write_tekken(folder))
    (packed,) = [p for p in (DATA / "tokenizers" / request.param).iterdir() if p.name != "goldens.json.xz"]
    path = folder / packed.stem
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    if path.suffix == ".gguf":
        return tokenizer_from_gguf(dict(GGUFFile.open(path, tensors=False).metadata))
    return load_tokenizer(path)


def allowed(constraint: GuidedConstraint) -> np.ndarray:
    (mask,) = constraint.masks()
    return np.flatnonzero(np.unpackbits(mask, bitorder="little"))


def test_all_token_bytes_are_those_of_each(tokenizer):
    spelled = tokenizer.all_token_bytes()
    assert len(spelled) == tokenizer.vocab_size
    step = max(1, tokenizer.vocab_size // 5000)
    for id_ in [*range(0, tokenizer.vocab_size, step), *(t.id for t in tokenizer.added_tokens)]:
        assert spelled[id_] == tokenizer.token_bytes(id_)


@pytest.mark.parametrize("text", ["a", " a", "  two", "\n", "é漢🙂", '{"a": 1}', ": ", ""])
def test_text_within_another_gets_no_space_in_front(tokenizer, text):
    ids = tokenizer.encode_within(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_masks_follow_a_text_to_its_end(tokenizer):
    vocabulary = Vocabulary(tokenizer, tokenizer.end_ids)
    form = ResponseFormat.regex(r'\{"naïve": "[a-zé漢🙂 ]{0,40}"\}')
    constraint = GuidedConstraint(vocabulary, form.grammar)
    text = '{"naïve": "café 漢 🙂 x"}'
    for id_ in tokenizer.encode_within(text):
        assert id_ in allowed(constraint)
        assert not constraint.complete
        constraint.accept(id_)
    assert constraint.complete
    assert constraint.ended
    assert set(allowed(constraint)) == tokenizer.end_ids
    constraint.restart()
    assert not constraint.complete


def test_special_tokens_are_no_text(tokenizer):
    constraint = GuidedConstraint(
        Vocabulary(tokenizer, tokenizer.end_ids), ResponseFormat.regex("(.|\n)*").grammar
    )
    found = set(allowed(constraint))
    special = {token.id for token in tokenizer.added_tokens if token.special}
    assert found & special == tokenizer.end_ids & special
    assert len(found) > 0.6 * (tokenizer.vocab_size - len(special))


def test_forced_text_is_encoded_as_the_tokenizer_does(tokenizer):
    text = "an answer of several words, é漢🙂 and all"
    constraint = GuidedConstraint(
        Vocabulary(tokenizer, tokenizer.end_ids), ResponseFormat.choice([text]).grammar
    )
    (first,) = {int(id_) for id_ in tokenizer.encode_within(text)[:1]}
    assert first in allowed(constraint)
    constraint.accept(first)
    forced = constraint.forced()
    assert tokenizer.encode_within(text)[1 : 1 + len(forced)] == forced
    assert len(forced) > 3


def test_masks_behind_drafts_and_back(tokenizer):
    constraint = GuidedConstraint(
        Vocabulary(tokenizer, tokenizer.end_ids), ResponseFormat.regex("[0-9]{3,5}x").grammar
    )
    ids = tokenizer.encode_within("1") * 4
    before = allowed(constraint).tolist()
    assert constraint.n_allowed([*ids, *ids]) == 5
    (end,) = tokenizer.end_ids or {None}
    assert constraint.n_allowed([*ids, *tokenizer.encode_within("x"), end, *ids]) == 5
    masks = constraint.masks(ids)
    assert len(masks) == 5
    assert allowed(constraint).tolist() == before
    for id_, mask in zip([*ids, None], masks, strict=True):
        assert allowed(constraint).tolist() == np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        if id_ is not None:
            constraint.accept(id_)
    with pytest.raises(ConstraintError):
        constraint.accept(tokenizer.encode_within("y")[0])
