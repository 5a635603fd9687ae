"""Mixtures of experts by themselves, for a program that runs elsewhere, against the reference machine."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.cpu.experts import CpuExperts, program_of
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.errors import ModelClosed
from kukri.runtime.ops import MoE
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss", "deepseek-v3", "nemotron-h"])
def test_they_are_those_of_the_reference(conformance, name):
    """For one row, a few and many: decode, few rows and prefill; twice, with other rows in between."""
    checkpoint = Checkpoint.open(conformance(name))
    config = config_from_hf(checkpoint.config, checkpoint.tensors)
    program = build_program(config, Weights(config, checkpoint.tensors))
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
            got = host.run(op, x, experts, weights)
            np.testing.assert_allclose(got, reference.read_boundary(n)[0], atol=2e-5)
    host.close()
    with pytest.raises(ModelClosed):
        host.run(mixtures[0], x, experts, weights)
