"""Programs in two parts on two machines, against the whole program on one."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampler import SamplingParams
from kukri.runtime.engine.split import SplitMachine, cuts, split
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights


@pytest.fixture(scope="module")
def program_of(conformance):
    def load(name):
        folder = conformance(name)
        model = Checkpoint.open(folder)
        config = config_from_hf(json.loads((folder / "config.json").read_text()), model.tensors)
        return build_program(config, Weights(config, model.tensors))

    return load


@dataclass(frozen=True)
class Config:
    vocab_size: int


FIXTURES = ["llama", "gemma3", "qwen3-moe", "gemma3n", "gemma4", "qwen3-next", "granite4-h", "deepseek-v3"]


@pytest.mark.parametrize("name", FIXTURES)
def test_both_parts_are_the_whole(program_of, feed, name):
    program = program_of(name)
    ids = np.arange(23) * 7 % 40
    expected = feed(ReferenceMachine(program, 1), PageTable(1), ids, (9, 1, 4), known=True)
    possible = cuts(program)
    assert possible
    for layer in possible:
        machine = SplitMachine(*(ReferenceMachine(part, 1) for part in split(program, layer)))
        got = feed(machine, PageTable(1), ids, (9, 1, 4), known=True)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["llama", "gemma4", "qwen3-next"])
def test_on_the_cpu(program_of, feed, name):
    program = program_of(name)
    ids = np.arange(23) * 7 % 40
    layer = cuts(program)[-1]
    machine = SplitMachine(*(CpuMachine(part, 1, threads=2) for part in split(program, layer)))
    whole = CpuMachine(program, 1, threads=2)
    got, expected = (feed(m, PageTable(1), ids, (9, 1, 4), known=True) for m in (machine, whole))
    np.testing.assert_array_equal(got, expected)
    machine.close()
    whole.close()


def test_generations_are_the_same(program_of):
    """With states on both sides, whose copies let a prompt go on from where it differs."""
    program = program_of("falcon-h1")
    front, back = split(program, cuts(program)[0])
    assert front.state_layers
    assert back.state_layers
    prompts = [list(range(1, 30)), [*range(1, 25), 3, 4], list(range(1, 33))]
    params = SamplingParams(seed=3, max_tokens=6, ignore_eos=True)
    answers, cached = [], []
    parts = SplitMachine(ReferenceMachine(front, 2), ReferenceMachine(back, 2))
    for machine in (ReferenceMachine(program, 2), parts):
        engine = Engine(machine, PageTable(2), Config(program.logits.width), states=machine.states)
        answers.append([list(engine.generate(prompt, params)) for prompt in prompts])
        cached.append(engine.stats.cached_tokens)
    assert answers[0] == answers[1]
    assert cached[0] == cached[1] > 0
