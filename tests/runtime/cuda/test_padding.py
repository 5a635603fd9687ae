"""Steps whose rows are rounded up give what the rows alone give."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.padding import padded, rounded, usual_steps
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.script_modules import SCRIPTS

from .stand_in import StandInDevice, StandInKernels
from .test_machine import models


def step(n: int, logits: list[int]) -> Batch:
    """Row i is the token i of sequence i."""
    rows = np.arange(n, dtype=np.int32)
    return Batch(rows, rows, 5 * rows, np.array(logits, np.int32), lengths=6 * rows + 1)


def test_rounded():
    assert [rounded(n) for n in (1, 3, 16, 17, 32, 100, 129, 300)] == [1, 4, 16, 32, 32, 112, 160, 320]


@pytest.mark.parametrize(
    ("n", "logits", "limits", "rows", "last"),
    [
        (16, [*range(16)], (512, 512), 16, 15),
        (5, [*range(5)], (512, 512), 8, 7),
        (5, [4], (512, 512), 8, 4),
        (5, [1, 4], (512, 512), 8, 4),
        (17, [*range(17)], (512, 512), 32, 31),
        (33, [*range(33)], (512, 40), 40, 39),
        (33, [*range(33)], (33, 64), 33, 32),
        (60, [3, 30, 40], (512, 512), 64, 40),
        (60, [], (512, 512), 64, None),
    ],
)
def test_padded(n, logits, limits, rows, last):
    batch = step(n, logits)
    got = padded(batch, *limits)
    assert len(got.tokens) == len(got.sequences) == len(got.positions) == len(got.lengths) == rows
    for name in ("tokens", "sequences", "positions", "lengths"):
        values = getattr(got, name)
        np.testing.assert_array_equal(values[:n], getattr(batch, name))
        np.testing.assert_array_equal(values[n:], values[n - 1])
    np.testing.assert_array_equal(got.logits_indices[: len(logits)], logits)
    assert got.logits_indices.dtype == np.int32
    if last is None:
        assert not len(got.logits_indices)
    else:
        assert got.logits_indices[-1] == last
        assert len(got.logits_indices) <= limits[1]


def test_usual_steps_are_those_that_are_run():
    """Of decoding, and with a prompt beside it: their padded numbers are among the usual ones."""
    usual = list(usual_steps(40, 2048))
    assert len(usual) == len(set(usual)) < 40
    for decoding in range(1, 41):
        for prompt in (0, 32, 100, 200):
            n = decoding + prompt
            batch = padded(step(n, [*range(decoding)]), 2048, 2048)
            shape = len(batch.tokens), len(batch.logits_indices), not prompt
            assert shape in usual or n <= 32 or decoding == 1, (decoding, prompt, shape)


@pytest.mark.slow
def test_steps():
    """18 sequences, and a step in which some have several rows: as on the reference machine, and few
    graphs."""
    program = models().random_model("tiny", "Q8_0")
    device = StandInDevice()
    machine = CudaMachine(
        program, 18, max_rows=48, max_sequences=18, device=device, kernels=StandInKernels(device)
    )
    reference, table = ReferenceMachine(program, 18), PageTable(18, 18)
    rng = np.random.default_rng(0)
    for counts in ([1] * 17, [1] * 18, [2] * 3 + [0] * 11 + [3] * 4):
        before = table.lengths.copy()
        for sequence, count in enumerate(counts):
            table.extend(sequence, count)
        sequences = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        positions = np.concatenate([before[s] + np.arange(c) for s, c in enumerate(counts)]).astype(np.int32)
        tokens = rng.integers(0, 64, len(sequences)).astype(np.int32)
        logits = np.arange(len(sequences), dtype=np.int32)
        if counts[0] > 1:
            logits = logits[[1, 3, 5, 8]]
        batch = Batch(tokens, sequences, positions, logits)
        expected, got = reference.step(batch, table), machine.step(batch, table)
        assert len(got) == len(logits)
        assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
    assert {(shape.n_rows, shape.n_logits) for shape, _ in machine._graphs} == {(32, 32)}


@pytest.mark.parametrize("shape", ["qwen3moe", "gpt-oss"])
@pytest.mark.parametrize("warpgroups", [True, False])
def test_mixtures_are_lowered(shape, warpgroups, monkeypatch):
    """Every number of rows at which other kernels take over, in a mixture of experts."""
    monkeypatch.syspath_prepend(SCRIPTS)
    mixtures = importlib.import_module("cuda_bench.mixtures")
    kinds = "Q8_0", "MXFP4" if shape == "gpt-oss" else ""
    small = mixtures.Mixture(shape, 256, 1, 4, 2, 64, 8, 2, 64, 64, kinds[1])
    monkeypatch.setitem(mixtures.MIXTURES, "small", small)
    device = StandInDevice()
    device.warpgroups = warpgroups
    machine = CudaMachine(
        mixtures.random_mixture("small", kinds[0]),
        20,
        max_rows=160,
        max_sequences=20,
        device=device,
        kernels=StandInKernels(device),
    )
    for n in (8, 9, 16, 17, 64, 65, 128, 129):
        names = {launch.name.split()[0] for launch in machine.lowering.launches(n, n, True)}
        assert ("batch_matmul_sm90" in names) == (warpgroups and machine.lowering.decode_rows < n <= 128)
        machine.lowering.launches(n, 1, False, n > 16)


@pytest.mark.slow
@pytest.mark.parametrize("n", [17, 22, 31])
def test_prompts(n):
    """Prompts of a length that is rounded up, twice, and tokens behind them, which read all of their keys."""
    program = models().random_model("tiny", "Q8_0")
    device = StandInDevice()
    machine = CudaMachine(program, 1, max_rows=64, device=device, kernels=StandInKernels(device))
    reference, table = ReferenceMachine(program, 1), PageTable(1)
    tokens = np.random.default_rng(n).integers(0, 64, 3 * n).astype(np.int32)
    found = []
    for _ in range(2):
        table.truncate(0, 0)
        for start, count in ((0, n), (n, n - 1), (2 * n - 1, 2)):
            table.extend(0, count)
            positions = np.arange(start, start + count, dtype=np.int32)
            batch = Batch(tokens[positions], positions * 0, positions, np.array([count - 1], np.int32))
            expected = reference.step(batch, table)
            found.append(machine.step(batch, table).copy())
            assert np.abs(found[-1] - expected).max() < 0.05 * np.abs(expected).max()
    np.testing.assert_array_equal(found[:3], found[3:])
    assert {shape.n_rows for shape in machine._plans} == {1, 2, rounded(n), rounded(n - 1)}
