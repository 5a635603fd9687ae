"""Adapters on the simulated card: products beside dense and expert matrices, embeddings, directions."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.runtime.adapters.additions import additions_of
from kukri.runtime.adapters.low_rank import LowRank
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights

from .stand_in import StandInDevice, StandInKernels


@pytest.mark.slow
def test_beside_experts(conformance, feed) -> None:
    model = Checkpoint.open(conformance("qwen3-moe"))
    config = config_from_hf(model.config, model.tensors)
    weights = Weights(config, model.tensors)
    rng = np.random.default_rng(0)

    def change(outputs: int, inputs: int, *experts: int) -> LowRank:
        down, up = (rng.normal(size=(*experts, *shape)) for shape in ((3, inputs), (outputs, 3)))
        return LowRank(down.astype(np.float32) / inputs**0.5, up.astype(np.float32))

    moe, hidden = config.moe, config.hidden
    changes = {
        "token_embd.weight": change(hidden, config.vocab_size),
        "blk.0.attn_q.weight": change(config.n_heads * config.head_dim, hidden),
        "blk.0.attn_v.weight": change(config.n_kv_heads * config.head_dim, hidden),
        "blk.0.ffn_gate_exps.weight": change(moe.width, hidden, moe.n_experts),
        "blk.0.ffn_down_exps.weight": change(hidden, moe.width, moe.n_experts),
    }
    additions = additions_of(changes, {}, config, weights)
    plain = build_program(config, weights)
    streams = plain.residual
    additions.directions[0] = rng.normal(size=hidden).astype(np.float32)
    program = type(additions)(**{**vars(additions), "streams": streams}).to(plain)
    ids = np.arange(4, dtype=np.int32) * 5
    expected = feed(ReferenceMachine(program, 1), PageTable(1), ids)
    device = StandInDevice()
    machine = CudaMachine(program, 1, max_rows=16, device=device, kernels=StandInKernels(device))
    got = feed(machine, PageTable(1), ids, (3, 1))
    assert np.abs(got - expected).max() < 0.01 * np.abs(expected).max()
    without = feed(ReferenceMachine(plain, 1), PageTable(1), ids)
    assert np.abs(without - expected).max() > 0.2 * np.abs(expected).max()
    assert {"moe_float_matmul", "float_matmul"} <= set(device.launched)
