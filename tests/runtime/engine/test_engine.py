"""Engine, on a machine whose logits depend on the whole history as the page table tells it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.errors import BadLogits, ContextExceeded, StaleGeneration
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.sampling.top_k import MAX_TOP_K, TopK, top_k_of

VOCAB = 50
GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True)
class Config:
    vocab_size: int = VOCAB


class HistoryMachine:
    """Keeps (token, position) of every row in its pages; the logits of a row are random numbers seeded
    with all it finds there for its sequence. A wrong page, position or order changes them."""

    def __init__(self, table: PageTable, max_rows: int = 8, max_logits: int = 4) -> None:
        self.max_rows = max_rows
        self.max_logits = max_logits
        self.pool = np.full((table.n_pages, table.page_size, 2), -7)
        self.fed: list[int] = []  # rows of each step
        self.before_step = self.after_step = lambda: None
        self.change = lambda logits: logits
        self.logits_of = expected_logits
        self.out = np.zeros((max_logits, VOCAB), np.float32)

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        n = len(batch.tokens)
        for array in (batch.tokens, batch.sequences, batch.positions, batch.logits_indices):
            assert array.dtype == np.int32
        assert 0 < n <= self.max_rows
        assert len(batch.sequences) == len(batch.positions) == n
        assert len(batch.logits_indices) <= self.max_logits
        self.before_step()
        self.fed.append(n)
        rows = zip(batch.tokens, batch.sequences, batch.positions, strict=True)
        self.out[:] = np.nan  # the last step's logits are gone
        for row, (token, sequence, position) in enumerate(rows):
            assert position < table.lengths[sequence]
            page = table.blocks[sequence, position // table.page_size]
            self.pool[page, position % table.page_size] = token, position
            if row in batch.logits_indices:
                pages = self.pool[table.blocks[sequence, : position // table.page_size + 1]]
                seen = pages.reshape(-1, 2)[: position + 1]
                index = int(np.searchsorted(batch.logits_indices, row))
                self.out[index] = self.change(self.logits_of(seen))
        self.after_step()
        return self.out[: len(batch.logits_indices)]

    def copy_page(self, source: int, target: int) -> None:
        self.pool[target] = self.pool[source]

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        return top_k_of(self.step(batch, table)[:, :n_tokens], k)


def expected_logits(seen: np.ndarray) -> np.ndarray:
    seed = np.asarray(seen).astype(np.uint32).ravel()
    return np.random.default_rng(seed).normal(size=VOCAB).astype(np.float32)


def after(ids: list[int]) -> np.ndarray:
    """The right logits after `ids`."""
    return expected_logits(np.array([[token, position] for position, token in enumerate(ids)]))


def greedy(ids: list[int], n: int) -> list[int]:
    ids = list(ids)
    for _ in range(n):
        ids.append(int(after(ids).argmax()))
    return ids[-n:]


def new_engine(
    n_pages: int = 16, page_size: int = 4, end_ids=(), max_rows=8, max_logits=4, **kwargs
) -> Engine:
    table = PageTable(n_pages, page_size=page_size)
    return Engine(HistoryMachine(table, max_rows, max_logits), table, Config(), end_ids, **kwargs)


def take(iterator, n: int) -> list[int]:
    return [next(iterator) for _ in range(n)]


# ---- prefill and decode


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 31])
@pytest.mark.parametrize("max_rows", [1, 5, 8, 100])
def test_generates_what_the_whole_history_gives(length, max_rows):
    engine = new_engine(max_rows=max_rows)
    prompt = [3 * i % VOCAB for i in range(length)]
    assert take(engine.generate(prompt, GREEDY), 12) == greedy(prompt, 12)


def test_prefill_comes_in_chunks_and_decode_in_ones():
    engine = new_engine()
    list(engine.generate(list(range(19)), SamplingParams(temperature=0, max_tokens=3)))
    assert engine.machine.fed == [8, 8, 3, 1, 1]  # the third token is never fed
    engine = new_engine(prefill_chunk=5)
    list(engine.generate(list(range(10)), SamplingParams(temperature=0, max_tokens=1)))
    assert engine.machine.fed == [5, 5]


def test_stats_tell_how_far_prefill_is() -> None:
    engine = new_engine(prefill_chunk=5)
    seen: list[int] = []
    engine.machine.before_step = lambda: seen.append(engine.stats.prefilled_tokens)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    list(engine.generate(prompt, SamplingParams(temperature=0, max_tokens=2)))
    assert seen == [0, 5, 10, 12]
    seen.clear()
    list(engine.generate([*prompt[:6], 20, 21, 22], SamplingParams(temperature=0, max_tokens=1)))
    assert seen == [0]
    assert (engine.stats.cached_tokens, engine.stats.prefilled_tokens) == (6, 3)


def test_ids_may_be_an_array_or_a_tuple():
    expected = greedy([1, 2, 3], 4)
    for ids in ((1, 2, 3), np.array([1, 2, 3], np.int32), np.array([1, 2, 3], np.uint16)):
        tokens = take(new_engine().generate(ids, GREEDY), 4)
        assert tokens == expected
        assert all(type(token) is int for token in tokens)


def test_the_callers_list_is_not_kept():
    engine = new_engine()
    prompt = [1, 2, 3]
    tokens = engine.generate(prompt, GREEDY)
    prompt[0] = 9
    assert next(tokens) == greedy([1, 2, 3], 1)[0]


# ---- prefix reuse


class LengthMachine:
    """Keeps in its pages, by position, whether the key was made for a sequence of more than 8 tokens."""

    max_rows = max_logits = 3

    def __init__(self):
        self.pool = np.zeros((16, 4), bool)
        self.long: list[bool] = []  # of the positions of the sequence of the last step

    def copy_page(self, source, target):
        self.pool[target] = self.pool[source]

    def step(self, batch, table):
        pages = table.blocks[batch.sequences, batch.positions // 4]
        self.pool[pages, batch.positions % 4] = batch.sequence_lengths() > 8
        n = int(batch.positions[-1]) + 1
        self.long = self.pool[table.pages(int(batch.sequences[0]))].ravel()[:n].tolist()
        return np.ones((len(batch.logits_indices), VOCAB), np.float32)

    def top_k(self, batch, table, k, n_tokens):
        return top_k_of(self.step(batch, table), k)


def test_keys_rotated_for_short_and_long_sequences_are_not_mixed():
    table = PageTable(16, page_size=4)
    machine = LengthMachine()
    engine = Engine(machine, table, Config(), original_context=8)
    few = SamplingParams(temperature=0, max_tokens=1)

    def after(prompt, params=few):
        tokens = list(engine.generate(prompt, params))
        return engine.stats.cached_tokens, machine.long, tokens

    assert after([1] * 6)[:2] == (0, [False] * 6)
    assert after([1] * 8)[:2] == (6, [False] * 8)
    assert after([1] * 10)[:2] == (0, [True] * 10)  # in chunks of three, and long from the first on
    assert after([1] * 12)[:2] == (10, [True] * 12)
    assert after([1] * 7)[:2] == (6, [False] * 7)  # those of the first two prompts
    # A generation goes on across the length with the keys that it has; the next prompt does without them.
    cached, long, tokens = after([1] * 7, SamplingParams(temperature=0, max_tokens=4))
    assert (cached, long) == (6, [False] * 8 + [True] * 2)
    assert after([1] * 7 + tokens)[:2] == (7, [True] * 11)
    engine.logits([1] * 9)
    assert machine.long == [True] * 9


def test_next_turn_computes_only_what_is_new():
    engine = new_engine()
    prompt = [1, 2, 3, 4, 5]
    answer = list(engine.generate(prompt, SamplingParams(temperature=0, max_tokens=6)))
    engine.machine.fed.clear()
    second = [*prompt, *answer, 7, 8]
    more = list(engine.generate(second, SamplingParams(temperature=0, max_tokens=4)))
    assert more == greedy(second, 4)
    # 5 + 5 fed tokens were there; the answer's last token was sampled but never fed.
    assert (engine.stats.prompt_tokens, engine.stats.cached_tokens) == (13, 10)
    assert engine.machine.fed == [3, 1, 1, 1]


@pytest.mark.parametrize("shared", [0, 1, 3, 4, 5, 8, 11])
def test_a_different_continuation_leaves_the_first_in_the_cache(shared):
    engine = new_engine()
    first = list(range(12))
    take(engine.generate(first, GREEDY), 9)
    second = [*first[:shared], 40, 41]
    assert take(engine.generate(second, GREEDY), 9) == greedy(second, 9)
    assert engine.stats.cached_tokens == shared
    third = [*first, 5]
    assert take(engine.generate(third, GREEDY), 3) == greedy(third, 3)
    assert engine.stats.cached_tokens == len(first)


def test_the_last_prompt_token_is_computed_again():
    engine = new_engine()
    prompt = list(range(9))
    for cached in (0, 8, 8):
        assert take(engine.generate(prompt, GREEDY), 5) == greedy(prompt, 5)
        assert engine.stats.cached_tokens == cached
    assert take(engine.generate(prompt[:4], GREEDY), 5) == greedy(prompt[:4], 5)  # a shorter one
    assert engine.stats.cached_tokens == 3


def test_end_token_is_not_in_the_cache_until_the_caller_feeds_it():
    prompt = [1, 2, 3]
    end = greedy(prompt, 3)[-1]
    engine = new_engine(end_ids=[end])
    answer = list(engine.generate(prompt, GREEDY))
    assert end not in answer
    follow = [*prompt, *answer, end, 9]
    take(engine.generate(follow, GREEDY), 1)
    assert engine.stats.cached_tokens == len(prompt) + len(answer)


def test_reset_forgets():
    engine = new_engine()
    take(engine.generate([1, 2, 3, 4, 5], GREEDY), 3)
    engine.reset()
    assert engine.table.lengths[0] == 0
    assert take(engine.generate([1, 2, 3, 4, 5], GREEDY), 3) == greedy([1, 2, 3, 4, 5], 3)
    assert engine.stats.cached_tokens == 0


# ---- how it ends


def test_ends_on_any_end_token_without_yielding_it():
    whole = greedy([1, 2, 3], 10)
    for stop_at in (0, 4):
        engine = new_engine(end_ids=[whole[stop_at], 999])
        tokens = list(engine.generate([1, 2, 3], GREEDY))
        assert tokens == whole[: whole.index(whole[stop_at])]
        assert engine.stats.finish_reason == "stop"
        assert engine.stats.new_tokens == len(tokens)


def test_ignore_eos():
    whole = greedy([1, 2, 3], 8)
    engine = new_engine(end_ids=whole)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=8)
    assert list(engine.generate([1, 2, 3], params)) == whole
    assert engine.stats.finish_reason == "length"


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_max_tokens(max_tokens):
    engine = new_engine()
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    assert len(list(engine.generate([1, 2], params))) == max_tokens
    assert engine.stats.finish_reason == "length"
    assert engine.stats.new_tokens == max_tokens


@pytest.mark.parametrize(("context", "length"), [(16, 3), (16, 15), (16, 16), (13, 3), (13, 13)])
def test_context_full(context, length):
    engine = new_engine(n_pages=4, context=context)
    prompt = list(range(length))
    tokens = list(engine.generate(prompt, GREEDY))
    # Every token but the last was fed; the last needs no room.
    assert len(tokens) == context - length + 1
    assert tokens == greedy(prompt, len(tokens))
    assert engine.stats.finish_reason == "context"


def test_prompt_that_does_not_fit():
    engine = new_engine(n_pages=4, context=13)
    take(engine.generate([1, 2, 3], GREEDY), 2)
    for call in (engine.generate, engine.logits):
        with pytest.raises(ContextExceeded, match=r"\b14\b.*\b13\b"):
            call(list(range(14)))
    assert take(engine.generate([1, 2, 3, 4], GREEDY), 1) == greedy([1, 2, 3, 4], 1)
    assert engine.stats.cached_tokens == 3  # the refusal did not cost the cache


def test_context_must_fit_the_table():
    with pytest.raises(ValueError, match="65"):
        new_engine(context=65)
    with pytest.raises(ValueError, match="0"):
        new_engine(context=0)


# ---- bad input


@pytest.mark.parametrize("ids", [[], (), np.array([], np.int64)])
def test_empty_prompt(ids):
    with pytest.raises(ValueError, match="empty"):
        new_engine().generate(ids, GREEDY)


@pytest.mark.parametrize(("ids", "wrong"), [([1, 50], "50"), ([-1, 2], "-1"), ([1, 2**40], str(2**40))])
def test_ids_out_of_range(ids, wrong):
    for call in (new_engine().generate, new_engine().logits):
        with pytest.raises(ValueError, match=rf"token id {wrong} .*50"):
            call(ids)


@pytest.mark.parametrize("ids", [[1.0, 2.0], ["a"], "abc", [[1, 2]], 5, [2**70], [True, False], None])
def test_ids_of_the_wrong_type(ids):
    with pytest.raises(TypeError, match="token ids"):
        new_engine().generate(ids, GREEDY)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_logits_name_the_step_and_leave_the_engine_usable(bad):
    engine = new_engine()

    def spoil(logits):
        if engine.table.lengths[0] == 7:
            logits[3] = bad
        return logits

    engine.machine.change = spoil
    tokens = engine.generate([1, 2, 3, 4, 5], GREEDY)
    take(tokens, 2)
    with pytest.raises(BadLogits, match=r"token 3 of the answer \(position 7\): the logits contain"):
        next(tokens)
    assert engine.stats.finish_reason == "interrupted"
    engine.machine.change = lambda logits: logits
    assert take(engine.generate([1, 2, 3, 4, 5], GREEDY), 5) == greedy([1, 2, 3, 4, 5], 5)


def test_all_minus_infinity():
    engine = new_engine()
    engine.machine.change = lambda logits: logits * 0 - np.inf
    with pytest.raises(BadLogits, match=r"token 1 .*all logits are -inf"):
        next(engine.generate([1, 2], SamplingParams()))


# ---- interruption


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("moment", ["before_step", "after_step"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_step_leaves_the_engine_consistent(step, moment, error):
    engine = new_engine()
    prompt = list(range(20))  # three chunks, then decode

    def interrupt():
        if len(engine.machine.fed) == step + (moment == "after_step"):
            raise error

    setattr(engine.machine, moment, interrupt)
    tokens = engine.generate(prompt, GREEDY)
    with pytest.raises(error):
        take(tokens, 10)
    assert engine.stats.finish_reason == "interrupted"
    setattr(engine.machine, moment, lambda: None)
    rows = sum(engine.machine.fed[:step])  # those of the interrupted step do not count
    assert engine.table.lengths[0] == 0
    assert take(engine.generate(prompt, GREEDY), 10) == greedy(prompt, 10)
    assert engine.stats.cached_tokens == min(rows, len(prompt) - 1)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_closing_early(n):
    engine = new_engine()
    tokens = engine.generate([1, 2, 3], GREEDY)
    got = take(tokens, n)
    tokens.close()
    if n:
        assert engine.stats.finish_reason == "interrupted"
        assert engine.stats.new_tokens == n
    follow = [1, 2, 3, *got, 8]
    assert take(engine.generate(follow, GREEDY), 4) == greedy(follow, 4)
    assert engine.stats.cached_tokens == (3 + n - 1 if n else 0)


def test_ctrl_c_in_the_consumer():
    engine = new_engine()

    def consume():
        for _ in engine.generate([1, 2, 3], GREEDY):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert take(engine.generate([1, 2, 3], GREEDY), 4) == greedy([1, 2, 3], 4)


def test_two_generations_at_once_both_go_on():
    engine = new_engine()
    first = engine.generate([1, 2, 3], GREEDY)
    assert take(first, 2) == greedy([1, 2, 3], 2)
    second = engine.generate([1, 2, 4], GREEDY)
    assert take(second, 3) == greedy([1, 2, 4], 3)
    assert take(first, 2) == greedy([1, 2, 3], 4)[2:]
    np.testing.assert_array_equal(engine.logits([1, 2])[1], after([1, 2]))
    assert take(second, 2) == greedy([1, 2, 4], 5)[3:]
    assert take(first, 1) == greedy([1, 2, 3], 5)[4:]


def test_logits_in_parts_cannot_go_on_behind_another_call():
    engine = new_engine()
    parts = engine.logits_in_parts(list(range(9)))
    next(parts)
    take(engine.generate([1, 2, 3], GREEDY), 1)
    with pytest.raises(StaleGeneration, match="cannot go on"):
        next(parts)


# ---- logits


@pytest.mark.parametrize(("rows", "max_logits"), [(8, 4), (3, 8), (1, 1)])
@pytest.mark.parametrize("length", [1, 4, 5, 30])
def test_logits_of_every_position(rows, max_logits, length):
    engine = new_engine(max_rows=rows, max_logits=max_logits)
    ids = [7 * i % VOCAB for i in range(length)]
    expected = np.stack([after(ids[: i + 1]) for i in range(length)])
    for _ in range(2):
        got = engine.logits(ids)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, expected)
        assert max(engine.machine.fed) <= min(rows, max_logits)
        take(engine.generate([1, 2, *ids], GREEDY), 2)
        engine.machine.fed.clear()


def test_logits_are_a_copy_and_never_cached():
    engine = new_engine()
    first = engine.logits([1, 2, 3])
    kept = first.copy()
    engine.machine.fed.clear()
    engine.logits([1, 2, 3, 4])
    np.testing.assert_array_equal(first, kept)
    assert sum(engine.machine.fed) == 4


def test_logits_of_nothing():
    assert new_engine().logits([]).shape == (0, VOCAB)


# ---- sampling and statistics


def test_seeds():
    def run(seed, engine):
        return list(engine.generate([1, 2, 3], SamplingParams(temperature=2.0, seed=seed, max_tokens=20)))

    engine = new_engine()
    assert run(5, engine) == run(5, engine) == run(5, new_engine())
    assert run(5, engine) != run(6, engine)


def test_repeat_penalty_sees_prompt_and_answer():
    prompt = [1, 2, 3]
    engine = new_engine()
    params = SamplingParams(temperature=0, repeat_penalty=1e9, repeat_last_n=-1, max_tokens=8)
    tokens = list(engine.generate(prompt, params))
    seen = list(prompt)
    for token in tokens:
        logits = after(seen)
        logits[seen] = np.where(logits[seen] > 0, 0, -np.inf)
        assert token == int(logits.argmax())
        seen.append(token)
    assert len({*prompt, *tokens}) == 11


def test_statistics():
    engine = new_engine()
    assert engine.stats.finish_reason is None
    tokens = engine.generate(list(range(10)), SamplingParams(temperature=0, max_tokens=5))
    next(tokens)
    stats = engine.stats
    assert stats.finish_reason is None
    assert 0 < stats.prompt_seconds <= stats.time_to_first_token
    assert stats.tokens_per_second == 0
    list(tokens)
    assert (stats.prompt_tokens, stats.cached_tokens, stats.new_tokens, stats.decode_steps) == (10, 0, 5, 4)
    assert stats.tokens_per_second == pytest.approx(4 / stats.decode_seconds)
    assert stats.prompt_tokens_per_second == pytest.approx(10 / stats.prompt_seconds)
    take(engine.generate(list(range(10)), GREEDY), 1)
    assert stats.new_tokens == 5  # the earlier generation's statistics stay what they were
    assert engine.stats.cached_tokens == 9


def test_the_consumers_time_does_not_count(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("kukri.runtime.engine.scheduling.scheduler.perf_counter", lambda: next(clock))
    engine = new_engine()
    for _ in engine.generate([1, 2], SamplingParams(temperature=0, max_tokens=4)):
        for _ in range(50):
            next(clock)
    assert engine.stats.decode_seconds == 3
    assert engine.stats.tokens_per_second == 1.0


def test_padded_vocabularies_are_not_sampled_from():
    """Logits beyond the tokenizer's last token exist, may be the largest, and are never chosen."""
    table = PageTable(4)
    everything = Engine(HistoryMachine(table), table, Config())
    free = list(everything.generate([1, 2], SamplingParams(temperature=0, max_tokens=20)))
    assert max(free) >= 30
    table = PageTable(4)
    engine = Engine(HistoryMachine(table), table, Config(), n_tokens=30)
    params = SamplingParams(temperature=0, max_tokens=20, repeat_penalty=1.2)
    assert max(engine.generate([1, 45], params)) < 30
    assert engine.logits([1, 45]).shape == (2, VOCAB)


def test_a_step_has_512_rows_unless_told_otherwise():
    engine = new_engine(n_pages=300, max_rows=10_000)
    list(engine.generate([1] * 1100, SamplingParams(temperature=0, max_tokens=1)))
    assert engine.machine.fed == [512, 512, 76]


def test_the_machine_is_asked_for_the_top_k_that_the_sampler_needs(monkeypatch):
    asked = []
    monkeypatch.setattr(
        HistoryMachine,
        "top_k",
        lambda self, batch, table, k, n_tokens: asked.append(k) or top_k_of(self.step(batch, table), k),
    )
    engine = new_engine()
    for params in ({"temperature": 0}, {"top_k": 3}, {"top_k": 0}, {"repeat_penalty": 0.5}):
        list(engine.generate([1, 2, 3], SamplingParams(max_tokens=2, seed=1, **params)))
    assert asked == [1, 1, 3, 3]
    asked.clear()
    most = SamplingParams(max_tokens=1, seed=1, temperature=0, repeat_penalty=1.1, repeat_last_n=-1)
    list(new_engine(n_pages=300, max_rows=1000).generate([1] * (MAX_TOP_K - 1), most))
    assert asked == [MAX_TOP_K]
    list(new_engine(n_pages=300, max_rows=1000).generate([1] * MAX_TOP_K, most))
    assert asked == [MAX_TOP_K]  # more than it gives: all logits instead


def test_a_prompt_in_steps_is_told_its_length_until_the_last(monkeypatch):
    """A step that ends its sequence is told nothing; a generated token neither."""
    told = []
    step = HistoryMachine.step

    def spy(self, batch, table):
        told.append(None if batch.lengths is None else batch.lengths.tolist())
        return step(self, batch, table)

    monkeypatch.setattr(HistoryMachine, "step", spy)
    list(new_engine().generate(list(range(10)), SamplingParams(temperature=0, max_tokens=2)))
    assert told == [[10] * 8, None, None]
    told.clear()
    new_engine().logits(list(range(6)))
    assert told == [[6] * 4, None]


def test_without_an_original_context_the_next_prompt_reuses_the_cache_at_any_length():
    engine = new_engine()
    for n, cached in ((6, 0), (9, 6), (4, 3), (12, 9)):
        list(engine.generate([1] * n, SamplingParams(temperature=0, max_tokens=1)))
        assert engine.stats.cached_tokens == cached
