"""The deterministic mode: what runs beside a request does not change a bit of its logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.beam_search import BeamParams
from kukri.runtime.engine.sampling.logprobs import TokenLogprobs
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.reference.machine import ReferenceMachine

from ..test_engine import greedy
from . import test_many
from .stress import new_engine, program_of
from .test_many import few

KINDS = [ReferenceMachine, CpuMachine]
PROMPTS = [(3, 60), (20, 58), (0, 55), (0, 61)]  # from, length


def answers(engine: Engine, ids: list[int], n: int = 16) -> list[list[TokenLogprobs]]:
    """The log probabilities of answers to all prompts, which run together."""
    params = SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, logprobs=3)
    generations = [engine.submit(ids[at : at + length], params) for at, length in PROMPTS]
    for generation in generations:
        list(generation)
    return [generation.logprobs for generation in generations]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama-gqa", "mixtral", "qwen3.5"])
def test_no_bit_differs_from_a_run_alone(conformance: Callable[[str], Path], name: str, kind: type) -> None:
    """Three slots and few pages, so that requests are set back as well; a beam search runs beside them."""
    folder = conformance(name)
    program, config = program_of(folder)
    ids = (np.load(folder / "reference.npz")["input_ids"].tolist() * 4)[:90]
    alone = new_engine(program, config, kind, 3, 1, deterministic=True)
    expected = [answers_of_one(alone, ids, i) for i in range(len(PROMPTS))]
    crowded = new_engine(program, config, kind, 5, 3, deterministic=True)
    set_back = count_set_backs(crowded)
    assert answers(crowded, ids) == expected
    assert set_back
    beams = BeamParams(3, early_stopping="never")
    search = crowded.submit_beams(ids[:50], beams, SamplingParams(max_tokens=4))
    assert answers(crowded, ids) == expected
    assert search.result() == alone.submit_beams(ids[:50], beams, SamplingParams(max_tokens=4)).result()
    usual = new_engine(program, config, kind, 12, 4)
    if kind is ReferenceMachine:
        assert answers(usual, ids) != expected  # NumPy rounds products of several rows otherwise
    for engine in (alone, crowded, usual):
        engine.machine.close()


def answers_of_one(engine: Engine, ids: list[int], number: int) -> list[TokenLogprobs]:
    at, length = PROMPTS[number]
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=3)
    generation = engine.submit(ids[at : at + length], params)
    list(generation)
    return generation.logprobs


def count_set_backs(engine: Engine) -> list[int]:
    """A list that grows whenever a sequence with an answer gives its slot up."""
    found: list[int] = []
    set_back = engine._scheduler._set_back

    def counted(sequence) -> None:
        if sequence.n_new and sequence.group is None:
            found.append(sequence.n_new)
        set_back(sequence)

    engine._scheduler._set_back = counted  # type: ignore[method-assign]
    return found


def test_steps_are_the_same_and_sequences_take_turns() -> None:
    engine = test_many.new_engine(n_pages=8, deterministic=True)  # 32 tokens for three of 21
    prompts = [[i, i + 1, i + 2, *range(10)] for i in range(3)]
    generations = [engine.submit(prompt, few(8)) for prompt in prompts]
    assert [list(generation) for generation in generations] == [greedy(prompt, 8) for prompt in prompts]
    assert set(engine.machine.fed) == {8, 5, 1}
    test_many.check_pages(engine)
    engine = test_many.new_engine(deterministic=True)
    long, short = engine.submit([1] * 5, few(40)), engine.submit([2] * 5, few(4))
    assert list(short) == greedy([2] * 5, 4)
    assert len(long.tokens) < 8
    assert list(long) == greedy([1] * 5, 40)
