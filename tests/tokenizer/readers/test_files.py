"""Files and metadata: what is read from where, and what damage looks like."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from kukri.tokenizer import Tokenizer, TokenizerError, load_tokenizer, tokenizer_from_gguf

JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    3,
    2**63,
    1.5,
    "",
    "junk",
    [],
    [[]],
    {},
    {"type": "junk"},
    [1, "a"],
    "\ud800",
)


@pytest.fixture
def folder(tmp_path: Path, small: dict[str, Any]) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps(small))
    return path


def configure(folder: Path, **config: Any) -> Tokenizer:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


def test_folder_with_a_configuration(folder: Path) -> None:
    read = configure(
        folder,
        bos_token={"content": "<|start|>", "lstrip": False},
        eos_token="<|end|>",
        add_bos_token=True,
        chat_template="{{ messages }}",
    )
    assert (read.bos_id, read.eos_id) == (261, 260)
    assert (read.add_bos, read.add_eos) == (True, False)
    assert read.end_ids == {260}
    assert read.chat_template == "{{ messages }}"
    assert read.vocab_size == 263


def test_folder_without_a_configuration(folder: Path) -> None:
    read = load_tokenizer(folder)
    assert (read.bos_id, read.eos_id, read.add_bos, read.add_eos) == (None, None, False, False)
    assert read.chat_template is None
    assert read.end_ids == {260}


def test_begin_token_from_the_post_processor(
    small: dict[str, Any], load_small: Callable[[], Tokenizer]
) -> None:
    single = [{"SpecialToken": {"id": "<|start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": single}
    small["post_processor"] = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    read = load_small()
    assert (read.bos_id, read.add_bos, read.add_eos) == (261, True, False)


def test_chat_templates_and_where_they_come_from(folder: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert configure(folder, chat_template=named).chat_templates == {"default": "a", "tool_use": "b"}
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "c"}))
    assert load_tokenizer(folder).chat_templates == {"default": "c", "tool_use": "b"}
    (folder / "chat_template.jinja").write_text("d é", encoding="utf-8")
    assert load_tokenizer(folder).chat_template == "d é"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("e")
    (folder / "additional_chat_templates" / "notes.txt").write_text("f")
    assert load_tokenizer(folder).chat_templates == {"default": "d é", "tool_use": "e"}
    with pytest.raises(TokenizerError, match="chat_template"):
        configure(folder, chat_template=["x"])


def test_sentencepiece_folder_counts_control_tokens(tmp_path: Path, unpacked: Callable[[str], Path]) -> None:
    shutil.copy(unpacked("mistral_v3_spm"), tmp_path / "tokenizer.model")
    alone = load_tokenizer(tmp_path)
    # as in SentencePiece itself, which never finds control tokens in a text
    assert alone.encode("[INST]", special=True) == alone.encode("[INST]")
    assert (alone.bos_id, alone.eos_id, alone.add_bos, alone.end_ids) == (1, 2, True, {2})
    added = {"32768": {"content": "<new>", "special": True}, "3": {"content": "[INST]", "special": True}}
    read = configure(tmp_path, bos_token="<s>", eos_token="</s>", added_tokens_decoder=added)
    assert read.encode("[INST] Hi[/INST]<new>", special=True) == [3, *alone.encode(" Hi"), 4, 32768]
    assert read.encode("[INST] Hi") == alone.encode("[INST] Hi")
    assert (read.bos_id, read.eos_id, read.vocab_size) == (1, 2, 32769)
    assert read.decode([32768]) == "<new>"


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_whose_normaliser_drops_a_letter(tmp_path: Path, prefix: bool) -> None:
    (tmp_path / "rules.tsv").write_text("61\t\n")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["bcd bcd 0 efg"] * 20),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=15,
        model_type="bpe",
        normalization_rule_tsv=str(tmp_path / "rules.tsv"),
        add_dummy_prefix=prefix,
        minloglevel=3,
    )
    read = load_tokenizer(tmp_path / "tokenizer.model")
    assert read.encode("a") == []
    assert read.decode(read.encode("bcd 0")) == "bcd 0"


@pytest.mark.skipif(os.name == "nt", reason="devices and pipes of POSIX")
@pytest.mark.parametrize("suffix", [".json", ".model"])
def test_only_regular_files_are_read(tmp_path: Path, small: dict[str, Any], suffix: str) -> None:
    endless = tmp_path / f"endless{suffix}"
    endless.symlink_to("/dev/zero")
    silent = tmp_path / f"silent{suffix}"
    os.mkfifo(silent)
    for path in (endless, silent):
        with pytest.raises(TokenizerError, match="not an ordinary file"):
            load_tokenizer(path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(small))
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(TokenizerError, match="not an ordinary file"):
            load_tokenizer(tmp_path)
        (tmp_path / name).unlink()
    assert load_tokenizer(tmp_path).encode("hell")


def test_missing_and_damaged_files(tmp_path: Path, unpacked: Callable[[str], Path]) -> None:
    def refused(path: Path, *, message: str) -> None:
        with pytest.raises(TokenizerError, match=message) as caught:
            load_tokenizer(path)
        assert "\n" not in str(caught.value)

    refused(tmp_path, message="neither tokenizer.json nor tokenizer.model")
    refused(tmp_path / "tokenizer.json", message="no such file")
    refused(tmp_path / "tokenizer.model", message="tokenizer.model")
    for name, content in {
        "empty.json": b"",
        "cut.json": b'{"model": {"type": "BPE", "voc',
        "list.json": b"[]",
        "binary.json": b"GGUF\x03\0\0\0\xff\xfe",
        "deep.json": b'{"model":' + b"[" * 100_000,
        "empty.model": b"",
        "text.model": b"hello",
        "cut.model": unpacked("mistral_v3_spm").read_bytes()[:300_000],
    }.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, message=name)


def test_files_that_contradict_themselves(small: dict[str, Any], load_small: Callable[[], Tokenizer]) -> None:
    def refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
        before = copy.deepcopy(small)
        change(small)
        with pytest.raises(TokenizerError, match=message):
            load_small()
        small.clear()
        small.update(before)

    refused(lambda t: t["model"].update(type="WordPiece"), "WordPiece")
    refused(lambda t: t.update(added_tokens=[], model={**t["model"], "vocab": {}}), "vocabulary is empty")
    refused(lambda t: t["model"]["vocab"].update(x=10**12), "no valid id")
    refused(lambda t: t["model"]["vocab"].update(x=-1), "no valid id")
    refused(lambda t: t["model"]["vocab"].update(x="1"), "no valid id")
    refused(lambda t: t["model"].update(merges=[["h", "e"], 5]), "merges")
    refused(lambda t: t["model"].update(merges="h e"), "merges is str")
    refused(lambda t: t["added_tokens"].append({"id": 1 << 40, "content": "<y>"}), "no valid id")
    refused(lambda t: t["added_tokens"].append({"id": 1}), "content")
    refused(lambda t: t.update(pre_tokenizer={"type": "Magic"}), "Magic")
    refused(lambda t: t.update(normalizer={"type": "Precompiled"}), "replacements is not Base64")
    refused(lambda t: t.update(decoder={"type": "WordPieces"}), "WordPieces")
    refused(lambda t: t.pop("model"), "model")


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += _places(item, (*path, key))
    return found


@pytest.mark.slow
def test_junk_anywhere_in_a_tokenizer_json(
    small: dict[str, Any], load_small: Callable[[], Tokenizer]
) -> None:
    small["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "x"}],
    }
    split = {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated", "invert": False}
    small["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, small["pre_tokenizer"]]}
    small["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Fuse"}]}
    small["post_processor"] = {
        "type": "Sequence",
        "processors": [{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|start|>"}}]}],
    }
    del small["model"]["vocab"]  # 260 places of the same kind
    small["model"] = {
        **small["model"],
        "vocab": {"h": 0, "e": 1, "l": 2, "he": 3, "ll": 4, "hell": 5, "\u0120": 6, "\u0120hell": 7},
    }
    original = copy.deepcopy(small)
    messages: list[str] = []
    loaded = 0
    for place in _places(original):
        for junk in JUNK:
            small.clear()
            small.update(copy.deepcopy(original))
            target: Any = small
            for key in place[:-1]:
                target = target[key]
            target[place[-1]] = junk
            try:
                read = load_small()
                read.decode(read.encode("hell <|end|> é", special=True))
                loaded += 1
            except TokenizerError as error:
                messages.append(str(error))
    assert loaded > 50
    assert len(messages) > 200
    assert not any("\n" in message for message in messages)


def test_junk_anywhere_in_gguf_metadata() -> None:
    # a vocabulary of some hundred entries loads quickly
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "ab", "▁ab"]
    spm = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": -np.arange(len(pieces), dtype=np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, *[1] * 5], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.chat_template": "x",
    }
    read = tokenizer_from_gguf(spm)
    assert read.encode("ab ab\U0001f600") == [263, 263, *(3 + b for b in "\U0001f600".encode())]
    bpe = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "ab"],
        "tokenizer.ggml.token_type": np.array([3, 1, 1, 1], np.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eot_token_id": 0,
    }
    assert tokenizer_from_gguf(bpe).encode("abba<|end|>", special=True) == [3, 2, 1, 0]
    arrays = (
        np.zeros(3, np.float32),
        np.zeros(len(pieces), np.uint8),
        np.zeros(4, np.float64),
        np.zeros((4, 1), np.int32),
        b"bytes",
    )
    messages: list[str] = []
    for file in (spm, bpe):
        for key in file:
            for junk in (*JUNK, *arrays):
                try:
                    read = tokenizer_from_gguf({**file, key: junk})
                    read.decode(read.encode("ab a\0<s>\U0001f600", special=True))
                except TokenizerError as error:
                    messages.append(str(error))
    assert len(messages) > 150
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.scores": b"scores"}, "scores is bytes"),
        ({"tokenizer.ggml.scores": np.zeros(3, np.int32)}, "scores are int32"),
        ({"tokenizer.ggml.scores": np.zeros(5, np.float32)}, "5 entries for 3 tokens"),
        ({"tokenizer.ggml.tokens": []}, "tokens is empty"),
        ({"tokenizer.ggml.tokens": ["a", 1]}, "array of strings"),
        ({"tokenizer.ggml.eos_token_id": "2"}, "should be an integer"),
        ({"tokenizer.ggml.add_bos_token": 1}, "should be a bool"),
        ({"tokenizer.ggml.model": "rwkv"}, "unsupported tokenizer.ggml.model 'rwkv'"),
        ({"tokenizer.ggml.model": None}, "model is missing"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "magic"}, "tokenizer.ggml.pre 'magic'"),
        ({"tokenizer.ggml.model": "gpt2"}, "merges is missing"),
        ({"tokenizer.chat_template": 5}, "tokenizer.chat_template is int"),
    ],
)
def test_what_is_wrong_with_gguf_metadata(change: dict[str, Any], message: str) -> None:
    file = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "a", "b"],
        "tokenizer.ggml.scores": np.zeros(3, np.float32),
        "tokenizer.ggml.token_type": np.array([2, 1, 1], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
    }
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_gguf({**file, **change})


def test_added_tokens_of_a_tokenizer_json(small: dict[str, Any], load_small: Callable[[], Tokenizer]) -> None:
    read = load_small()
    assert read.encode("<tool>") == [262]
    assert read.encode("<|end|>", special=True) == [260]
    assert 260 not in read.encode("<|end|>")
    small["normalizer"] = {"type": "Lowercase"}
    for token in small["added_tokens"]:
        token["normalized"] = True
    read = load_small()
    assert read.encode("<TOOL>") == [262]
    assert read.encode("<|END|>", special=True) == [260]
    assert read.special_tokens == {"<|end|>": 260, "<|start|>": 261}


def test_ids_that_the_vocabulary_skips(small: dict[str, Any], load_small: Callable[[], Tokenizer]) -> None:
    small["added_tokens"].append({"id": 300, "content": "<far>", "special": True})
    read = load_small()
    assert read.vocab_size == 301
    assert read.decode([299]) == ""
    assert read.decode([300]) == "<far>"


def test_random_bytes_as_a_tokenizer_json(tmp_path: Path) -> None:
    rng = random.Random(1)
    path = tmp_path / "tokenizer.json"
    for _ in range(50):
        path.write_bytes(rng.randbytes(rng.randrange(200)))
        with pytest.raises(TokenizerError):
            load_tokenizer(path)


def test_tekken(tmp_path: Path) -> None:
    words = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"not among them"]
    vocab = [{"rank": i, "token_bytes": b64encode(word).decode()} for i, word in enumerate(words)]
    config = {"pattern": r"\s?\S+", "default_vocab_size": 20 + 259, "default_num_special_tokens": 20}
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": vocab}))
    for source in (path, tmp_path):
        read = load_tokenizer(source)
        assert read.vocab_size == 279
        assert (read.bos_id, read.eos_id, read.add_bos, read.end_ids) == (1, 2, True, {2})
        assert read.encode("hello") == [278, 20 + ord("o")]
        assert read.encode("[INST]é", special=True) == [3, 20 + 0xC3, 20 + 0xA9]
        assert 3 not in read.encode("[INST]")
        assert read.decode([3, 20 + 0xC3, 20 + 0xA9]) == "[INST]é"
        assert read.token_text(19) == "<SPECIAL_19>"

    named = [{"rank": 3, "token_str": "[X]", "is_control": True}]
    path.write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": named}))
    assert load_tokenizer(path).encode("[X]", special=True) == [3]
    for change in (
        {"vocab": [{"rank": 0, "token_bytes": "?"}]},
        {"vocab": [1]},
        {"config": {**config, "default_vocab_size": 1}},
        {"config": {**config, "default_vocab_size": 1 << 40}},
        {"special_tokens": [{"rank": 99, "token_str": "x"}]},
        {"special_tokens": [3]},
    ):
        path.write_text(json.dumps({"config": config, "vocab": vocab, **change}))
        with pytest.raises(TokenizerError):
            load_tokenizer(path)


@pytest.mark.parametrize(
    ("model", "pre", "add_bos"),
    [
        ("gemma4", "gemma4", True),
        ("gpt2", "gemma4", True),
        ("gpt2", "sarvam-moe", False),
        ("gpt2", "granite-embed-multi-311m", False),
    ],
)
def test_merges_over_spaces(model: str, pre: str, add_bos: bool) -> None:
    """Vocabularies with merges that spell spaces as SentencePiece does."""
    pieces = [
        "<unk>",
        "\u2581",
        "a",
        "b",
        "ab",
        "\u2581ab",
        "\n",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    tokenizer = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": model,
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": np.array([2] + [1] * 6 + [6] * 256, np.int32),
            "tokenizer.ggml.merges": ["a b", "\u2581 ab"],
            "tokenizer.ggml.bos_token_id": 2,
        }
    )
    assert tokenizer.encode("ab ab\né") == [4, 5, 6, 7 + 0xC3, 7 + 0xA9]
    assert tokenizer.decode(tokenizer.encode("ab ab\né")) == "ab ab\né"
    assert tokenizer.add_bos == add_bos
