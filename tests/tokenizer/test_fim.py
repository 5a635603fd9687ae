"""Fill in the middle, in the orders of all families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kukri.tokenizer import Tokenizer, TokenizerError, tokenizer_from_gguf
from kukri.tokenizer.fim import encode_fim, fim_ends

QWEN = "gguf/qwen2.5-coder-0.5b-instruct"


def test_qwen(tokenizer: Callable[[str], Tokenizer]) -> None:
    qwen = tokenizer(QWEN)
    ids = encode_fim(qwen, "Qwen", "def f():\n", "\nprint(<|fim_middle|>)")
    text = qwen.decode(ids)
    assert text == "<|fim_prefix|>def f():\n<|fim_suffix|>\nprint(<|fim_middle|>)<|fim_middle|>"
    middle = qwen.encode("<|fim_middle|>", special=True)
    assert len(middle) == 1
    assert ids.count(middle[0]) == 1  # what a user typed stays text
    assert ids[-1:] == middle
    assert "<|file_sep|>" in fim_ends(qwen)
    assert "<|im_start|>" not in fim_ends(qwen)


def with_tokens(metadata: dict[str, Any], *names: str, **keys: Any) -> Tokenizer:
    tokens = [*metadata["tokenizer.ggml.tokens"]]
    types = [*metadata["tokenizer.ggml.token_type"]]
    for name in names:
        at = tokens.index(name) if name in tokens else len(tokens)
        tokens[at : at + 1] = [name]
        types[at : at + 1] = [3]
    ids = {f"tokenizer.ggml.{key}_token_id": tokens.index(name) for key, name in keys.items()}
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": np.array(types, np.int32)}
    return tokenizer_from_gguf({**metadata, **changed, **ids})


@pytest.mark.parametrize(
    ("names", "keys", "expected"),
    [
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), {}, "<fim_prefix>a<fim_suffix>b<fim_middle>"),
        (("[SUFFIX]", "[PREFIX]"), {}, "[SUFFIX]b[PREFIX]a"),
        (("<A>", "<B>", "<C>"), {"fim_pre": "<A>", "fim_suf": "<B>", "fim_mid": "<C>"}, "<A>a<B>b<C>"),
        (("<A>", "<B>", "<C>"), {"prefix": "<A>", "suffix": "<B>", "middle": "<C>"}, "<A>a<B>b<C>"),
    ],
)
def test_other_families(
    metadata: Callable[[str], dict[str, Any]], names: tuple[str, ...], keys: dict[str, str], expected: str
) -> None:
    read = with_tokens(metadata("gguf/smollm2-135m-instruct"), *names, **keys)
    assert read.decode(encode_fim(read, "x", "a", "b")).endswith(expected)


def test_a_model_without_such_tokens(tokenizer: Callable[[str], Tokenizer]) -> None:
    with pytest.raises(TokenizerError, match="Llama has no tokens for filling in the middle"):
        encode_fim(tokenizer("llama3_1"), "Llama", "a", "b")
