"""A row of a step of a few rows has the bits that it has alone: drafts and neighbours change no answer."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.runtime.cpu.kernels.attention.prefill import ALONE
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.speculation.policy import MOST_DRAFTED

from .programs import VOCAB, program


def test_as_many_rows_as_are_checked_at_once():
    assert ALONE >= MOST_DRAFTED + 1


@pytest.mark.parametrize(
    ("kind", "kv_type", "more"),
    [("Q4_0", "q8_0", {}), ("Q4_0", "q8_0/q4_0", {}), ("Q8_0", "f16", {"window": 40, "head_dim": 64})],
)
def test_rows_are_the_same_bits_alone_and_together(feed, kind, more, kv_type):
    machine = CpuMachine(program(1, kind, **more), 4, threads=2, kv_type=kv_type)
    ids = np.random.default_rng(0).integers(0, VOCAB, 200).tolist()
    table = PageTable(4)
    feed(machine, table, ids[:100])
    alone = feed(machine, table, ids[100:], chunks=(1,))
    for chunks in ((2,), (7, 3), (16,), (1, 15)):
        table.truncate(0, 100)
        together = feed(machine, table, ids[100:], chunks=chunks)
        np.testing.assert_array_equal(together, alone)
    machine.close()


def test_sequences_beside_each_other_change_no_bit():
    from kukri.runtime.engine.cache import Batch

    machine = CpuMachine(program(2, "Q4_0"), 16, threads=2, max_sequences=4)
    table, draw = PageTable(16, 4), np.random.default_rng(0)
    ids = draw.integers(0, VOCAB, (4, 90)).astype(np.int32)
    alone = np.zeros((4, 90, VOCAB), np.float32)
    for sequence in range(4):
        for at in range(90):
            table.extend(sequence, 1)
            one = np.array([sequence], np.int32)
            batch = Batch(ids[sequence, at : at + 1], one, np.array([at], np.int32), np.zeros(1, np.int32))
            alone[sequence, at] = machine.step(batch, table)[0]
    for at in range(60, 90):  # the last tokens again, all sequences in one step
        sequences, positions = np.arange(4, dtype=np.int32), np.full(4, at, np.int32)
        batch = Batch(np.ascontiguousarray(ids[:, at]), sequences, positions, sequences)
        np.testing.assert_array_equal(machine.step(batch, table), alone[:, at])
    machine.close()
