"""Tokens that only the files beside a vocabulary name. The ids are those of transformers 5."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kukri.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from kukri.tokenizer.readers import settings

FLAGS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
CHAT = {"<|im_end|>": 32768, "<|im_start|>": 32769}


@pytest.fixture
def load(tmp_path: Path, small: dict[str, Any]) -> Callable[..., Tokenizer]:
    """load(config, added_tokens=…, special_tokens_map=…): `small` (263 tokens) with these files beside it."""

    def load(config: dict[str, Any], **files: Any) -> Tokenizer:
        named = {"tokenizer": small, "tokenizer_config": config, **files}
        for name, content in named.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return load_tokenizer(tmp_path)

    return load


@pytest.fixture
def mistral(tmp_path: Path, unpacked: Callable[[str], Path]) -> Path:
    shutil.copy(unpacked("mistral_v3_spm"), tmp_path / "tokenizer.model")
    return tmp_path


@pytest.mark.parametrize("order", [1, -1])
def test_added_tokens_json_beside_a_sentencepiece_model(mistral: Path, order: int) -> None:
    (mistral / "added_tokens.json").write_text(json.dumps(dict([*CHAT.items()][::order])))
    (mistral / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "<|im_end|>"}')
    config = {"bos_token": "<s>", "eos_token": "<|im_end|>", "tokenizer_class": "LlamaTokenizer"}
    (mistral / "tokenizer_config.json").write_text(json.dumps(config))
    read = load_tokenizer(mistral)
    assert (read.vocab_size, read.bos_id, read.eos_id) == (32770, 1, 32768)
    assert 32768 in read.end_ids
    assert read.is_special(32768)
    assert not read.is_special(32769)  # nobody says that it is
    ids = read.encode("<|im_start|>hi<|im_end|>", special=True)
    assert (ids[0], ids[-1]) == (32769, 32768)
    assert read.decode(ids) == "<|im_start|> hi<|im_end|>"


def test_added_tokens_json_alone(mistral: Path) -> None:
    (mistral / "added_tokens.json").write_text(json.dumps(CHAT))
    read = load_tokenizer(mistral)
    assert read.encode("<|im_start|>", special=True) == [32769]
    assert (read.bos_id, read.eos_id) == (1, 2)  # the model's own


def test_added_tokens_decoder_beside_a_tokenizer_json(load: Callable[..., Tokenizer]) -> None:
    decoder = {"263": {"content": "<|im_end|>", "special": True, **FLAGS}, "264": {"content": "<a>", **FLAGS}}
    read = load({"eos_token": "<|im_end|>", "added_tokens_decoder": decoder})
    assert (read.vocab_size, read.eos_id) == (265, 263)
    assert read.encode("hell<a><|im_end|>", special=True) == [258, 264, 263]
    assert read.encode("<a>") == [264]  # not special, so it always counts
    assert len(read.encode("<|im_end|>")) > 1
    assert read.decode([258, 263]) == "hell<|im_end|>"


@pytest.mark.parametrize("name", ["eos_token", "pad_token", "mask_token"])
@pytest.mark.parametrize("form", [lambda text: text, lambda text: {"content": text, **FLAGS}])
def test_a_special_token_that_is_an_ordinary_entry(
    load: Callable[..., Tokenizer], name: str, form: Callable[[str], Any]
) -> None:
    read = load({name: form("hell")})
    assert read.encode("hell") == [258] == read.encode("hell", special=True)
    assert read.is_special(258)
    assert read.encode("shells", special=True) == [115, 258, 115]  # found in the middle of a word, too
    assert (read.eos_id == 258) == (name == "eos_token")
    assert (258 in read.end_ids) == (name == "eos_token")


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
def test_lists_of_special_tokens(load: Callable[..., Tokenizer], key: str) -> None:
    read = load({key: ["hell", {"content": "<tool>"}, "nowhere"]})
    assert read.is_special(258)
    assert read.is_special(262)  # which tokenizer.json calls an ordinary added token
    assert read.vocab_size == 263
    assert load({"extra_special_tokens": {"image_token": "hell"}}).is_special(258)


def test_special_tokens_map(load: Callable[..., Tokenizer]) -> None:
    named = {"eos_token": {"content": "hell", **FLAGS}, "bos_token": "<|start|>"}
    assert load({}, special_tokens_map=named).eos_id == 258
    assert load({}, special_tokens_map=named).bos_id == 261
    # An old tokenizer_config.json is corrected by it, a newer one is not.
    assert load({"eos_token": "<|end|>"}, special_tokens_map=named).eos_id == 258
    assert load({"eos_token": "<|end|>", "added_tokens_decoder": {}}, special_tokens_map=named).eos_id == 260


def test_what_nobody_has_is_no_token(load: Callable[..., Tokenizer]) -> None:
    read = load({"eos_token": "<|nowhere|>", "bos_token": None})
    assert (read.eos_id, read.bos_id) == (None, None)
    assert read.vocab_size == 263


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens": {"<a>": "263"}},
        {"added_tokens": {"<a>": 1 << 60}},
        {"added_tokens": {"<a>": -1}},
        {"added_tokens": []},
        {"special_tokens_map": 5},
    ],
)
def test_damaged_files(load: Callable[..., Tokenizer], files: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError):
        load({}, **files)


def test_two_tokens_in_front_of_a_text(load: Callable[..., Tokenizer], small: dict[str, Any]) -> None:
    def special(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    single = [special("<|start|>"), special("<tool>"), {"Sequence": {"id": "A"}}, special("<|end|>")]
    small["post_processor"] = {"type": "TemplateProcessing", "single": single}
    read = load({})
    assert (read.bos_id, read.eos_id, read.add_bos) == (None, 260, False)
    assert read.prefix_ids == (261, 262)
    assert read.with_prefix([1, 2]) == [261, 262, 1, 2]
    assert read.with_prefix([261, 262, 1]) == [261, 262, 1]
    assert load({"bos_token": "<|start|>"}).prefix_ids == (261, 262)
    assert load({"bos_token": "<|start|>", "add_bos_token": False}).prefix_ids == (262,)
    # Ids that it states itself, of tokens that are in the vocabulary only
    single[1] = special("hell")
    small["post_processor"]["special_tokens"] = {"hell": {"id": "hell", "ids": [258], "tokens": ["hell"]}}
    assert load({}).prefix_ids == (261, 258)
    small["post_processor"]["special_tokens"]["hell"]["ids"] = [9999]  # of another vocabulary
    assert load({}).prefix_ids == (261,)


@pytest.mark.parametrize("where", ["added_tokens", "tokenizer_config"])
def test_no_more_declared_tokens_than_are_read(
    load: Callable[..., Tokenizer], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def declare(n: int) -> Tokenizer:
        tokens = {f"<{id}>": id for id in range(300, 300 + n)}
        if where == "added_tokens":
            return load({}, added_tokens=tokens)
        return load({"added_tokens_decoder": {str(id): {"content": text} for text, id in tokens.items()}})

    monkeypatch.setattr(settings, "MAX_ADDED", 10)
    assert declare(7).vocab_size == 307  # with the 3 of tokenizer.json
    for n in (8, 11):
        with pytest.raises(TokenizerError, match="there are over 10 added tokens"):
            declare(n)
