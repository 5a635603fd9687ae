"""GGUF vocabularies that say little or wrong things about their special tokens, read as llama.cpp does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kukri.quant.gguf.string_array import StringArray
from kukri.tokenizer import Tokenizer, TokenizerError, tokenizer_from_gguf
from kukri.tokenizer.pretokenize.pretokenize import BYTE_SYMBOLS

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
MARKS = ["<s>", "</s>", "<|user|>", "<|im_end|>", "<|endoftext|>"]
FIRST = 257  # the id of the first mark


def read(
    marks: list[str] = MARKS, kinds: list[int] | None = None, packed: bool = False, **keys: Any
) -> Tokenizer:
    """Byte-level BPE with the entry "he" and `marks`; CONTROL unless `kinds` says otherwise."""
    tokens = [*BYTE_SYMBOLS, "he", *marks]
    types = np.array([NORMAL] * FIRST + (kinds or [CONTROL] * len(marks)), np.int32)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": StringArray(b"\0%b\0" % "\0".join(tokens).encode(), len(tokens))
        if packed
        else tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["h e"],
    }
    changed = {key if "." in key else f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return tokenizer_from_gguf(metadata | changed)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
@pytest.mark.parametrize("mark", ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "[EOT]", "<turn|>"])
def test_end_marks_of_another_type(mark: str, kind: int, packed: bool) -> None:
    tokenizer = read([*MARKS[:3], mark], [CONTROL, CONTROL, CONTROL, kind], packed)
    assert FIRST + 3 in tokenizer.end_ids
    assert tokenizer.is_special(FIRST + 3)  # so it is not printed
    assert tokenizer.encode(f"he{mark}", special=True) == [256, FIRST + 3]
    assert len(tokenizer.encode(mark)) > 1  # typed by a user, it is text


@pytest.mark.parametrize("packed", [False, True])
def test_marks_that_are_something_else(packed: bool) -> None:
    """Gemma and Qwen have "</s>" for HTML; gpt-oss has "<|end|>" between the messages of an answer."""
    tokenizer = read(kinds=[CONTROL, USER_DEFINED, CONTROL, CONTROL, CONTROL], packed=packed)
    assert FIRST + 1 not in tokenizer.end_ids
    assert tokenizer.encode("</s>") == [FIRST + 1]
    assert FIRST + 1 in read(kinds=[CONTROL, NORMAL, 3, 3, 3], packed=packed, eos_token_id=FIRST + 1).end_ids
    harmony = read(["<|return|>", "<|call|>", "<|end|>"], [CONTROL, NORMAL, USER_DEFINED], packed)
    assert harmony.end_ids == {FIRST, FIRST + 1}
    assert not harmony.is_special(FIRST + 2)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_a_list_of_ends(dtype: type) -> None:
    tokenizer = read(MARKS[:3], eos_token_ids=np.array([FIRST, FIRST + 2, 999], dtype))
    assert tokenizer.end_ids == {FIRST, FIRST + 1, FIRST + 2}
    assert tokenizer.notes == (
        "tokenizer.ggml.eos_token_ids has 999, but there are 260 tokens: it counts as not there",
    )
    assert FIRST + 2 in read(MARKS[:3], eos_token_ids=FIRST + 2).end_ids
    with pytest.raises(TokenizerError, match="eos_token_ids is str"):
        read(eos_token_ids="5")
    with pytest.raises(TokenizerError, match="eos_token_ids is StringArray"):
        read(eos_token_ids=StringArray(b"\0a\0b\0", 2))
    with pytest.raises(TokenizerError, match="eos_token_ids has 261 entries for 260 tokens"):
        read(MARKS[:3], eos_token_ids=np.zeros(261, dtype))


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"])
@pytest.mark.parametrize("id", [262, 4294967295, -1])
def test_special_ids_out_of_range(key: str, id: int) -> None:
    tokenizer = read(**{key: id}, add_bos_token=True)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (None, None, False)
    assert max(tokenizer.end_ids) < 262
    assert tokenizer.notes == (
        f"tokenizer.ggml.{key} is {id}, but there are 262 tokens: it counts as not there",
    )
    assert tokenizer.prefix_ids == ()


@pytest.mark.parametrize("packed", [False, True])
def test_a_merge_of_nothing(packed: bool) -> None:
    merges = ["h z", "h e", "q q"]
    stored = StringArray(b"\0%b\0" % "\0".join(merges).encode(), 3) if packed else merges
    tokenizer = read(packed=packed, merges=stored)
    assert tokenizer.encode("hehz") == [256, *b"hz"] == [256, 104, 122]


def test_tokens_and_merges_must_be_utf_8() -> None:
    with pytest.raises(TokenizerError, match=r"tokens: entry 2 is not UTF-8"):
        read(**{"tokenizer.ggml.tokens": ["a", "b", b"\xff"]})
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.pre is not UTF-8"):
        read(pre=b"\xff")


@pytest.mark.parametrize("name", ["Phi-3 mini", "my phi3 tune", "PHI-3.5"])
def test_white_space_behind_the_role_tokens_of_phi_3(name: str) -> None:
    tokenizer = read(**{"general.name": name})
    user, end, text_end = FIRST + 2, FIRST + 3, FIRST + 4
    assert tokenizer.encode("<|user|>\n he<|im_end|> \nhe", special=True) == [user, 256, end, 256]
    assert tokenizer.encode("<s> he<|endoftext|> he", special=True) == [FIRST, 32, 256, text_end, 32, 256]
    other = read(**{"general.name": "Llama 3"})
    assert other.encode("<|user|>\nhe", special=True) == [user, 10, 256]


def test_flags_in_keys_of_our_own() -> None:
    flags = {f"kukri.tokenizer.{flag}_ids": np.array([FIRST + 2], np.int32) for flag in ("lstrip", "rstrip")}
    tokenizer = read(**flags, **{"general.name": "phi-3"})
    assert tokenizer.encode("he <|user|>\nhe<|im_end|>\n", special=True) == [
        256,
        FIRST + 2,
        256,
        FIRST + 3,
        10,
    ]
    assert read(**{"kukri.tokenizer.prefix_ids": np.array([FIRST, FIRST + 2])}).prefix_ids == (
        FIRST,
        FIRST + 2,
    )
