"""Texts in sampling parameters: biases and sequence breakers, as ids of a vocabulary."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model.sampling_texts import SamplingTexts, breaker_ids
from kukri.tokenizer import Tokenizer, tokenizer_from_gguf

from .scripted import START, VOCAB, byte_symbols, metadata

ZQ = 259


def tokenizer() -> Tokenizer:
    return tokenizer_from_gguf(metadata())


def texts() -> SamplingTexts:
    return SamplingTexts(tokenizer, VOCAB)


def test_a_text_that_is_one_token_is_its_id():
    params = SamplingParams(logit_bias={"zq": 1.5, "<|im_start|>": -math.inf, "a": 2, 7: 3})
    assert texts().with_ids(params).logit_bias == ((ZQ, 1.5), (START, -math.inf), (ord("a"), 2.0), (7, 3.0))


def test_what_is_no_token():
    for bias, message in (
        ({"zqa": 1}, "'zqa' is 2 tokens, not one"),
        ({VOCAB: 1}, f"there is no token {VOCAB}; the vocabulary has {VOCAB}"),
    ):
        with pytest.raises(ValueError, match=message):
            texts().with_ids(SamplingParams(logit_bias=bias))


def test_sequence_breakers_are_found_where_they_may_begin_in_a_token():
    assert breaker_ids(["z"], tokenizer()) == [(ord("z"),), (ZQ,)]
    assert breaker_ids(["q"], tokenizer()) == [(ord("q"),), (ZQ,)]
    assert breaker_ids(["qa"], tokenizer()) == [(ord("q"), ord("a")), (ZQ, ord("a"))]
    assert breaker_ids(["zq!"], tokenizer()) == [(ord("z"), ord("q"), ord("!")), (ZQ, ord("!"))]
    assert breaker_ids(["im_st"], tokenizer())[-1] == (START,)
    assert breaker_ids(["é"], tokenizer()) == [(0xC3, 0xA9)]
    assert breaker_ids(["zé!"], tokenizer()) == [(ord("z"), 0xC3, 0xA9, ord("!"))]
    assert breaker_ids([], tokenizer()) == []
    long = breaker_ids(["x" * 100], tokenizer())
    assert long == [(ord("x"),) * 21]  # the first, and the most of the rest that counts
    vocabulary = [*byte_symbols(), "<|bos|>", "<|im_start|>", "<|im_end|>", "zq"]
    assert len(vocabulary) == tokenizer().vocab_size


def test_breakers_become_ids_only_where_dry_is_on():
    off = SamplingParams()
    assert texts().with_ids(off) == off
    on = texts().with_ids(SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=["z", (5, 6)]))
    assert on.dry_sequence_breakers == ((5, 6), (ord("z"),), (ZQ,))
    assert texts().with_ids(on) == on


def test_the_vocabulary_is_searched_once():
    calls = []

    def counted() -> Tokenizer:
        calls.append(1)
        return tokenizer()

    found = SamplingTexts(counted, VOCAB)
    params = SamplingParams(dry_multiplier=1.0)
    assert found.with_ids(params) == found.with_ids(params)
    assert len(calls) == 1
    assert np.array(found.with_ids(params).dry_sequence_breakers).tolist() == [
        [ord("\n")], [ord('"')], [ord("*")], [ord(":")]
    ]  # fmt: skip
