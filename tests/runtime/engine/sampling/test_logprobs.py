"""Log probabilities of tokens: the numbers, and those that an engine gives with an answer and its prompt."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.logprobs import TokenLogprobs, token_logprobs
from kukri.runtime.engine.sampling.params import SamplingParams

from ..test_engine import VOCAB, Config, HistoryMachine, after


def obvious(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def check(entry: TokenLogprobs, logits: np.ndarray, token: int, n: int) -> None:
    expected = obvious(logits)
    assert entry.id == token
    assert entry.logprob == pytest.approx(expected[token], abs=1e-9)
    order = np.argsort(-expected, kind="stable")[:n]
    assert [id_ for id_, _ in entry.top] == order.tolist()
    np.testing.assert_allclose([logprob for _, logprob in entry.top], expected[order], atol=1e-9)


@pytest.mark.parametrize("size", [5, 20_000])
def test_the_numbers(size):
    logits = (np.random.default_rng(size).normal(size=size) * 4).astype(np.float32)
    for token, n in ((0, 0), (3, 1), (4, 5)):
        check(token_logprobs(logits, token, n), logits, token, n)
    assert len(token_logprobs(logits, 0, 10**6).top) == size
    some = np.array([1.0, -np.inf, 2.0], np.float32)
    assert token_logprobs(some, 1, 3).logprob == -math.inf
    assert [id_ for id_, _ in token_logprobs(some, 1, 3).top] == [2, 0]
    assert token_logprobs(some, 3, 0).logprob == -math.inf  # a prompt may have ids beyond the logits
    assert token_logprobs(np.array([1e38, -1e38], np.float32), 0, 0).logprob == 0.0


def new_engine(max_sequences: int = 1, max_rows: int = 8, max_logits: int = 4, n_pages: int = 64) -> Engine:
    table = PageTable(n_pages, max_sequences, page_size=4)
    return Engine(HistoryMachine(table, max_rows, max_logits), table, Config())


PROMPT = [(7 * i) % VOCAB for i in range(21)]


def test_an_answer_comes_with_those_of_the_model_itself():
    """Whatever changes the choice of tokens does not change what is told of them."""
    params = SamplingParams(
        seed=1, max_tokens=9, logprobs=3, temperature=1.7, repeat_penalty=1.5, logit_bias={4: 3.0}
    )
    generation = new_engine().submit(PROMPT, params)
    tokens = list(generation)
    assert len(tokens) == len(generation.logprobs) == 9
    for i, entry in enumerate(generation.logprobs):
        check(entry, after(PROMPT + tokens[:i]), tokens[i], 3)
    plain = new_engine().submit(PROMPT, SamplingParams(seed=1, max_tokens=9))
    assert list(plain)
    assert plain.logprobs == plain.prompt_logprobs == []


def test_asking_for_them_changes_no_token():
    for kwargs in ({"temperature": 0}, {"seed": 3}, {"seed": 3, "repeat_penalty": 1.4}):
        with_, without = (
            list(new_engine().submit(PROMPT, SamplingParams(max_tokens=12, logprobs=n, **kwargs)))
            for n in (2, None)
        )
        assert with_ == without


@pytest.mark.parametrize("max_logits", [1, 3, 100])
@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_those_of_the_prompt(max_logits, max_tokens):
    engine = new_engine(max_logits=max_logits)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, prompt_logprobs=2)
    for _ in range(2):  # the second time, all is in the cache, but must be computed for the logits
        generation = engine.submit(PROMPT, params)
        assert len(list(generation)) == max_tokens
        entries = generation.prompt_logprobs
        assert entries[0] is None
        assert len(entries) == len(PROMPT)
        for i, entry in enumerate(entries[1:], 1):
            assert entry is not None
            check(entry, after(PROMPT[:i]), PROMPT[i], 2)
        assert generation.stats.cached_tokens == 0
    plain = engine.submit(PROMPT, SamplingParams(temperature=0, max_tokens=1))
    assert list(plain)
    assert plain.stats.cached_tokens == len(PROMPT) - 1  # others go on as ever


def test_many_at_a_time_where_pages_are_short():
    """Requests that are set back in the middle of their prompts lose nothing, and get nothing twice."""
    engine = new_engine(max_sequences=4, max_logits=5, n_pages=14)
    prompts = [[(k * i + k) % VOCAB for i in range(11 + k)] for k in range(1, 9)]
    params = [
        SamplingParams(
            temperature=0, max_tokens=8, prompt_logprobs=1 if k % 2 else None, logprobs=k if k % 3 else None
        )
        for k in range(8)
    ]
    generations = [engine.submit(ids, each) for ids, each in zip(prompts, params, strict=True)]
    for ids, each, generation in zip(prompts, params, generations, strict=True):
        tokens = list(generation)
        assert len(tokens) == 8
        assert len(generation.logprobs) == (0 if each.logprobs is None else 8)
        for i, entry in enumerate(generation.logprobs):
            check(entry, after(ids + tokens[:i]), tokens[i], each.logprobs)
        assert len(generation.prompt_logprobs) == (len(ids) if each.prompt_logprobs else 0)
        for i, entry in enumerate(generation.prompt_logprobs[1:], 1):
            check(entry, after(ids[:i]), ids[i], 1)


def test_an_interrupt_leaves_them_parallel_to_the_tokens():
    engine = new_engine()
    generation = engine.submit(
        PROMPT, SamplingParams(temperature=0, max_tokens=10, logprobs=1, prompt_logprobs=0)
    )

    def interrupt():
        if len(engine.machine.fed) in (2, 5, 9) and engine.machine.fed[-1] != -1:
            engine.machine.fed.append(-1)
            raise KeyboardInterrupt

    engine.machine.before_step = interrupt
    tokens: list[int] = []
    interrupts = 0
    while len(tokens) < 10:
        try:
            tokens.append(next(generation))
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 3
    for i, entry in enumerate(generation.logprobs):
        check(entry, after(PROMPT + tokens[:i]), tokens[i], 1)
    for i, entry in enumerate(generation.prompt_logprobs[1:], 1):
        check(entry, after(PROMPT[:i]), PROMPT[i], 0)


def test_a_prompt_of_one_token():
    generation = new_engine().submit([5], SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1))
    assert len(list(generation)) == 2
    assert generation.prompt_logprobs == [None]
