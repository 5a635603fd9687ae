"""Every string of the goldens, through every tokenizer that the project promises to read."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kukri.tokenizer import IncrementalDecoder, Tokenizer, tokenizer_from_gguf

from .conftest import DATA

FAMILIES = (
    "llama3_1",
    "qwen3",
    "phi2",
    "starcoder",
    "llama2",
    "mistral_v1",
    "mistral_v3_spm",
    "gemma3",
    "gpt_neox",
    "falcon",
    "claude",
    "deepseek_v3",
    "gguf/smollm2-135m-instruct",
    "gguf/qwen2.5-coder-0.5b-instruct",
    "gguf/gemma-3-270m",
    "gguf/gpt-2",
    "gguf/llama-spm",
    "gguf/deepseek-coder",
)
# Vocabularies of a tokenizer.json written as a GGUF would have them, and the `pre` that such a file names.
AS_GGUF = {
    "llama3_1": "llama-bpe",
    "phi2": "phi-2",
    "starcoder": "refact",
    "gpt_neox": "olmo",
    "falcon": "falcon",
    "deepseek_v3": "deepseek-v3",
}


def differences(tokenizer: Tokenizer, goldens: dict[str, Any], strings: dict[str, str]) -> list[str]:
    found = []
    for id, row in goldens.items():
        text = strings[id]
        plain = row.get("ids_plain", row["ids"])
        expected = row.get("decoded", text)
        expected_plain = row.get("decoded_plain", text) if "ids_plain" in row else expected
        results = {
            "ids": tokenizer.encode(text, special=True) == row["ids"],
            "ids_plain": tokenizer.encode(text) == plain,
            "decoded": tokenizer.decode(row["ids"]) == expected,
            "decoded_plain": tokenizer.decode(plain) == expected_plain,
            "incremental": _one_by_one(tokenizer, row["ids"]) == expected,
        }
        found += [f"{id} {name}" for name, same in results.items() if not same]
    return found


def _one_by_one(tokenizer: Tokenizer, ids: list[int]) -> str:
    decoder = IncrementalDecoder(tokenizer, skip_special=False)
    return "".join([decoder.push(id) for id in ids]) + decoder.flush()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_goldens(
    family: str,
    tokenizer: Callable[[str], Tokenizer],
    goldens: Callable[[str], dict[str, Any]],
    strings: dict[str, str],
) -> None:
    rows = goldens(family)
    assert len(rows) == 326
    assert differences(tokenizer(family), rows, strings) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", AS_GGUF)
def test_the_same_vocabulary_as_gguf_metadata(
    family: str,
    unpacked: Callable[[str], Path],
    goldens: Callable[[str], dict[str, Any]],
    strings: dict[str, str],
) -> None:
    content = json.loads(unpacked(family).read_bytes())
    kinds = {id: (piece, 1) for piece, id in content["model"]["vocab"].items()}
    for token in content["added_tokens"]:
        kinds[token["id"]] = (token["content"], 3 if token["special"] else 4)
    pieces = [kinds.get(id, (f"[PAD{id}]", 5)) for id in range(max(kinds) + 1)]
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    read = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": AS_GGUF[family],
            "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
            "tokenizer.ggml.token_type": np.array([kind for _, kind in pieces], np.int32),
            "tokenizer.ggml.merges": merges,
        }
    )
    assert differences(read, goldens(family), strings) == []


@pytest.mark.slow
def test_mixed_texts(tokenizer: Callable[[str], Tokenizer]) -> None:
    """Texts put together at random, by families."""
    mixed = json.loads(lzma.decompress((DATA / "mixed.json.xz").read_bytes()))
    texts = mixed.pop("texts")
    assert len(mixed) == 8
    for family, ids in mixed.items():
        for text, expected in zip(texts, ids, strict=True):
            assert tokenizer(family).encode(text, special=True) == expected, (family, ascii(text))


def test_what_the_files_say_beside_the_vocabulary(tokenizer: Callable[[str], Tokenizer]) -> None:
    smollm2 = tokenizer("gguf/smollm2-135m-instruct")
    assert (smollm2.bos_id, smollm2.eos_id, smollm2.add_bos) == (1, 2, False)
    assert smollm2.end_ids == {0, 2}  # <|endoftext|> and <|im_end|>
    assert smollm2.chat_template is not None
    assert smollm2.vocab_size == 49152
    assert smollm2.special_tokens["<|im_start|>"] == 1
    assert smollm2.is_special(1)
    assert not smollm2.is_special(100)
    assert smollm2.token_text(1) == "<|im_start|>"

    gemma3 = tokenizer("gguf/gemma-3-270m")
    assert (gemma3.bos_id, gemma3.eos_id, gemma3.add_bos, gemma3.add_eos) == (2, 1, True, False)
    # <eos> and <end_of_turn>, but not </s>, which is a tag of HTML in this vocabulary
    assert gemma3.end_ids == {1, 106}
    assert gemma3.chat_template is None

    qwen = tokenizer("gguf/qwen2.5-coder-0.5b-instruct")
    assert qwen.end_ids == {151643, 151645}
    assert not qwen.is_special(qwen.encode("<tool_call>")[0])
    assert qwen.token_text(qwen.encode("<tool_call>")[0]) == "<tool_call>"

    llama3 = tokenizer("llama3_1")  # begin token from the post-processor: the file stands alone
    assert (llama3.bos_id, llama3.add_bos) == (128000, True)
    assert llama3.end_ids == {128001, 128009}  # <|end_of_text|> and <|eot_id|>
