"""Beam searches in the scheduler: with few slots and pages, beside others, interrupted and cancelled."""

from __future__ import annotations

import asyncio
import gc
import random

import numpy as np
import pytest

from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.errors import BadLogits, ContextExceeded, ModelClosed
from kukri.runtime.engine.sampling.beam_search import Beam, BeamParams
from kukri.runtime.engine.sampling.params import SamplingParams

from ..test_engine import Config, HistoryMachine, after, greedy
from .test_many import check_pages, few, in_threads

PROMPT = [3, 1, 4, 1, 5, 9, 2]
ENDS = frozenset({7, 20, 33})


def new_engine(
    n_pages: int = 200, slots: int = 8, max_rows: int = 16, max_logits: int = 16, **more
) -> Engine:
    table = PageTable(n_pages, slots, page_size=4)
    return Engine(HistoryMachine(table, max_rows, max_logits), table, Config(), ENDS, **more)


def twin(prompt: list[int], beams: BeamParams, most_new: int, ends: frozenset[int] = ENDS) -> list[Beam]:
    """transformers' rules in loops: all continuations of all beams, sorted."""
    running, complete = [(0.0, list(prompt))], list[tuple[float, float, list[int]]]()
    for n in range(1, most_new + 1):
        every = []
        for total, ids in running:
            logits = after(ids).astype(np.float64)
            logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            every += [(total + logprobs[token], [*ids, token]) for token in range(len(logits))]
        every.sort(key=lambda each: -each[0])
        ended = [total_ids for total_ids in every[: beams.k] if total_ids[1][-1] in ends or n == most_new]
        full = len(complete) == beams.k and beams.early_stopping is True
        if not full:
            complete += [(total / n**beams.length_penalty, total, ids) for total, ids in ended]
            complete = sorted(complete, key=lambda each: -each[0])[: beams.k]
        running = [each for each in every if each[1][-1] not in ends][: beams.k]
        if len(complete) == beams.k:
            never = beams.early_stopping == "never" and beams.length_penalty > 0
            possible = running[0][0] / (most_new if never else n) ** beams.length_penalty
            if beams.early_stopping is True or beams.k == 1 or possible <= complete[-1][0]:
                break
    return [
        Beam(
            ids[len(prompt) : len(ids) - (ids[-1] in ends)],
            score,
            total,
            "stop" if ids[-1] in ends else "length",
        )
        for score, total, ids in complete
    ]


def same(found: list[Beam], expected: list[Beam]) -> None:
    assert [(beam.ids, beam.finish_reason) for beam in found] == [
        (beam.ids, beam.finish_reason) for beam in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def some_params(draw: random.Random) -> BeamParams:
    return BeamParams(
        draw.choice([1, 2, 3, 5]), draw.choice([-1.0, 0.0, 1.0, 2.0]), draw.choice([True, False, "never"])
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "sizes",
    [{}, {"slots": 2, "n_pages": 30}, {"slots": 1, "n_pages": 12}, {"n_pages": 14}, {"max_logits": 2}],
)
def test_every_search_finds_what_the_loops_find(seed, sizes):
    draw = random.Random(seed)
    engine = new_engine(**sizes, context=40)
    prompt = [draw.randrange(50) for _ in range(1 + draw.randrange(9))]
    beams, n = some_params(draw), draw.randrange(1, 12)
    same(engine.submit_beams(prompt, beams, few(n)).result(), twin(prompt, beams, n))
    check_pages(engine)


def test_the_beams_of_a_step_are_one_batch():
    engine = new_engine()
    generation = engine.submit_beams(PROMPT, BeamParams(5, early_stopping="never"), few(6, ignore_eos=True))
    assert len(generation.result()) == 5
    assert engine.machine.fed == [7, 5, 5, 5, 5, 5]  # nothing is computed twice
    assert generation.stats.decode_steps == 5
    assert generation.stats.prompt_tokens == 7
    assert generation.stats.new_tokens == 6
    assert generation.finish_reason == "length"


def test_searches_and_plain_requests_share_their_steps():
    engine = new_engine(slots=8)
    one = engine.submit_beams(PROMPT, BeamParams(3, 0.0, "never"), few(6, ignore_eos=True))
    other = engine.submit_beams([8, 8], BeamParams(4, 0.0, "never"), few(6, ignore_eos=True))
    plain = engine.submit([2, 3, 4], few(6, ignore_eos=True))
    same(one.result(), twin(PROMPT, BeamParams(3, 0.0, "never"), 6, frozenset()))
    same(other.result(), twin([8, 8], BeamParams(4, 0.0, "never"), 6, frozenset()))
    assert list(plain) == greedy([2, 3, 4], 6)
    assert engine.machine.fed == [12, 8, 8, 8, 8, 8]
    check_pages(engine)


def test_a_search_begins_in_the_pages_of_earlier_ones():
    engine = new_engine()
    engine.beams(PROMPT, 3, few(4))
    again = engine.submit_beams(PROMPT, BeamParams(3), few(4))
    same(again.result(), twin(PROMPT, BeamParams(3), 4))
    assert again.stats.cached_tokens == len(PROMPT) - 1


def test_a_cancelled_search_frees_all_its_pages():
    engine = new_engine()
    generation = engine.submit_beams(PROMPT, BeamParams(4), few(30, ignore_eos=True))
    plain = engine.submit([1, 2], few(9, ignore_eos=True))
    next(plain)
    next(plain)
    next(plain)
    cut = generation.beams
    assert [beam.finish_reason for beam in cut] == ["interrupted"] * 4
    assert {len(beam.ids) for beam in cut} == {3}
    generation.cancel()
    assert len(engine._scheduler.running) == 1
    assert generation.finish_reason == "interrupted"
    assert generation.result() == cut
    assert [*greedy([1, 2], 3), *plain] == greedy([1, 2], 9)
    check_pages(engine)


def test_a_forgotten_search_ends():
    engine = new_engine()
    generation = engine.submit_beams(PROMPT, BeamParams(4), few(30))
    list(engine.submit([1, 2], few(3)))
    del generation
    gc.collect()
    assert not engine._scheduler.running
    check_pages(engine)


@pytest.mark.parametrize("sizes", [{}, {"slots": 2, "n_pages": 30}, {"n_pages": 14}])
def test_interrupts_at_any_step_change_nothing(sizes):
    beams = BeamParams(4, 1.0, "never")
    expected = twin(PROMPT, beams, 8)
    for number in range(1, 12):
        for when in ("before_step", "after_step"):
            engine = new_engine(**sizes, context=40)
            left = [number]

            def interrupt(left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt

            setattr(engine.machine, when, interrupt)
            generation = engine.submit_beams(PROMPT, beams, few(8))
            try:
                found = generation.result()
            except KeyboardInterrupt:
                found = generation.result()
            same(found, expected)
            check_pages(engine)


def test_bad_logits_end_the_search_and_no_other():
    engine = new_engine()
    engine.machine.change = lambda logits: logits * np.nan if len(engine.machine.fed) == 3 else logits
    generation = engine.submit_beams(PROMPT, BeamParams(3), few(9, ignore_eos=True))
    with pytest.raises(BadLogits, match="token 3 of the answer"):
        generation.result()
    assert generation.finish_reason == "interrupted"
    same(engine.beams(PROMPT, 3, few(4)), twin(PROMPT, BeamParams(3), 4))
    check_pages(engine)


def test_an_error_of_the_machine_ends_all_beams():
    engine = new_engine(max_logits=2)

    def fail() -> None:
        if len(engine.machine.fed) == 4:
            engine.machine.fed.append(0)
            raise MemoryError("the machine")

    engine.machine.before_step = fail
    generation = engine.submit_beams(PROMPT, BeamParams(4), few(9, ignore_eos=True))
    with pytest.raises(MemoryError, match="the machine"):
        generation.result()
    with pytest.raises(MemoryError, match="the machine"):
        generation.result()
    check_pages(engine)


def test_coroutines_wait_for_searches():
    engine = new_engine(slots=5)

    async def all_of_them() -> list[list[Beam]]:
        searches = [engine.submit_beams([i, 5], BeamParams(3), few(5)) for i in range(4)]
        cancelled = engine.submit_beams([9, 9], BeamParams(2), few(5000, ignore_eos=True))

        async def wait(search) -> list[Beam]:
            return await search

        task = asyncio.create_task(wait(cancelled))
        found = await asyncio.gather(*map(wait, searches))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cancelled.finish_reason == "interrupted"
        return found

    for i, found in enumerate(asyncio.run(all_of_them())):
        same(found, twin([i, 5], BeamParams(3), 5))
    check_pages(engine)
    engine.close()


def test_threads_submit_searches_and_requests():
    engine = new_engine(n_pages=40, slots=5, context=40)
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            for _ in range(10):
                prompt = [*PROMPT[: draw.randrange(7)], draw.randrange(50)]
                n = draw.randrange(1, 9)
                if draw.random() < 0.5:
                    assert list(engine.submit(prompt, few(n, ignore_eos=True))) == greedy(prompt, n)
                    continue
                beams = some_params(draw)
                search = engine.submit_beams(prompt, beams, few(n), draw.choice([0, 0, 1]))
                if draw.random() < 0.3:
                    search.cancel()
                    continue
                same(search.result(), twin(prompt, beams, n))
        except BaseException as problem:  # noqa: BLE001 - shown by the main thread
            problems.append(problem)

    in_threads(work, 6)
    assert not problems
    check_pages(engine)


def test_the_context_ends_answers():
    engine = new_engine(context=10)
    found = engine.beams(PROMPT, 2, SamplingParams(ignore_eos=True))
    assert [len(beam.ids) for beam in found] == [4, 4]
    assert {beam.finish_reason for beam in found} == {"context"}
    with pytest.raises(ContextExceeded):
        engine.beams(PROMPT * 2, 2)


def test_bias_and_penalties_count_and_temperatures_do_not():
    engine = new_engine()
    plain = engine.beams(PROMPT, 2, few(5, ignore_eos=True))
    first = plain[0].ids[0]
    assert engine.beams(PROMPT, 2, SamplingParams(temperature=2, max_tokens=5, ignore_eos=True)) == plain
    banned = engine.beams(PROMPT, 4, few(5, ignore_eos=True, logit_bias={first: -np.inf}))
    assert all(first not in beam.ids for beam in banned)
    penal = engine.beams(PROMPT, 4, few(5, ignore_eos=True, presence_penalty=1e9))
    assert all(len({*beam.ids, *PROMPT}) == 5 + len({*PROMPT}) for beam in penal)


@pytest.mark.parametrize(
    ("beams", "params", "message"),
    [
        ({"k": 0}, {}, "beams must be"), ({"k": 1.5}, {}, "beams must be"), ({"k": 300}, {}, "beams must be"),
        ({"k": 2, "length_penalty": np.inf}, {}, "length_penalty"),
        ({"k": 2, "early_stopping": "always"}, {}, "early_stopping"),
        ({"k": 2}, {"max_tokens": 0}, "max_tokens"), ({"k": 2}, {"dry_multiplier": 1.0}, "DRY"),
        ({"k": 2}, {"mirostat": 2}, "Mirostat"), ({"k": 2}, {"logprobs": 1}, "log probabilities"),
    ],
)  # fmt: skip
def test_what_a_search_cannot_have(beams, params, message):
    if "dry_multiplier" in params:
        params = params | {"dry_sequence_breakers": ()}
    with pytest.raises(ValueError, match=message):
        new_engine().submit_beams(PROMPT, BeamParams(**beams), SamplingParams(**params))


def test_closing_ends_searches():
    engine = new_engine()
    generation = engine.submit_beams(PROMPT, BeamParams(3), few(1000))
    next(engine.submit([1, 2], few(2)))
    engine.close()
    with pytest.raises(ModelClosed):
        generation.result()
    assert not engine.table.lengths.any()
