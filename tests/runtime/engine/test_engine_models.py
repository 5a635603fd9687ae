"""Engine on real machines: chunks, prefix reuse and interruption do not change what a model says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program

MACHINES = {"reference": ReferenceMachine, "cpu": CpuMachine}
PAGE = {"reference": 8, "cpu": 64}  # tokens; on the CPU a page has whole groups of vectors
GREEDY = SamplingParams(temperature=0, max_tokens=24)


def new_engine(folder: Path, machine: str, chunk: int = 512) -> Engine:
    config, program = open_program(folder)
    table = PageTable(192 // PAGE[machine], page_size=PAGE[machine])
    runner = MACHINES[machine](program, table.n_pages, table.page_size)
    return Engine(runner, table, config, prefill_chunk=chunk)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-gqa", "gemma3"])  # gemma3: sliding windows of 16
@pytest.mark.parametrize("chunk", [1, 5, 16, 512])
def test_greedy_continuation(conformance: Callable[[str], Path], machine: str, name: str, chunk: int) -> None:
    data = np.load(conformance(name) / "reference.npz")
    engine = new_engine(conformance(name), machine, chunk)
    prompt, expected = data["input_ids"][:16].tolist(), data["greedy_ids"].tolist()
    assert list(engine.generate(prompt, GREEDY)) == expected
    # The next turn finds prompt and answer; a prompt that differs early finds only its beginning.
    turn = [*prompt, *expected[:20]]
    assert list(engine.generate(turn, SamplingParams(temperature=0, max_tokens=4))) == expected[20:]
    assert engine.stats.cached_tokens == len(turn) - 1
    list(engine.generate([*prompt[:3], 9, 9, 9, 9, 9, 9], GREEDY))
    assert engine.stats.cached_tokens == 3
    assert list(engine.generate(prompt, GREEDY)) == expected
    assert engine.stats.cached_tokens == len(prompt) - 1  # the first prompt's pages are still there
    engine.machine.close()


def test_logits_do_not_depend_on_what_came_before(conformance: Callable[[str], Path], machine: str) -> None:
    data = np.load(conformance("gemma3") / "reference.npz")
    engine = new_engine(conformance("gemma3"), machine)
    ids = data["input_ids"].tolist()
    first = engine.logits(ids)
    list(engine.generate(ids[:30], GREEDY))
    np.testing.assert_array_equal(engine.logits(ids), first)
    atol = 1e-4 if machine == "reference" else 5e-4
    np.testing.assert_allclose(first[data["rows"]], data["logits"], atol=atol)
    engine.machine.close()


@pytest.mark.slow
def test_interruption(conformance: Callable[[str], Path], machine: str) -> None:
    data = np.load(conformance("llama-gqa") / "reference.npz")
    engine = new_engine(conformance("llama-gqa"), machine, chunk=4)
    prompt, expected = data["input_ids"][:16].tolist(), data["greedy_ids"].tolist()
    step, steps = engine.machine.step, 0

    def interrupted(batch, table):
        nonlocal steps
        steps += 1
        logits = step(batch, table)
        if steps == 3:
            raise KeyboardInterrupt
        return logits

    engine.machine.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        next(engine.generate(prompt, GREEDY))
    assert list(engine.generate(prompt, GREEDY)) == expected
    assert engine.stats.cached_tokens == 8
    engine.machine.close()
