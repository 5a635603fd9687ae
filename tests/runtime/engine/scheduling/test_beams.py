"""Beam search against transformers' (tests/data/sampling/beams.json), on real programs and beside others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.beams.generation import BeamGeneration
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.beam_search import Beam, BeamParams
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program

GOLDENS = Path(__file__).resolve().parents[3] / "data" / "sampling" / "beams.json"
FIXTURES = json.loads(GOLDENS.read_text())["fixtures"]
PAGES, PAGE_SIZE, SLOTS = 16, 32, 6


def new_engine(folder: Path, kind: type, n_pages: int = PAGES, slots: int = SLOTS, **more: Any) -> Engine:
    config, program = open_program(folder)
    machine = kind(program, n_pages, page_size=PAGE_SIZE, max_sequences=slots)
    table = PageTable(n_pages, slots, page_size=PAGE_SIZE)
    return Engine(machine, table, config, context=64, states=machine.states, **more)


def submit(engine: Engine, case: dict[str, Any]) -> BeamGeneration:
    engine.end_ids = frozenset(case["end_ids"])
    params = SamplingParams(max_tokens=case["max_tokens"], repeat_penalty=case["repeat_penalty"])
    beams = BeamParams(case["beams"], case["length_penalty"], case["early_stopping"])
    return engine.submit_beams(case["prompt"], beams, params)


def check(beams: list[Beam], case: dict[str, Any]) -> None:
    """The answers are those of the golden case, whose ids have the end token as well."""
    assert len(beams) == case["beams"]
    for beam, golden in zip(beams, case["answers"], strict=False):
        ids = golden["ids"]
        assert beam.finish_reason == ("stop" if ids[-1] in case["end_ids"] else "length")
        assert beam.ids == (ids[:-1] if beam.finish_reason == "stop" else ids)
        assert beam.score == pytest.approx(golden["score"], abs=2e-4)


def check_pages(engine: Engine) -> None:
    assert not engine._scheduler.running
    assert not engine._scheduler.waiting
    assert not engine.table.lengths.any()
    engine.reset()
    assert engine.table.free_pages == engine.table.n_pages


@pytest.mark.parametrize("kind", [ReferenceMachine, CpuMachine])
@pytest.mark.parametrize("name", FIXTURES)
def test_beams_are_those_of_transformers(conformance: Callable[[str], Path], name: str, kind: type) -> None:
    engine = new_engine(conformance(name), kind)
    for case in FIXTURES[name]:
        generation = submit(engine, case)
        check(generation.result(), case)
        assert generation.stats.new_tokens == len(generation.beams[0].ids)
    check_pages(engine)
    engine.machine.close()
