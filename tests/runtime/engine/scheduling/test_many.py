"""Many requests on one engine: whatever runs beside a request, its tokens are those of the request alone."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.errors import BadLogits, ModelClosed, QueueFull
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.scheduling.generation import Generation

from ..test_engine import GREEDY, VOCAB, Config, HistoryMachine, greedy


def new_engine(
    n_pages: int = 64, max_sequences: int = 4, max_rows: int = 8, max_logits: int = 8, **more
) -> Engine:
    table = PageTable(n_pages, max_sequences, page_size=4)
    return Engine(HistoryMachine(table, max_rows, max_logits), table, Config(), **more)


def few(n: int, **more) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, **more)


def in_threads(work: Callable[[int], None], n: int) -> None:
    """Call `work` with each of 0 … n - 1 in a thread of its own, and wait for a minute for all to end."""
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def check_pages(engine: Engine) -> None:
    """When nothing runs, all pages are free but those that the prefix tree keeps, and `reset` frees these."""
    with engine._driver.exclusive():  # behind the step that may be running
        assert not engine._scheduler.running
    assert not engine.table.lengths.any()
    assert engine.table.references.max() <= 1
    assert engine.table.references.sum() == engine.table.n_pages - engine.table.free_pages
    engine.reset()
    assert engine.table.free_pages == engine.table.n_pages


def test_requests_run_together_and_give_what_each_gives_alone():
    engine = new_engine()
    prompts = [[i, i + 1, i + 2] * (i + 1) for i in range(4)]
    generations = [engine.submit(prompt, few(6)) for prompt in prompts]
    assert [list(g) for g in generations] == [greedy(prompt, 6) for prompt in prompts]
    assert 4 in engine.machine.fed  # decode rows of all four in one step
    assert [g.finish_reason for g in generations] == ["length"] * 4
    check_pages(engine)


def test_a_long_prompt_does_not_stop_the_others():
    """While it is read, sequences that decode get a token in every step."""
    engine = new_engine(max_rows=200, prefill_chunk=64)
    first = engine.submit([1, 2, 3], few(30))
    next(first)
    long = engine.submit([7] * 150, few(2))
    engine.machine.fed.clear()
    list(first)
    mixed = [n for n in engine.machine.fed if n > 2]
    assert len(mixed) >= 2
    assert max(mixed) <= 64 + 1
    assert list(long) == greedy([7] * 150, 2)


def test_requests_beyond_the_slots_wait_in_order_of_priority_and_arrival():
    engine = new_engine(max_sequences=1)
    ended: list[str] = []
    generations = {
        name: engine.submit([i + 1] * 3, few(2), priority)
        for i, (name, priority) in enumerate([("a", 0), ("b", 0), ("urgent", 5), ("c", -1), ("d", 0)])
    }
    for name, generation in generations.items():
        generation._sequence.listener = lambda name=name, g=generation: g.finish_reason and ended.append(name)
    for generation in generations.values():
        list(generation)
    assert list(dict.fromkeys(ended)) == ["urgent", "a", "b", "d", "c"]


def test_when_pages_run_out_the_youngest_is_set_back_and_resumed_with_its_tokens():
    engine = new_engine(n_pages=10, max_sequences=3)  # 40 tokens for three sequences of 25
    prompts = [[10 * i + j for j in range(9)] for i in range(1, 4)]
    generations = [engine.submit(prompt, few(16)) for prompt in prompts]
    assert [list(g) for g in generations] == [greedy(prompt, 16) for prompt in prompts]
    assert generations[0].stats.prompt_tokens == 9
    check_pages(engine)


def test_a_cancelled_request_frees_its_pages_at_once():
    engine = new_engine(n_pages=8)
    kept, dropped = engine.submit([1, 2, 3], few(3)), engine.submit([4] * 13, few(9))
    next(kept)
    dropped.cancel()
    assert dropped.finish_reason == "interrupted"
    assert list(kept) == greedy([1, 2, 3], 3)[1:]
    check_pages(engine)
    waiting = engine.submit([5, 6], few(2))
    waiting.close()
    assert list(waiting) == []
    check_pages(engine)


def test_a_forgotten_generation_ends():
    engine = new_engine()
    generation = engine.submit([1, 2, 3], few(50))
    next(generation)
    del generation
    gc.collect()
    assert not engine._scheduler.running
    check_pages(engine)


def test_the_queue_is_bounded():
    engine = new_engine(max_waiting=3)
    for i in range(3):
        generation = engine.submit([i], few(1))
        generation._sequence.listener = lambda g=generation: None  # keeps it
    with pytest.raises(QueueFull, match="3 requests"):
        engine.submit([9], few(1))


def test_shared_prefixes_are_computed_once():
    engine = new_engine(max_rows=64)
    system = [3 * i % VOCAB for i in range(21)]
    generations = [engine.submit([*system, 40 + i], few(4)) for i in range(4)]
    for i, generation in enumerate(generations):
        assert list(generation) == greedy([*system, 40 + i], 4)
    assert [g.stats.cached_tokens for g in generations] == [0, 21, 21, 21]
    assert sum(engine.machine.fed) == 22 + 3 + 4 * 3
    later = engine.submit([*system[:10], 1], few(1))
    assert list(later) == greedy([*system[:10], 1], 1)
    assert later.stats.cached_tokens == 10
    check_pages(engine)


def test_the_least_recently_used_pages_go_first():
    engine = new_engine(n_pages=8, max_sequences=1)
    for first in (1, 2, 3):  # two pages each
        list(engine.submit([first] * 7, few(1)))
    list(engine.submit([1] * 7, few(1)))  # the first is the newest now
    list(engine.submit([4] * 15, few(1)))  # four pages: room for one of the others only
    again = engine.submit([1] * 7, few(1))
    list(again)
    assert again.stats.cached_tokens == 6


def test_without_sharing_every_request_is_computed_by_itself():
    engine = new_engine(deterministic=True)
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9, i] for i in range(3)]
    generations = [engine.submit(prompt, few(3)) for prompt in prompts]
    assert [list(g) for g in generations] == [greedy(prompt, 3) for prompt in prompts]
    assert [g.stats.cached_tokens for g in generations] == [0] * 3
    assert set(engine.machine.fed) == {8, 2, 1}  # prompts in chunks of their own, decode alone
    check_pages(engine)


def test_bad_logits_end_one_sequence_and_no_other():
    engine = new_engine()

    def spoil(logits):
        return logits * np.nan if int(logits.argmax()) == bad else logits

    engine.machine.change = spoil
    bad = greedy([5, 6], 3)[-1]
    fine, spoiled = engine.submit([1, 2, 3], few(4)), engine.submit([5, 6], few(4))
    expected = greedy([1, 2, 3], 4)
    assert bad not in expected
    assert list(fine) == expected
    tokens = [next(spoiled), next(spoiled)]
    assert tokens == greedy([5, 6], 2)
    with pytest.raises(BadLogits, match="token 3 of the answer"):
        next(spoiled)
    assert spoiled.finish_reason == "interrupted"
    check_pages(engine)


def test_an_error_of_the_machine_reaches_every_sequence_of_the_step():
    engine = new_engine()
    generations = [engine.submit([i, 1], few(4)) for i in range(3)]
    for generation in generations:
        next(generation)

    def fail() -> None:
        raise MemoryError("the machine")

    engine.machine.before_step = fail
    for generation in generations:
        with pytest.raises(MemoryError, match="the machine"):
            list(generation)
    engine.machine.before_step = lambda: None
    assert list(engine.submit([1, 2], few(2))) == greedy([1, 2], 2)
    check_pages(engine)


def test_an_interrupt_ends_no_other_sequence():
    engine = new_engine()
    first, second = engine.submit([1, 2], few(6)), engine.submit([3, 4], few(6))
    got = [next(first)]

    def interrupt() -> None:
        engine.machine.after_step = lambda: None
        raise KeyboardInterrupt

    engine.machine.after_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(first)
    got += list(first)
    assert got == greedy([1, 2], 6)
    assert list(second) == greedy([3, 4], 6)
    check_pages(engine)


def run_randomly(engine: Engine, seed: int, count: int, generations: list) -> None:
    """Submit requests, read and cancel them at random; each must be what it is alone."""
    draw = random.Random(seed)
    for number in range(count):
        shared = [9, 8, 7, 6, 5, 4, 3, 2, 1][: draw.randrange(10)]
        prompt = [*shared, *(draw.randrange(VOCAB) for _ in range(1 + draw.randrange(14)))]
        n = draw.randrange(1, 14)
        generation = engine.submit(prompt, few(n), draw.choice([0, 0, 0, 1, -1]))
        if draw.random() < 0.3:
            generations.append((generation, prompt, n))
            continue
        if draw.random() < 0.2:
            keep = draw.randrange(3)
            got = [token for token, _ in zip(generation, range(keep), strict=False)]
            generation.cancel()
            assert got == greedy(prompt, keep)[: len(got)]
        else:
            assert list(generation) == greedy(prompt, n), (seed, number)
    for generation, prompt, n in generations:
        assert list(generation) == greedy(prompt, n)


@pytest.mark.parametrize("seed", range(4))
def test_random_requests_one_after_the_other(seed):
    engine = new_engine(n_pages=24, max_sequences=5, max_rows=16, max_logits=16)
    run_randomly(engine, seed, 150, [])
    check_pages(engine)


@pytest.mark.parametrize("own_thread", [False, True])
def test_random_requests_from_eight_threads(own_thread):
    engine = new_engine(n_pages=24, max_sequences=5, max_rows=16, max_logits=16)
    if own_thread:
        engine.start()
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            run_randomly(engine, seed, 25, [])
        except BaseException as problem:  # noqa: BLE001 - shown by the main thread
            problems.append(problem)

    in_threads(work, 8)
    assert not problems
    check_pages(engine)
    engine.close()


def test_coroutines_read_generations():
    engine = new_engine(max_sequences=3)
    prompts = [[i, 2 * i, 5] for i in range(7)]

    async def read(prompt: list[int]) -> list[int]:
        return [token async for token in engine.submit(prompt, few(5))]

    async def stop_early() -> list[int]:
        tokens = []
        async for token in engine.submit([1, 1, 1], few(1000)):
            tokens.append(token)
            if len(tokens) == 3:
                break
        return tokens

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*map(read, prompts), stop_early())

    *answers, early = asyncio.run(all_of_them())
    assert answers == [greedy(prompt, 5) for prompt in prompts]
    assert early == greedy([1, 1, 1], 3)
    gc.collect()
    check_pages(engine)
    engine.close()


def test_a_cancelled_coroutine_ends_its_generation():
    engine = new_engine()
    engine.machine.before_step = lambda: time.sleep(0.0001)  # in which the coroutine may run

    async def read(generation: Generation) -> None:
        async for _ in generation:
            pass

    async def cancel() -> Generation:
        generation = engine.submit([1, 2], SamplingParams(temperature=0, ignore_eos=True, max_tokens=200))
        task = asyncio.create_task(read(generation))
        while not generation.tokens:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return generation

    generation = asyncio.run(cancel())
    assert generation.finish_reason == "interrupted"
    check_pages(engine)
    engine.close()


def test_logits_may_be_asked_for_while_others_generate():
    engine = new_engine()
    generation = engine.submit([1, 2, 3], few(10))
    got = [next(generation), next(generation)]
    logits = engine.logits([4, 5, 6])
    assert logits.shape == (3, VOCAB)
    got += list(generation)
    assert got == greedy([1, 2, 3], 10)


def test_a_generator_runs_a_few_tokens_ahead_and_no_more():
    engine = new_engine()
    lazy = engine.generate([1, 2], GREEDY)
    assert next(lazy) == greedy([1, 2], 1)[0]
    list(engine.submit([3, 4], few(30)))
    assert engine.machine.fed.count(2) < 15  # the other one went on alone
    assert [next(lazy) for _ in range(20)] == greedy([1, 2], 21)[1:]


@pytest.mark.parametrize("own_thread", [False, True])
def test_closing_ends_all_generations(own_thread):
    engine = new_engine(max_sequences=2)
    if own_thread:
        engine.start()
    generations = [engine.submit([i, 1], few(10_000)) for i in range(3)]
    next(generations[0])
    engine.close()
    engine.close()
    for generation in generations:
        with pytest.raises(ModelClosed, match="is closed"):
            list(generation)
    for call in (lambda: engine.submit([1]), lambda: next(engine.generate([1])), lambda: engine.logits([1])):
        with pytest.raises(ModelClosed, match="is closed"):
            call()
    assert not engine.table.lengths.any()


def test_where_a_step_has_too_few_rows_sequences_take_turns():
    engine = new_engine(max_sequences=6, max_rows=3, max_logits=2)
    prompts = [[i, 5] for i in range(6)]
    generations = [engine.submit(prompt, few(20)) for prompt in prompts]
    got = []
    while len(generations[5].tokens) < 5:
        got.append(next(generations[0]))
    assert len(got) < 15
    assert max(len(generation.tokens) for generation in generations[1:]) < 15
    answers = [[*got, *generations[0]], *map(list, generations[1:])]
    assert answers == [greedy(prompt, 20) for prompt in prompts]
    check_pages(engine)


def test_an_answer_that_fills_the_context_has_ended():
    """Also if it is set back at once: there is no room for all its tokens."""
    engine = new_engine(n_pages=4, max_sequences=2)  # 16 tokens
    full = engine.submit([1, 2, 3], SamplingParams(temperature=0, ignore_eos=True))
    for _ in range(14):
        next(full)
    assert full.finish_reason == "context"
    engine.logits([4])
    assert list(full) == []


def test_a_paused_sequence_does_not_stop_those_that_begin_like_it():
    """Nor while its pages were taken and are computed again."""
    engine = new_engine(n_pages=12, max_sequences=2)
    prompt = [9, 8, 7, 6, 5, 4, 3, 2, 1] * 2
    lazy = engine.generate(prompt, GREEDY)
    next(lazy)
    list(engine.submit([4, 4], few(30)))  # it pauses, as far ahead as it may be
    engine.reset()
    assert list(engine.submit([*prompt, 1], few(3))) == greedy([*prompt, 1], 3)
    lazy.close()
    check_pages(engine)
