"""The incremental decoder: whole characters only, and together the same as decoding at once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kukri.tokenizer import IncrementalDecoder, Tokenizer, TokenizerError

MODELS = ("gguf/smollm2-135m-instruct", "gguf/llama-spm", "gguf/gemma-3-270m", "qwen3")


def stream(tokenizer: Tokenizer, ids: list[int], skip_special: bool = False) -> list[str]:
    decoder = IncrementalDecoder(tokenizer, skip_special)
    return [*map(decoder.push, ids), decoder.flush()]


def test_an_emoji_over_several_tokens_waits_until_it_is_whole(tokenizer: Callable[[str], Tokenizer]) -> None:
    read = tokenizer("gguf/smollm2-135m-instruct")
    ids = read.encode("a🦜b")
    assert len(ids) > 3
    parts = stream(read, ids)
    assert parts[0] == "a"
    assert "".join(parts) == "a🦜b"
    assert "\ufffd" not in "".join(parts)
    assert parts[-2:] == ["b", ""]


def test_a_character_cut_off_by_the_end(tokenizer: Callable[[str], Tokenizer]) -> None:
    for model in MODELS:
        read = tokenizer(model)
        ids = read.encode("x𐍈")[:-1]
        decoder = IncrementalDecoder(read)
        so_far = "".join(map(decoder.push, ids))
        assert so_far == "x"
        assert decoder.flush() == "\ufffd"
        assert read.decode(ids) == "x\ufffd"


@pytest.mark.parametrize("model", MODELS)
def test_any_ids_give_what_decode_gives(model: str, tokenizer: Callable[[str], Tokenizer]) -> None:
    read = tokenizer(model)
    rng = random.Random(3)
    bytes_of_emoji = read.encode("🦜𐍈é\u0301")
    for _ in range(300):
        ids = [rng.choice([rng.randrange(read.vocab_size), rng.choice(bytes_of_emoji)]) for _ in range(8)]
        assert "".join(stream(read, ids)) == read.decode(ids)
        plain = [id for id in ids if not read.is_special(id)]
        assert "".join(stream(read, ids, skip_special=True)) == read.decode(plain)
        decoder, cut = IncrementalDecoder(read), rng.randrange(len(plain) + 1)
        together = decoder.push_all(plain[:cut]), decoder.push_all(plain[cut:]), decoder.flush()
        assert "".join(together) == read.decode(plain)


def test_special_tokens_are_left_out(tokenizer: Callable[[str], Tokenizer]) -> None:
    read = tokenizer("gguf/llama-spm")
    ids = [1, *read.encode("Hi"), 2]
    assert stream(read, ids, skip_special=True) == ["", "Hi", "", ""]
    assert stream(read, ids) == ["<s>", " Hi", "</s>", ""]
    assert read.decode(ids) == "<s> Hi</s>"


def test_the_space_in_front_goes_once(tokenizer: Callable[[str], Tokenizer]) -> None:
    read = tokenizer("gguf/llama-spm")
    for text in ("Hi there", " Hi", "  x", "\n"):
        assert "".join(stream(read, read.encode(text))) == text


def test_flush_starts_afresh(tokenizer: Callable[[str], Tokenizer]) -> None:
    read = tokenizer("gguf/llama-spm")
    decoder = IncrementalDecoder(read)
    for _ in range(2):
        text = "".join(map(decoder.push, read.encode("Hi 🦜")[:-1])) + decoder.flush()
        assert text == read.decode(read.encode("Hi 🦜")[:-1])


def test_an_id_outside_the_vocabulary(tokenizer: Callable[[str], Tokenizer]) -> None:
    read = tokenizer("qwen3")
    with pytest.raises(TokenizerError):
        IncrementalDecoder(read).push(read.vocab_size)
