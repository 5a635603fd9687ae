"""Many requests on real programs (dense, experts, latent attention, recurrent), on two machines."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program

NAMES = ["llama-gqa", "gemma3", "mixtral", "deepseek-v3", "lfm2", "qwen3.5", "falcon-h1"]
RECURRENT = {"lfm2", "qwen3.5", "falcon-h1"}
N_PAGES, SEQUENCES = 9, 4


def new_engine(folder: Path, kind: type, deterministic: bool = False) -> Engine:
    config, program = open_program(folder)
    machine = kind(program, N_PAGES, max_sequences=SEQUENCES)
    table = PageTable(N_PAGES, SEQUENCES)
    return Engine(
        machine,
        table,
        config,
        context=192,
        states=machine.states,
        deterministic=deterministic,
        prefill_chunk=48,
    )


def requests(ids: list[int], count: int, seed: int) -> list[tuple[list[int], int, int]]:
    """(prompt, tokens, priority): many begin with the same ids, of one page and a part of another."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        shared = ids[: draw.choice([0, 10, 70, 90])]
        own = [draw.choice(ids) for _ in range(draw.randrange(1, 30))]
        found.append(([*shared, *own], draw.randrange(1, 12), draw.choice([0, 0, 1])))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ReferenceMachine, CpuMachine])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_ids_are_those_of_single_runs(
    conformance: Callable[[str], Path], name: str, kind: type
) -> None:
    folder = conformance(name)
    ids = (np.load(folder / "reference.npz")["input_ids"].tolist() * 4)[:90]
    alone, engine = new_engine(folder, kind, deterministic=True), new_engine(folder, kind)
    wrong: list[object] = []

    def params(n: int) -> SamplingParams:
        return SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)

    def work(part: list[tuple[list[int], int, int]], expected: list[list[int]], seed: int) -> None:
        draw = random.Random(seed)
        for (prompt, n, priority), right in zip(part, expected, strict=True):
            generation = engine.submit(prompt, params(n), priority)
            if draw.random() < 0.2:
                generation.cancel()
            elif (got := list(generation)) != right:
                wrong.append((prompt, got, right))

    wanted = requests(ids, 40, seed=len(name))
    expected = [list(alone.submit(prompt, params(n))) for prompt, n, _ in wanted]
    threads = [
        threading.Thread(target=work, args=(wanted[i::4], expected[i::4], i), daemon=True) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert not engine.table.lengths.any()
    engine.reset()
    assert engine.table.free_pages == N_PAGES
    for each in (alone, engine):
        each.machine.close()


@pytest.mark.parametrize("kind", [ReferenceMachine, CpuMachine])
def test_a_page_is_copied_in_all_layers(conformance: Callable[[str], Path], kind: type) -> None:
    """Two prompts that part in the middle of a page: the second goes on in a copy of the first's."""
    folder = conformance("llama-gqa")
    ids = (np.load(folder / "reference.npz")["input_ids"].tolist() * 4)[:90]
    engine = new_engine(folder, kind)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    for prompt in ([*ids[:80], 5, 6, 7], [*ids[:80], 9, 8]):
        expected = list(new_engine(folder, kind).submit(prompt, params))
        assert list(engine.submit(prompt, params)) == expected
    assert engine.stats.cached_tokens == 80
    first = engine.submit([*ids[:80], 5, 6, 7, 1], params)  # what the copy was made of is as it was
    assert list(first) == list(new_engine(folder, kind).submit([*ids[:80], 5, 6, 7, 1], params))
    assert first.stats.cached_tokens == 83


@pytest.mark.parametrize("kind", [ReferenceMachine, CpuMachine])
@pytest.mark.parametrize("name", ["llama-gqa", "lfm2"])
def test_pages_taken_out_are_those_of_another_machine(
    conformance: Callable[[str], Path], kind: type, name: str
) -> None:
    folder = conformance(name)
    ids = (np.load(folder / "reference.npz")["input_ids"].tolist() * 4)[:90]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    one, other = new_engine(folder, kind), new_engine(folder, kind)
    turn = [*ids, *one.submit(ids, params), 5, 6]
    kept = one.take_out(turn)
    assert len(kept.ids) == 99
    assert kept.ids == turn[:99]
    assert one.machine.page_layout == other.machine.page_layout
    list(other.submit([7] * 70, params))
    assert other.put_in(kept)
    got = other.submit(turn, params)
    assert list(got) == list(one.submit(turn, params))
    assert got.stats.cached_tokens == 99
    assert one.take_out([99, 98]).ids == []
    with pytest.raises(ValueError, match="pages do not hold"):
        other.put_in(replace(kept, ids=kept.ids[:60]))
    full = new_engine(folder, kind)
    held = full.submit([3] * 190, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    next(held)
    for _ in range(3):
        full.put_in(kept)
    assert len(list(held)) == 1  # what runs keeps its pages
