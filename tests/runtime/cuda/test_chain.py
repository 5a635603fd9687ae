"""A model split by layers over several cards, on the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cuda.chain import CudaChain
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.engine.cache import NO_LOGITS, Batch, PageTable
from kukri.runtime.engine.split import split_at

from .stand_in import StandInDevice, StandInKernels
from .test_machine import models


def machine_of(program):
    device = StandInDevice()
    return CudaMachine(program, 1, max_rows=32, device=device, kernels=StandInKernels(device))


@pytest.fixture(scope="module")
def program():
    models().SHAPES["three"] = (64, 3, 2, 1, 32, 64, 64, True)
    return models().random_model("three", "Q8_0")


@pytest.mark.slow
@pytest.mark.parametrize("layers", [[1], [2], [1, 2]])
def test_all_cards_together_are_one(program, feed, layers):
    ids = np.arange(22, dtype=np.int32)
    expected = feed(machine_of(program), PageTable(1), ids, (20, 1, 1))
    chain = CudaChain([machine_of(part) for part in split_at(program, layers)])
    got = feed(chain, PageTable(1), ids, (20, 1, 1))
    np.testing.assert_array_equal(got, expected)
    for a, b in zip(chain.machines, chain.machines[1:], strict=False):
        assert b.device.copies == [(a.device, 20 * 64 * 4), (a.device, 64 * 4), (a.device, 64 * 4)]
    assert len(chain.program.ops) == len(program.ops)
    page = chain.read_page(0)
    assert sum(chain.page_bytes) == len(page)
    chain.write_page(0, page[::-1].copy())
    np.testing.assert_array_equal(chain.read_page(0), page[::-1])


@pytest.mark.slow
def test_top_k_and_steps_without_logits(program):
    chain = CudaChain([machine_of(part) for part in split_at(program, [2])])
    one = machine_of(program)
    rows = np.arange(3, dtype=np.int32)
    for machine in (chain, one):
        table = PageTable(1)
        table.extend(0, 4)
        logits = machine.step(Batch(rows, rows * 0, rows, NO_LOGITS), table)
        assert logits.shape == (0, 64)
    at = np.array([3], np.int32)
    batch = Batch(at, at * 0, at, at * 0)
    for k in (1, 5):
        (got,), (expected,) = (m.top_k(batch, table, k, 60) for m in (chain, one))
        np.testing.assert_array_equal(got.ids, expected.ids)
        np.testing.assert_array_equal(got.logits, expected.logits)
