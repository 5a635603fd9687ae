"""Mixtures of experts that the host computes between the launches of a step, on the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cpu.experts import CpuExperts
from kukri.runtime.cuda.driver.errors import CudaError
from kukri.runtime.cuda.hosted import HostedCudaMachine
from kukri.runtime.cuda.kernels.experts import exchange
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.inspection.inspect import InspectOptions, inspect_ids
from kukri.runtime.ops import MoE
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program

from .simulator import _staged
from .stand_in import StandInKernels, ThreadedDevice


@pytest.fixture(scope="module")
def program(conformance):
    return open_program(conformance("mixtral"))[1]


@pytest.fixture
def hosted(program):
    """hosted(n) → a machine whose first n mixtures the CPU computes, and its stand-in for a GPU."""
    made = []

    def make(n):
        mixtures = [op for op in program.ops if isinstance(op, MoE)][:n]
        device = ThreadedDevice(0)
        host = CpuExperts(mixtures, 20, threads=1, allocate=device.pinned)
        made.append(
            HostedCudaMachine(program, 1, host, max_rows=20, device=device, kernels=StandInKernels(device))
        )
        return made[-1], device

    yield make
    for machine in made:
        machine.close()


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_logits(program, hosted, feed, conformance, n):
    """A prompt in two steps, the second short enough for decode kernels, then tokens; twice, the same."""
    ids = np.load(conformance("mixtral") / "reference.npz")["input_ids"][:23].astype(np.int32)
    machine, device = hosted(n)
    n_mixtures = sum(isinstance(op, MoE) for op in program.ops)
    assert n <= n_mixtures
    got = feed(machine, PageTable(1), ids, (18, 3, 1, 1))
    np.testing.assert_allclose(got, feed(ReferenceMachine(program, 1), PageTable(1), ids), atol=2e-3)
    assert any("moe" in name for name in device.launched) == (n < n_mixtures)
    np.testing.assert_array_equal(feed(machine, PageTable(1), ids, (18, 3, 1, 1)), got)
    steps = {1: 2, 3: 1}  # of a few rows, by their number; the feeding was twice
    assert device.launched.count("exchange") == 2 * n * sum(steps.values())


@pytest.mark.slow
def test_numbers_begin_again(program, hosted, feed, monkeypatch):
    monkeypatch.setattr("kukri.runtime.cuda.hosted.LAST_NUMBER", 2)
    machine, _ = hosted(2)
    ids = np.arange(3, dtype=np.int32)
    got = feed(machine, PageTable(1), ids, (1, 1, 1))
    np.testing.assert_allclose(got, feed(ReferenceMachine(program, 1), PageTable(1), ids), atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError])
def test_the_card_does_not_wait_for_a_host_that_fails(program, hosted, feed, monkeypatch, problem):
    machine, device = hosted(2)

    def fail(*_):
        raise problem

    ids = np.arange(3, dtype=np.int32)
    with monkeypatch.context() as patch:
        patch.setattr(machine.host, "exchange", fail)
        with pytest.raises(problem):
            feed(machine, PageTable(1), ids, (1,))
    device.wait()
    got = feed(machine, PageTable(1), ids, (1,))
    np.testing.assert_allclose(got, feed(ReferenceMachine(program, 1), PageTable(1), ids), atol=2e-3)


@pytest.mark.slow
def test_each_says_that_the_other_has_not_come(program, hosted, feed, monkeypatch):
    """And a later step is right again."""
    monkeypatch.setattr("kukri.runtime.cpu.experts.PATIENCE", 5000)
    monkeypatch.setattr(exchange, "SOON", 10)
    monkeypatch.setattr(exchange, "PATIENCE", 10)
    _staged.cache_clear()
    machine, device = hosted(2)
    ids = np.arange(3, dtype=np.int32)
    with monkeypatch.context() as patch:
        patch.setattr(device, "run", lambda graph: None)
        with pytest.raises(CudaError, match="has not come"):
            feed(machine, PageTable(1), ids, (1,))
    with monkeypatch.context() as patch:
        patch.setattr(machine.host, "exchange", lambda *_: True)
        with pytest.raises(CudaError, match="has waited"):
            feed(machine, PageTable(1), ids, (1,))
    _staged.cache_clear()


@pytest.mark.slow
def test_inspection(program, hosted, conformance):
    """Residual streams in front of every layer and behind the last one."""
    ids = np.load(conformance("mixtral") / "reference.npz")["input_ids"][:5]
    machine, _ = hosted(2)

    class Sized:
        vocab_size = program.logits.width

    shown = InspectOptions(residual=True)
    got = inspect_ids(Engine(machine, PageTable(1), Sized()), ids, shown)
    expected = inspect_ids(Engine(ReferenceMachine(program, 1), PageTable(1), Sized()), ids, shown)
    np.testing.assert_allclose(got.residual, expected.residual, atol=2e-3)
