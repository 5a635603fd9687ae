"""Hessians of the inputs of matrices, against those of plain runs of the reference machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.runtime import ops
from kukri.runtime.calibration.hessians import DiagonalHessian, FullHessian, layer_hessians
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights


# Rotated heads, windows and norms behind; tied; recurrent layers; latent attention; shared keys and values.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2", "granite4-h", "deepseek-v3", "gemma3n"])
@pytest.mark.parametrize("threads", [1, 3])
def test_full_hessians(conformance: Callable[[str], Path], name: str, threads: int) -> None:
    folder = Checkpoint.open(conformance(name))
    config = config_from_hf(folder.config, folder.tensors)
    weights = Weights(config, folder.tensors)
    program = build_program(config, weights)
    names = {id(tensor): name for name, tensor in weights.bound.items()}
    windows = np.random.default_rng(0).integers(0, config.vocab_size, (5, 20)).astype(np.int32)
    expected: dict[str, np.ndarray] = {}
    for window in windows:
        rows = np.arange(len(window), dtype=np.int32)
        table = PageTable(1)
        table.extend(0, len(window))
        machine = ReferenceMachine(program, 1)
        pending = iter([op for op in program.ops if isinstance(op, ops.MatMul)])
        reads = {id(op): op.x.name for op in pending}
        before: dict[str, np.ndarray] = {}
        for op in machine.trace(Batch(window, rows * 0, rows, rows), table):
            if id(op) in reads:
                assert isinstance(op, ops.MatMul)
                x = before[op.x.name]
                called = names.get(id(op.weight))
                if called:
                    expected[called] = expected.get(called, 0) + x.T @ x / windows.size
            before = dict(machine.buffers)
    found = {
        called: each.values
        for layer in layer_hessians(program, names, windows, threads)
        for each in layer
        if isinstance(each, FullHessian)
        for called in each.names
    }
    assert set(found) == set(expected)
    for called, values in expected.items():
        largest = np.abs(values).max()
        assert np.abs(found[called] - values).max() <= 1e-4 * largest, called


def test_diagonal_hessians_of_experts(conformance: Callable[[str], Path]) -> None:
    folder = Checkpoint.open(conformance("mixtral"))
    config = config_from_hf(folder.config, folder.tensors)
    weights = Weights(config, folder.tensors)
    program = build_program(config, weights)
    stems = {i: weights.experts(i).matrices for i, layer in enumerate(config.layers) if layer.is_moe}
    names = {id(stack[0]): f"{i}.{stem}" for i, matrices in stems.items() for stem, stack in matrices.items()}
    windows = np.random.default_rng(0).integers(0, config.vocab_size, (5, 20)).astype(np.int32)
    expected: dict[str, list[list[np.ndarray]]] = {}
    for window in windows:
        rows = np.arange(len(window), dtype=np.int32)
        table = PageTable(1)
        table.extend(0, len(window))
        machine = ReferenceMachine(program, 1)
        before: dict[str, np.ndarray] = {}
        for op in machine.trace(Batch(window, rows * 0, rows, rows), table):
            if isinstance(op, ops.MoE):
                chosen = before[op.experts.name].astype(int)
                for e in range(len(op.up)):
                    x = before[op.x.name][(chosen == e).any(axis=1)]
                    gate = x @ op.gate[e].dequantize().T
                    inner = gate / (1 + np.exp(-gate)) * (x @ op.up[e].dequantize().T)
                    for stack, read in ((op.gate, x), (op.up, x), (op.down, inner)):
                        every = expected.setdefault(names[id(stack[0])], [[] for _ in stack])
                        every[e].append(read)
            before = dict(machine.buffers)
    found = {
        each.name: each.values
        for layer in layer_hessians(program, names, windows, 2)
        for each in layer
        if isinstance(each, DiagonalHessian)
    }
    assert set(found) == set(expected) == set(names.values())
    for name, every in expected.items():
        read = [np.concatenate(each) for each in every]
        mean = (np.concatenate(read) ** 2).mean(axis=0)
        for e, x in enumerate(read):
            wanted = ((x**2).sum(axis=0) + 16 * mean) / (len(x) + 16)
            assert np.allclose(found[name][e], wanted, rtol=1e-4)
