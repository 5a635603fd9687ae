"""A tokenizer.model encoded here and by the `sentencepiece` package."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece

from kukri.tokenizer import load_tokenizer
from kukri.tokenizer.bpe.bpe import BPE
from kukri.tokenizer.readers.spm_model import plain_model

SENTENCES = [
    "the quick brown fox jumps over the lazy dog, and then the dog sleeps",
    "numbers 123 456 78 and signs !? ... (or not) --- in  two  spaces",
    "größer als wörter, élan vital, 字 字符 文字 и ещё слова",
] * 30


INSERTED = ("\n", "\t", " ", "\u00a0", "\u2581", "😀", "Жé", "<x>", "<x>y", "...", "\x01")


def trained(folder: Path, **options: object) -> Path:
    written = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 160, "normalization_rule_name": "identity", **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=written,
        remove_extra_whitespaces=False,
        minloglevel=2,
        hard_vocab_limit=False,
        **settings,
    )
    path = folder / "tokenizer.model"
    path.write_bytes(written.getvalue())
    return path


def texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    found = ["", " ", "  ", "a", " a", "\u2581", "\u2581\u2581a", "a\u2581 b", "\n", "q" * 100, "😀😀 \x00é"]
    for _ in range(300):
        words = rng.choices(" ".join(SENTENCES[:3]).split(" "), k=rng.randint(1, 8))
        text = rng.choice((" ", "  ", "", "\n")).join(words)
        if rng.random() < 0.4:
            place = rng.randrange(len(text) + 1)
            text = text[:place] + rng.choice(INSERTED) + text[place:]
        found.append(text)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byte_fallback": True, "vocab_size": 420},
        {"add_dummy_prefix": False},
        {"user_defined_symbols": ["<x>", "<x>y", "the dog", "fox\u2581jumps", "..", "\n"]},
        {"split_by_whitespace": False, "split_by_unicode_script": False, "split_by_number": False},
    ],
)
def test_the_package_says_the_same(options: dict[str, object], tmp_path: Path) -> None:
    path = trained(tmp_path, **options)
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer._model, BPE)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in texts(1):
        assert tokenizer.encode(text) == processor.encode(text), ascii(text)


def test_a_real_one(unpacked: Callable[[str], Path]) -> None:
    path = unpacked("mistral_v3_spm")
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer._model, BPE)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in texts(2):
        assert tokenizer.encode(text) == processor.encode(text), ascii(text)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"normalization_rule_name": "nmt_nfkc"},
        {"treat_whitespace_as_suffix": True},
    ],
)
def test_others_are_left_to_the_package(options: dict[str, object], tmp_path: Path) -> None:
    path = trained(tmp_path, **options)
    assert plain_model(path.read_bytes()) is None
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    text = "the dog <x> sleeps"
    assert load_tokenizer(path).encode(text) == processor.encode(text)


def test_what_is_no_model() -> None:
    for raw in (b"", b"\x0a", b"\x0a\xff", b"\x0b", b"\xff" * 20, b"\x0a\x04\x0a\x02\xff\xfe"):
        assert plain_model(raw) is None
