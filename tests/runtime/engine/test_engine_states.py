"""Engine on models with recurrent state, which cannot be cut short: prefixes, edits and interruptions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.scheduling.known_states import REWIND, SAVED_STATES
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program

NAMES = ["lfm2", "qwen3.5", "falcon-h1", "nemotron-h"]


def new_engine(folder: Path, chunk: int = 512, kind: type = ReferenceMachine) -> Engine:
    config, program = open_program(folder)
    machine = kind(program, 3)
    return Engine(machine, PageTable(3), config, prefill_chunk=chunk, states=machine.states)


def answer(engine: Engine, prompt: list[int], n: int = 6) -> list[int]:
    return list(engine.generate(prompt, SamplingParams(temperature=0, max_tokens=n)))


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest, conformance: Callable[[str], Path]) -> tuple[Path, list[int]]:
    folder = conformance(request.param)
    return folder, np.load(folder / "reference.npz")["input_ids"][:40].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "chunk"), [*((ReferenceMachine, n) for n in (1, 7, 512)), (CpuMachine, 7), (CpuMachine, 512)]
)
def test_turns_edits_and_the_same_again(model: tuple[Path, list[int]], kind: type, chunk: int) -> None:
    folder, ids = model
    engine = new_engine(folder, chunk, kind)

    def fresh(prompt: list[int]) -> list[int]:
        return answer(new_engine(folder), prompt)

    first = answer(engine, ids[:30])
    assert first == fresh(ids[:30])
    assert engine.stats.cached_tokens == 0
    # Regenerated: from the copy a little before the end of the prompt.
    assert answer(engine, ids[:30]) == first
    assert engine.stats.cached_tokens == 30 - REWIND
    # The next turn goes on where the answer ended, but for its last token, which was never fed.
    turn = [*ids[:30], *first, *ids[30:]]
    assert answer(engine, turn) == fresh(turn)
    assert engine.stats.cached_tokens == 30 + len(first) - 1
    # The first turn with another end, as if the last were undone, or its thoughts left out.
    edited = [*ids[:28], 9, 8, 7]
    assert answer(engine, edited) == fresh(edited)
    assert engine.stats.cached_tokens == 30 - REWIND
    # An earlier difference: from the start.
    assert answer(engine, [9, *ids[1:30]]) == fresh([9, *ids[1:30]])
    assert engine.stats.cached_tokens == 0
    engine.machine.close()


def test_few_copies_are_kept(model: tuple[Path, list[int]]) -> None:
    folder, ids = model
    engine = new_engine(folder)
    for length in (20, 40, 60, 80):
        answer(engine, (ids * 2)[:length], 1)
    states = engine._scheduler.placement.states
    lengths = [saved.length for _, saved in states.saved]
    assert lengths == [length - REWIND for length in (60, 80)][-SAVED_STATES:]
    engine.reset()
    assert not states.saved


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_interruption(model: tuple[Path, list[int]], at: int, when: str) -> None:
    """Wherever a step breaks off, the engine goes on from a state that it knows."""
    folder, ids = model
    expected = answer(new_engine(folder), ids)
    engine = new_engine(folder, chunk=12)  # steps of 12 and 12, then 12 and 4
    step, steps = engine.machine.step, 0

    def interrupted(batch, table):
        nonlocal steps
        steps += 1
        if steps != at:
            return step(batch, table)
        if when == "after":
            step(batch, table)
        elif when == "within":
            engine.machine.states.begin(batch)
            for array in engine.machine.states.arrays:
                array[:] = np.nan
        raise KeyboardInterrupt

    engine.machine.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        answer(engine, ids)
    assert answer(engine, ids) == expected
    assert engine.stats.cached_tokens in (0, 12, 24, 36)


def test_logits_are_independent_of_what_came_before(model: tuple[Path, list[int]]) -> None:
    folder, ids = model
    engine = new_engine(folder)
    first = engine.logits(ids)
    answer(engine, ids[5:30])
    np.testing.assert_array_equal(engine.logits(ids), first)
    assert answer(engine, ids) == answer(new_engine(folder), ids)
