"""Cards that share the work of every layer, on the simulator: each card runs in a thread."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.errors import UnsupportedModel
from kukri.runtime.cuda.driver.errors import CudaError
from kukri.runtime.cuda.kernels.common import all_reduce
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.team import CudaTeam, merged
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.sampling.top_k import top_k_of
from kukri.runtime.engine.tensor_split import tensor_parts
from kukri.runtime.reference.machine import ReferenceMachine

from .simulator import _staged
from .stand_in import StandInDevice, StandInKernels, ThreadedDevice
from .test_machine import models


@pytest.fixture(scope="module")
def program():
    models().SHAPES["shared"] = (64, 2, 2, 2, 32, 64, 72, False)
    return models().random_model("shared", "Q8_0")


def team_of(program, n=2, **options):
    devices = [ThreadedDevice(i) for i in range(n)]

    def make(part, device, group):
        kernels = StandInKernels(device)
        return CudaMachine(part, 1, max_rows=32, device=device, kernels=kernels, group=group, **options)

    return CudaTeam(program, tensor_parts(program, n), devices, make)


@pytest.mark.slow
def test_cards_together_compute_what_one_machine_does(program, feed):
    """A prompt, whose sums each card computes for half of the rows, then a few rows, then one."""
    ids = np.arange(22, dtype=np.int32)
    expected = feed(ReferenceMachine(program, 1), PageTable(1), ids)
    team = team_of(program)
    got = feed(team, PageTable(1), ids, (18, 3, 1))
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
    for machine in team.machines:
        launched = machine.device.launched
        assert launched.count("all_reduce_many") == 2 * 2
        assert launched.count("all_reduce_few") == 2 * 2 * 2
    first, second = (_row(machine, machine.program.residual[0]) for machine in team.machines)
    np.testing.assert_array_equal(first, second)
    again = feed(team, PageTable(1), ids, (18, 3, 1))
    np.testing.assert_array_equal(again, got)


def _row(machine, buffer):
    region = machine.lowering.region(buffer)
    return StandInDevice._at(region.address, region.stride).copy()


@pytest.mark.slow
def test_pages_and_top_k(program):
    team = team_of(program)
    rows = np.arange(2, dtype=np.int32)
    table = PageTable(1)
    table.extend(0, 2)
    logits = team.step(Batch(rows, rows * 0, rows, rows), table).copy()
    assert logits.shape == (2, 72)
    (few,) = team.top_k(Batch(rows[:1], rows[:1] * 0, rows[:1], rows[:1]), table, 1, 10)
    assert few.ids[0] == logits[0, :10].argmax()
    (got, other) = team.top_k(Batch(rows, rows * 0, rows, rows), table, 3, 50)
    np.testing.assert_array_equal(got.ids, np.argsort(-logits[0, :50], kind="stable")[:3])
    np.testing.assert_array_equal(other.logits, np.sort(logits[1, :50])[::-1][:3])
    page = team.read_page(0)
    assert sum(team.page_bytes) == len(page)
    team.write_page(0, page[::-1].copy())
    np.testing.assert_array_equal(team.read_page(0), page[::-1])
    team.close()


@pytest.mark.slow
def test_a_step_behind_an_interrupted_one(program, monkeypatch):
    """The cards have finished what they had begun, and its sums have numbers of their own."""
    team = team_of(program)
    row, table = np.zeros(1, np.int32), PageTable(1)
    table.extend(0, 1)
    batch = Batch(row, row, row, row)
    expected = team.step(batch, table).copy()
    waited: list[int] = []

    def interrupted(step):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(team.machines[0], "complete", interrupted)
        with pytest.raises(KeyboardInterrupt):
            team.step(batch, table)
    before = team._next_sum
    for machine in team.machines:
        wait = machine.wait
        monkeypatch.setattr(machine, "wait", lambda wait=wait: (waited.append(1), wait()))
    np.testing.assert_array_equal(team.step(batch, table), expected)
    assert team._next_sum == before + 4
    assert len(waited) == 2
    team._next_sum = (1 << 30) + 1
    np.testing.assert_array_equal(team.step(batch, table), expected)
    np.testing.assert_array_equal(team.step(batch, table), expected)
    assert team._next_sum < 20
    assert len(waited) == 2


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 17])
def test_a_card_that_never_sends(program, monkeypatch, n):
    """The other one gives up in the end, which the host hears of, and the next step is as ever."""
    monkeypatch.setattr(all_reduce, "SOON", 1000)
    monkeypatch.setattr(all_reduce, "PATIENCE", 1000)
    _staged.cache_clear()
    team = team_of(program)
    rows, table = np.arange(n, dtype=np.int32), PageTable(1)
    table.extend(0, n)
    batch = Batch(rows, rows * 0, rows, rows[-1:])
    with monkeypatch.context() as patch:
        patch.setattr(team.machines[1].device, "run", lambda graph: None)
        with pytest.raises(CudaError, match="waited too long"):
            team.step(batch, table)
    assert [machine.take_error() for machine in team.machines] == [False, False]
    _staged.cache_clear()


@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_top_of_parts_of_the_vocabulary(k):
    rng = np.random.default_rng(k)
    logits = rng.integers(0, 6, 12).astype(np.float32)
    parts = [*top_k_of(logits[None, :5], k), *top_k_of(logits[None, 5:], k)]
    (expected,) = top_k_of(logits[None], k)
    got = merged(parts, [0, 5], k)
    np.testing.assert_array_equal(got.ids, expected.ids)
    np.testing.assert_array_equal(got.logits, expected.logits)
    logits[7] = np.nan
    parts = [*top_k_of(logits[None, :5], k), *top_k_of(logits[None, 5:], k)]
    assert np.isnan(merged(parts, [0, 5], k).logits[0])


def test_what_a_team_cannot(program):
    team = team_of(program)
    with pytest.raises(UnsupportedModel, match="cannot be inspected"):
        team.observe(None, None, [])
    with pytest.raises(UnsupportedModel, match="one card"):
        team.finish(0, {})
