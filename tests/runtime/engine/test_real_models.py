"""Real models: the reference machine against what transformers computes from the same weights in float32,
and the CPU machine against the reference machine.

tests/data/reference has, for each model, prompts with their greedy continuations, the 512 largest logits
after each prompt, and the negative log-likelihoods of the tokens of a text.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.gguf.reader import GGUFFile
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights

REFERENCE = Path(__file__).parents[2] / "data" / "reference"
MODELS = {"smollm2": "smollm2", "gemma3:270m": "gemma3-270m", "qwen2.5-coder:0.5b": "qwen2.5-coder-0.5b"}
N_GREEDY = {"smollm2": 48, "gemma3:270m": 24, "qwen2.5-coder:0.5b": 24}  # tokens; the large ones take long
N_SCORED = 127  # tokens of the text


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in MODELS]
)
def model(request, real_model):
    """(machine, prompts and more, arrays) of a real model."""
    file = GGUFFile.open(real_model(request.param))
    config = config_from_gguf(file.metadata, file.tensors)
    machine = ReferenceMachine(build_program(config, Weights(config, file.tensors)), n_pages=16)
    name = MODELS[request.param]
    reference = json.loads((REFERENCE / f"{name}.json").read_text())
    for prompt in reference["prompts"]:
        prompt["greedy_ids"] = prompt["greedy_ids"][: N_GREEDY[request.param]]
    yield machine, reference, np.load(REFERENCE / f"{name}.npz")
    machine.close()


def test_prompts(model):
    """All prompts side by side as sequences of one batch: logits after the prompt, then the greedy tokens."""
    machine, reference, arrays = model
    prompts = reference["prompts"]
    table = PageTable(16, max_sequences=len(prompts))
    pending = {i: prompt["ids"] for i, prompt in enumerate(prompts)}  # sequence → tokens to feed
    written: dict[int, list[int]] = {i: [] for i in pending}
    while pending:
        sequences = np.array([i for i, ids in pending.items() for _ in ids], np.int32)
        starts = {i: int(table.lengths[i]) for i in pending}
        positions = np.array([starts[i] + n for i, ids in pending.items() for n in range(len(ids))], np.int32)
        tokens = np.array([token for ids in pending.values() for token in ids], np.int32)
        for i, ids in pending.items():
            table.extend(i, len(ids))
        last = np.cumsum([len(ids) for ids in pending.values()]) - 1
        logits = machine.step(Batch(tokens, sequences, positions, last.astype(np.int32)), table)
        for i, row in zip(list(pending), logits, strict=True):
            if not written[i]:
                check_logits(row, prompts[i], arrays)
            written[i].append(int(row.argmax()))
            pending[i] = written[i][-1:]
            if len(written[i]) == len(prompts[i]["greedy_ids"]):
                del pending[i]
    for i, prompt in enumerate(prompts):
        assert written[i] == prompt["greedy_ids"], prompt["id"]


def check_logits(logits: np.ndarray, prompt: dict, arrays) -> None:
    """The largest 512, far closer than the promised 2e-3; the rest through the sum of all exponentials."""
    top, expected = arrays[f"{prompt['id']}_top_ids"], arrays[f"{prompt['id']}_top_logits"]
    np.testing.assert_allclose(logits[top], expected, rtol=0, atol=2e-4 * np.abs(expected).max())
    high = logits.astype(np.float64)
    logsumexp = high.max() + np.log(np.exp(high - high.max()).sum())
    assert logsumexp == pytest.approx(prompt["logsumexp"], abs=1e-3)
    assert np.delete(logits, top).max() <= expected.min() + 1e-3


def test_text(model, feed):
    """The likelihood of every token of a text."""
    machine, reference, arrays = model
    bos = [] if reference["bos"] is None else [reference["bos"]]
    ids = bos + arrays["window_ids"][: N_SCORED + 1].tolist()
    logits = feed(machine, PageTable(16), ids)[len(bos) : -1].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    scores = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(N_SCORED), ids[len(bos) + 1 :]]
    np.testing.assert_allclose(scores, arrays["window_nll"][:N_SCORED], rtol=0, atol=1e-3)


def test_cpu_machine(model, feed):
    """What INT8 activations and a q8_0 cache cost on a text: a fifth of what is promised, at most."""
    reference_machine, reference, arrays = model
    bos = [] if reference["bos"] is None else [reference["bos"]]
    ids = bos + arrays["window_ids"][:192].tolist()
    machine = CpuMachine(reference_machine.program, n_pages=16)
    assert machine.kv_type == "q8_0"
    expected = feed(reference_machine, PageTable(16), ids).astype(np.float64)
    got = feed(machine, PageTable(16), ids).astype(np.float64)
    machine.close()
    p, q = (rows - np.logaddexp.reduce(rows, axis=1, keepdims=True) for rows in (expected, got))
    assert (np.exp(p) * (p - q)).sum(axis=1).mean() < 0.002
    assert (expected.argmax(axis=1) == got.argmax(axis=1)).mean() >= 0.94
