"""The reference machine against what transformers computes, for every fixture, file and step size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.gguf.reader import GGUFFile
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.ops import AltUpPredict, MatchMagnitude, MoE
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights

MANIFEST = json.loads((Path(__file__).parents[2] / "data/conformance/manifest.json").read_text())
FIXTURES = {entry["name"]: entry for entry in MANIFEST["fixtures"]}
CASES = [
    (name, file)
    for name, entry in FIXTURES.items()
    for file in ("config.json", "config.v5.json", *entry.get("gguf", ()))
]


# What says the same in another spelling needs no second run on the CPU machine where weights are packed.
CPU_CASES = [(name, file) for name, file in CASES if file == "config.json" or "packed" not in FIXTURES[name]]
# Whose weights become blocks there, which meet INT8 activations.
OF_BLOCKS = (
    "llama-gptq",
    "llama-gptq-asym",
    "llama-gptq-int8",
    "llama-awq",
    "llama-ct-int4",
    "llama-ct-int4-asym",
    "llama-ct-int8-packed",
    "llama-ct-w8a8",
    "llama-ct-nvfp4",
    "llama-mlx",
    "gpt-oss-mxfp4",
)


in_chunks = pytest.mark.parametrize(
    "chunks",
    [
        pytest.param((512,), id="one step"),
        pytest.param((1,), id="token by token", marks=pytest.mark.slow),
        pytest.param((5, 1, 17), id="odd chunks", marks=pytest.mark.slow),
    ],
)


def is_of_blocks(name: str, file: str) -> bool:
    return name in OF_BLOCKS or file.endswith("-Q8_0.gguf")


def load_program(folder: Path, file: str):
    if file.endswith(".gguf"):
        model = GGUFFile.open(folder / file)
        config = config_from_gguf(model.metadata, model.tensors)
    else:
        model = Checkpoint.open(folder)
        config = config_from_hf(json.loads((folder / file).read_text()), model.tensors)
    return build_program(config, Weights(config, model.tensors))


def load_reference(folder: Path, file: str):
    return np.load(folder / ("reference-q8_0.npz" if file.endswith("-Q8_0.gguf") else "reference.npz"))


@pytest.fixture(params=CASES, ids=["/".join(case) for case in CASES])
def case(request, conformance):
    """(machine, reference arrays, tolerance) of a fixture read from one of its files."""
    name, file = request.param
    machine = ReferenceMachine(load_program(conformance(name), file), n_pages=24, page_size=8)
    return machine, load_reference(conformance(name), file), FIXTURES[name]["suggested_atol"]


@in_chunks
def test_logits(case, feed, chunks):
    machine, reference, atol = case
    known = chunks != (1,)  # where keys depend on it, one prompt, however cut; else cached decoding
    logits = feed(machine, PageTable(24, page_size=8), reference["input_ids"], chunks, known=known)
    expected = reference["logits_full" if known and "logits_full" in reference else "logits"]
    np.testing.assert_allclose(logits[reference["rows"]], expected, rtol=0, atol=atol)


@pytest.mark.slow
def test_greedy(case, feed):
    machine, reference, _ = case
    table = PageTable(24, page_size=8)
    ids = [int(feed(machine, table, reference["input_ids"][:16])[-1].argmax())]
    while len(ids) < len(reference["greedy_ids"]):
        ids.append(int(feed(machine, table, ids[-1:])[-1].argmax()))
    assert ids == reference["greedy_ids"].tolist()


@pytest.mark.parametrize("name", [name for name in FIXTURES if name != "gemma3n"])
def test_residual_stream(conformance, name):
    """Not only the logits: what enters each layer, and what leaves the last."""
    folder, atol = conformance(name), FIXTURES[name]["suggested_atol"]
    reference = load_reference(folder, "config.json")
    machine = ReferenceMachine(load_program(folder, "config.json"), n_pages=1)
    table = PageTable(1)
    table.extend(0, 8)
    positions = np.arange(8, dtype=np.int32)
    batch = Batch(reference["input_ids"][:8], np.zeros(8, np.int32), positions, positions)
    streams = list[np.ndarray]()  # the stream after each op that changes it
    for _ in machine.trace(batch, table):
        stream = machine.buffers.get("last x", machine.buffers["x"])
        if not streams or stream is not streams[-1]:
            streams.append(stream)
    at = 0
    for layer, expected in enumerate(reference["hidden"]):
        errors = [np.abs(stream - expected).max() for stream in streams[at:]]
        near = np.flatnonzero(np.array(errors) <= atol)
        assert near.size, f"layer {layer}: {min(errors)}"
        at += int(near[0])


HYBRIDS = (
    "lfm2",
    "lfm2-moe",
    "qwen3-next",
    "qwen3.5",
    "qwen3.5-moe",
    "granite4-h",
    "nemotron-h",
    "falcon-h1",
)


def test_several_residual_streams(conformance):
    """The same where there are four of them, which each layer first changes by what it predicts."""
    folder, atol = conformance("gemma3n"), FIXTURES["gemma3n"]["suggested_atol"]
    reference = load_reference(folder, "config.json")
    machine = ReferenceMachine(load_program(folder, "config.json"), n_pages=1)
    table = PageTable(1)
    table.extend(0, 8)
    positions = np.arange(8, dtype=np.int32)
    batch = Batch(reference["input_ids"][:8], np.zeros(8, np.int32), positions, positions)
    entered, before = [], np.empty(0)
    for op in machine.trace(batch, table):
        joined = isinstance(op, MatchMagnitude) and op.like.name == "last stream 0"
        if isinstance(op, AltUpPredict) or (joined and len(entered) == 5):
            entered.append(before)
        names = [f"{prefix}stream {i}" for prefix in ("last ", "") for i in range(4)]
        held = [machine.buffers[name] for name in names if name in machine.buffers]
        before = np.stack(held[:4]) if len(held) >= 4 else before
    np.testing.assert_allclose(np.stack(entered), reference["hidden"], rtol=0, atol=atol)


@pytest.fixture(params=CPU_CASES, ids=["/".join(case) for case in CPU_CASES])
def cpu_case(request, conformance):
    """The same for the CPU machine; of quantised files the largest KL divergence and no tolerance."""
    name, file = request.param
    machine = CpuMachine(load_program(conformance(name), file), n_pages=3, threads=2)
    atol, most_kl = 5 * FIXTURES[name]["suggested_atol"], 0.006 if name in OF_BLOCKS else 0.002
    yield (
        machine,
        load_reference(conformance(name), file),
        *((None, most_kl) if is_of_blocks(name, file) else (atol, None)),
    )
    machine.close()


def mean_kl(expected: np.ndarray, got: np.ndarray, without: int = 0) -> float:
    """Mean Kullback-Leibler divergence of rows of logits, in nats, without so many of the worst rows."""
    p, q = (rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True) for rows in (expected, got))
    return float(np.sort((np.exp(p) * (p - q)).sum(-1))[: len(p) - without].mean())


@in_chunks
def test_cpu_logits(cpu_case, feed, chunks):
    machine, reference, atol, most_kl = cpu_case
    known = chunks != (1,)
    logits = feed(machine, PageTable(3), reference["input_ids"], chunks, known=known)[reference["rows"]]
    expected = reference["logits_full" if known and "logits_full" in reference else "logits"]
    if most_kl is not None:  # INT8 activations
        # A token of a mixture may have two experts whose scores are 0.01 apart, where rounding decides.
        ties = int(any(isinstance(op, MoE) for op in machine.program.ops))
        assert mean_kl(expected.astype(np.float64), logits.astype(np.float64), ties) < most_kl
    else:
        np.testing.assert_allclose(logits, expected, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), [case for case in CPU_CASES if not is_of_blocks(*case)])
def test_cpu_greedy(conformance, feed, name, file):
    machine = CpuMachine(load_program(conformance(name), file), n_pages=3, threads=2)
    reference, table = load_reference(conformance(name), file), PageTable(3)
    ids = [int(feed(machine, table, reference["input_ids"][:16])[-1].argmax())]
    while len(ids) < len(reference["greedy_ids"]):
        ids.append(int(feed(machine, table, ids[-1:])[-1].argmax()))
    assert ids == reference["greedy_ids"].tolist()
    machine.close()


def test_every_fixture_can_fail(conformance, feed):
    """The tolerance is tight enough to see a window that is off by one."""
    folder = conformance("mistral")
    model = Checkpoint.open(folder)
    config = config_from_hf({**model.config, "sliding_window": 17}, model.tensors)
    machine = ReferenceMachine(build_program(config, Weights(config, model.tensors)), n_pages=3)
    reference = load_reference(folder, "config.json")
    logits = feed(machine, PageTable(3), reference["input_ids"])
    error = np.abs(logits[reference["rows"]] - reference["logits"]).max(axis=1)
    early = reference["rows"] < 16
    assert error[early].max() < FIXTURES["mistral"]["suggested_atol"]
    assert error[~early].max() > 1


@pytest.mark.parametrize("kind", [ReferenceMachine, CpuMachine])
@pytest.mark.parametrize("name", HYBRIDS)
def test_state_of_several_sequences(conformance, feed, name, kind):
    """Each sequence has a state of its own, one that begins again starts from nothing, and a step may go on
    with several at once."""
    program, reference = load_program(conformance(name), "config.json"), load_reference(conformance(name), "")
    ids, atol = reference["input_ids"][:12], FIXTURES[name]["suggested_atol"]
    page = 8 if kind is ReferenceMachine else 64
    machine, table = kind(program, 8, page_size=page, max_sequences=3), PageTable(8, 3, page_size=page)
    feed(machine, table, ids[::-1], sequence=2)  # another text
    feed(machine, table, ids[:5], (2, 3), sequence=1)
    table.truncate(2, 0)
    table.extend(1, 7)
    table.extend(2, 12)
    batch = Batch(
        tokens=np.r_[ids[5:], ids].astype(np.int32),
        sequences=np.repeat(np.int32([1, 2]), [7, 12]),
        positions=np.r_[5:12, 0:12].astype(np.int32),
        logits_indices=np.arange(19, dtype=np.int32),
    )
    logits = machine.step(batch, table)
    expected = reference["logits"][:12]  # of the first rows, which are kept whole
    np.testing.assert_allclose(logits, np.concatenate([expected[5:], expected]), rtol=0, atol=5 * atol)
    machine.close()
