"""Mixtures of experts by themselves, for a program that runs elsewhere, against the reference machine."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from kukri.runtime.cpu.experts import CpuExperts, program_of
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.errors import ModelClosed
from kukri.runtime.ops import MoE
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss", "deepseek-v3", "nemotron-h"])
def test_they_are_those_of_the_reference(conformance, name):
    """For one row, a few and many: decode, few rows and prefill; twice, with other rows in between."""
    _, program = open_program(conformance(name))
    mixtures = [op for op in program.ops if isinstance(op, MoE)]
    assert mixtures
    host, rng = CpuExperts(mixtures, 40, threads=2), np.random.default_rng(0)
    for op in mixtures:
        assert op in host
        for n in (1, 2, 16, 17, 40, 1):
            x = rng.standard_normal((n, op.x.width), np.float32)
            chosen = [rng.permutation(len(op.down))[: op.experts.width] for _ in range(n)]
            experts, weights = np.array(chosen, np.float32), rng.random((n, op.experts.width), np.float32)
            reference, table = ReferenceMachine(program_of(op), 1), PageTable(1)
            table.extend(0, n)
            reference.write_boundary([x.copy(), experts, weights])
            rows = np.arange(n, dtype=np.int32)
            reference.step(Batch(rows * 0, rows * 0, rows, rows), table)
            write(host, op, x, experts, weights)
            host.run(op, n)
            got = host.rows(op).out[:n, : op.out.width]
            np.testing.assert_allclose(got, reference.read_boundary(n)[0], atol=2e-5)
    host.close()
    with pytest.raises(ModelClosed):
        host.run(mixtures[0], 1)


def write(host, op, *values):
    for rows, value in zip(host.rows(op), values, strict=False):
        rows[: len(value), : value.shape[1]] = value


@pytest.mark.parametrize("name", ["mixtral", "deepseek-v3", "nemotron-h"])
def test_they_exchange_rows_with_another_thread(conformance, name):
    """Steps of one row and of a few: what is computed when rows come one mixture after the other is what is
    computed by each alone."""
    _, program = open_program(conformance(name))
    mixtures = [op for op in program.ops if isinstance(op, MoE)]
    host, rng, first = CpuExperts(mixtures, 40, threads=2), np.random.default_rng(0), 1
    for n in (1, 3, 17, 1):
        inputs = [
            (
                rng.standard_normal((n, op.x.width), np.float32),
                rng.permuted(np.tile(np.arange(len(op.down)), (n, 1)), axis=1)[:, : op.experts.width],
                rng.random((n, op.experts.width), np.float32),
            )
            for op in mixtures
        ]
        expected = []
        for op, given in zip(mixtures, inputs, strict=True):
            write(host, op, *given)
            host.run(op, n)
            expected.append(host.rows(op).out[:n].copy())
        rows = [n if not op.x.logits_rows else 1 for op in mixtures]
        got = []

        def feed(first=first, n=n, inputs=inputs, rows=rows, got=got):
            for i, (op, given) in enumerate(zip(mixtures, inputs, strict=True)):
                write(host, op, *given)
                host.asked[0] = first + i
                while host.answered[0] < first + i:
                    time.sleep(0)
                got.append(host.rows(op).out[: rows[i]].copy())

        feeder = threading.Thread(target=feed)
        feeder.start()
        assert host.exchange(first, n, 1)
        feeder.join()
        for a, b, m in zip(got, expected, rows, strict=True):
            np.testing.assert_array_equal(a, b[:m])
        first += len(mixtures)
    host.close()


def test_rows_that_do_not_come(conformance, monkeypatch):
    """Waiting ends, and the exchanges count as answered; the next step waits again."""
    monkeypatch.setattr("kukri.runtime.cpu.experts.PATIENCE", 5000)
    _, program = open_program(conformance("mixtral"))
    host = CpuExperts([op for op in program.ops if isinstance(op, MoE)], 4, threads=2)
    assert not host.exchange(1, 1, 1)
    assert host.answered[0] == 2
    host.asked[0] = 4
    assert host.exchange(3, 1, 1)
    host.close()
