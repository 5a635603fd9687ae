"""A little of scripts/stress_engine.py: random requests of all kinds, with interrupts and few pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.reference.machine import ReferenceMachine

from .stress import Interrupting, check_pages, make_cases, new_engine, program_of, run_clients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama-gqa", CpuMachine),
        ("mixtral", ReferenceMachine),
        ("deepseek-v3", CpuMachine),
        ("lfm2", CpuMachine),
    ],
)
def test_answers_are_those_of_single_runs(conformance: Callable[[str], Path], name: str, kind: type) -> None:
    folder = conformance(name)
    ids = (np.load(folder / "reference.npz")["input_ids"].tolist() * 4)[:90]
    program, config = program_of(folder)
    alone = new_engine(program, config, kind, 11, 1, deterministic=True)
    cases = make_cases(alone, ids, 16, seed=1)
    engine = new_engine(program, config, kind, 11, 6)
    Interrupting(engine.machine, 0.01, seed=1)
    findings = run_clients(engine, cases, count=96, threads=8, seed=1, patience=120)
    assert findings.wrong == []
    assert findings.counts.total() == 96
    assert findings.counts["sampled otherwise"] <= 1
    assert check_pages(engine) == []
    for each in (alone, engine):
        each.close()
        each.machine.close()
