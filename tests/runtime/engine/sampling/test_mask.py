"""Masks: the sampler draws as if banned ids had logits of -inf."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.engine.errors import BadLogits
from kukri.runtime.engine.sampling.mask import mask_of
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.sampling.sampler import Sampler

VOCAB = 3001
CHAINS = [
    {"temperature": 0},
    {"temperature": 1.5},
    {"temperature": 0.7, "top_k": 0, "top_p": 0.8, "min_p": 0.0},
    {"temperature": 1.0, "top_k": 0, "min_p": 0.0, "top_p": 1.0},
    {"repeat_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 0, "repeat_penalty": 1.3},
    {"logit_bias": {5: 4.0, 7: -9.0}},
    {"typical_p": 0.7},
    {"top_n_sigma": 1.0},
    {"xtc_probability": 0.9, "xtc_threshold": 0.05},
    {"dynatemp_range": 0.5},
    {"mirostat": 2},
    {"dry_multiplier": 1.0, "dry_sequence_breakers": ()},
    {"top_k": 1},
]


LARGER = 20011  # of which the most allowed ids that count as few are less than a half


@pytest.mark.parametrize(
    ("size", "share"),
    [(VOCAB, 0.001), (VOCAB, 0.02), (VOCAB, 0.3), (VOCAB, 0.7), (VOCAB, 0.999), (LARGER, 0.4), (LARGER, 0.9)],
)
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_banned_ids_are_as_if_their_logits_were_minus_infinity(chain, size, share):
    random = np.random.default_rng(1)
    params = SamplingParams(seed=3, **chain)
    masked, plain = Sampler(params), Sampler(params)
    history = [5, 9, 100, 5, 9]
    for _ in range(20):
        logits = random.normal(0, 3, size).astype(np.float32)
        flags = random.random(size) < share
        flags[random.integers(size)] = True
        mask = mask_of(np.packbits(flags, bitorder="little"), size)
        before = logits.copy()
        token = masked.sample(logits, history, mask)
        assert flags[token]
        assert token == plain.sample(np.where(flags, logits, -np.inf).astype(np.float32), history)
        assert (logits == before).all()
        history = [*history, token]


@pytest.mark.parametrize("size", [VOCAB, LARGER])
def test_likeliest_ids_that_are_all_banned(size):
    logits = np.arange(size, dtype=np.float32)
    flags = np.arange(size) < size - 600
    mask = mask_of(np.packbits(flags, bitorder="little"), size)
    assert Sampler(SamplingParams(temperature=0)).sample(logits, (), mask) == size - 601
    drawn = {
        Sampler(SamplingParams(top_k=2, seed=i, temperature=9)).sample(logits, (), mask) for i in range(9)
    }
    assert drawn == {size - 601, size - 602}


def test_ids_beyond_the_bits_are_banned():
    bits = np.full(4, 255, np.uint8)
    assert mask_of(bits, 40).allowed is None
    assert mask_of(bits, 40).banned.tolist() == list(range(32, 40))
    assert mask_of(bits, 20).banned.tolist() == []
    assert mask_of(np.array([1, 2], np.uint8), 13).allowed.tolist() == [0, 9]
    assert mask_of(None, 8) is None


@pytest.mark.parametrize("share", [0.0, 0.4, 0.9])
def test_nothing_that_may_be_drawn_is_an_error(share):
    flags = np.random.default_rng(0).random(VOCAB) < share
    logits = np.where(flags, -np.inf, 0).astype(np.float32)
    with pytest.raises(BadLogits):
        Sampler(SamplingParams()).sample(logits, (), mask_of(np.packbits(flags, bitorder="little"), VOCAB))
