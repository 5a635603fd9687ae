"""Tokenizers as GGUF keys: read back, they make the same ids of everything."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kukri.tokenizer import TokenizerError, load_tokenizer, tokenizer_from_gguf
from kukri.tokenizer.pretokenize.patterns import QWEN2
from kukri.tokenizer.pretokenize.pre_names import pre_name
from kukri.tokenizer.pretokenize.pretokenize import BYTE_SYMBOLS, Split
from kukri.tokenizer.readers.components import steps
from kukri.tokenizer.readers.export import tokenizer_metadata

# family → tokenizer.ggml.model, tokenizer.ggml.pre
FAMILIES = {
    "llama3_1": ("gpt2", "llama-bpe"),
    "qwen3": ("gpt2", "qwen2"),
    "phi2": ("gpt2", "gpt-2"),
    "starcoder": ("gpt2", "smollm"),
    "llama2": ("llama", "default"),
    "mistral_v1": ("llama", "default"),
    "mistral_v3_spm": ("llama", "default"),
    "gemma3": ("llama", "default"),
    "gpt_neox": ("gpt2", "olmo"),
    "falcon": ("gpt2", "falcon"),
    "deepseek_v3": ("gpt2", "deepseek-v3"),
}


@pytest.fixture
def folder(unpacked: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A folder with a family's file, and a tokenizer_config.json, in which control tokens count."""

    def make(family: str) -> Path:
        path = unpacked(family)
        (tmp_path / path.name).hardlink_to(path)
        (tmp_path / "tokenizer_config.json").write_text('{"legacy": true}')
        return tmp_path

    return make


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_ids(family: str, folder: Callable[[str], Path], strings: dict[str, str]) -> None:
    path = folder(family)
    original = load_tokenizer(path)
    metadata = tokenizer_metadata(path, original.vocab_size, "").keys
    model, pre = FAMILIES[family]
    assert (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]) == (model, pre)
    read = tokenizer_from_gguf(metadata)
    for name in ("vocab_size", "bos_id", "eos_id", "add_bos", "add_eos", "end_ids", "special_tokens"):
        assert getattr(read, name) == getattr(original, name), name
    for text in strings.values():
        assert read.encode(text, special=True) == original.encode(text, special=True)
        assert read.encode(text) == original.encode(text)
        ids = original.encode(text)
        assert read.decode(ids) == original.decode(ids)


def test_a_vocabulary_of_another_size_than_the_models(folder: Callable[[str], Path]) -> None:
    path = folder("phi2")
    n = load_tokenizer(path).vocab_size
    metadata = tokenizer_metadata(path, n + 3, "phi2").keys
    assert metadata["tokenizer.ggml.tokens"][n:] == [f"[PAD{n + i}]" for i in range(3)]
    assert metadata["tokenizer.ggml.token_type"][n - 1 :].tolist() == [4, 5, 5, 5]
    fewer, notes = tokenizer_metadata(path, n - 1, "phi2")  # the last is an added token
    assert len(fewer["tokenizer.ggml.tokens"]) == n - 1
    assert len(notes) == 1
    assert notes[0].startswith(f"the model has {n - 1} embeddings; tokens beyond them")
    with pytest.raises(TokenizerError, match="more than the model's 1000 embeddings"):
        tokenizer_metadata(path, 1000, "phi2")


def small(folder: Path, **changes: Any) -> Path:
    content: dict[str, Any] = {
        "added_tokens": [
            {"id": 256, "content": "<|end|>", "special": True},
            {"id": 257, "content": "<|stop|>", "special": True},
            {"id": 258, "content": "<tool>", "special": False},
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {s: i for i, s in enumerate(BYTE_SYMBOLS)}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content | changes))
    return folder


def test_special_tokens_and_templates(tmp_path: Path) -> None:
    config = {"bos_token": "<|end|>", "eos_token": {"content": "<|end|>"}, "add_bos_token": True}
    templates = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": templates}))
    metadata = tokenizer_metadata(small(tmp_path), 259, "llama", end_ids=[256, 257]).keys
    assert metadata.pop("tokenizer.ggml.eos_token_ids").tolist() == [256, 257]
    assert {key: value for key, value in metadata.items() if "token_id" in key or "add_" in key} == {
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.ggml.eot_token_id": 257,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
    }
    assert {key: value for key, value in metadata.items() if "chat_template" in key} == {
        "tokenizer.chat_template": "a",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "b",
    }
    assert metadata["tokenizer.ggml.token_type"][255:].tolist() == [1, 3, 3, 4]
    assert tokenizer_from_gguf(metadata).chat_templates == {"default": "a", "tool_use": "b"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": {"type": "NFKC"}}, "normalizer NFKC"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "no name for the pre-tokenizer"),
        ({"pre_tokenizer": None}, "this kind of BPE"),
    ],
)
def test_what_the_format_cannot_express(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        tokenizer_metadata(small(tmp_path, **changes), 259, "llama")


def test_pre_tokenizers_that_are_spelled_in_another_way() -> None:
    spelled = QWEN2.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:'(?:s|t|re|ve|m|ll|d))")
    assert pre_name([Split(spelled)], nfc=True, ignore_merges=False) == "qwen2"
    assert pre_name([Split(QWEN2)], nfc=False, ignore_merges=False, architecture="stablelm") == "stablelm2"
    assert pre_name([Split(QWEN2)], nfc=False, ignore_merges=False, architecture="qwen2") == "qwen2"
    with pytest.raises(TokenizerError):
        pre_name([Split(r"\p{L}")], nfc=False, ignore_merges=False)
    isolated = {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Removed"}
    with pytest.raises(TokenizerError):
        pre_name(steps(isolated), nfc=False, ignore_merges=False)


def test_tekken(tmp_path: Path) -> None:
    """Entries join wherever two of them make another one; there is no list of merges to take over."""
    words = [bytes([b]) for b in range(256)] + [b"ab", b"bc", b"abc", b"he", b"hel", b" a"]
    pattern = (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
    )
    pattern += r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    pattern += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    content = {
        "config": {"pattern": pattern, "default_num_special_tokens": 3, "default_vocab_size": 3 + len(words)},
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(w).decode()} for i, w in enumerate(words)],
    }
    (tmp_path / "tekken.json").write_text(json.dumps(content))
    original = load_tokenizer(tmp_path)
    metadata = tokenizer_metadata(tmp_path, original.vocab_size + 1, "mistral3").keys
    assert metadata["tokenizer.ggml.pre"] == "tekken"
    assert metadata["tokenizer.ggml.merges"] == ["a b", "b c", "a bc", "ab c", "h e", "he l", "Ġ a"]
    assert metadata["tokenizer.ggml.token_type"].dtype == np.int32
    read = tokenizer_from_gguf(metadata)
    for text in ("abc ab bc aabcbc hello abc", "ab" * 9, "", "ébc</s>"):
        assert read.encode(text) == original.encode(text)
        assert read.encode(text, special=True) == original.encode(text, special=True)
