"""What rounding a kind of matrix costs, against plain runs of models whose matrices have been rounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.formats import FORMATS
from kukri.quant.rounding.encode import encode_tensor
from kukri.runtime.calibration.sensitivity import sensitivities
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.config.model_config import ModelConfig
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights


def log_probabilities(config: ModelConfig, tensors: Mapping[str, QTensor], window: np.ndarray) -> np.ndarray:
    """float64 [half a window, vocab]."""
    rows = np.arange(len(window), dtype=np.int32)
    table = PageTable(1)
    table.extend(0, len(window))
    machine = ReferenceMachine(build_program(config, Weights(config, tensors)), 1)
    logits = machine.step(Batch(window, rows * 0, rows, rows[len(rows) // 2 :]), table).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def rounded(tensor: QTensor) -> QTensor:
    data = encode_tensor(tensor, FORMATS["Q4_0"])
    return replace(tensor, format=FORMATS["Q4_0"], data=data)


# Three layers or more, so that there are parts; experts; tied embeddings.
@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma3"])
def test_sensitivity(conformance: Callable[[str], Path], name: str) -> None:
    folder = Checkpoint.open(conformance(name))
    config = config_from_hf(folder.config, folder.tensors)
    weights = Weights(config, folder.tensors)
    stacks = {n: (t,) for n, t in weights.bound.items() if len(t.shape) == 2}
    for i, layer in enumerate(config.layers):
        if layer.is_moe:
            stacks |= {f"blk.{i}.{stem}.weight": each for stem, each in weights.experts(i).matrices.items()}
    windows = np.random.default_rng(0).integers(0, config.vocab_size, (2, 24)).astype(np.int32)
    done: list[tuple[int, int]] = []
    found = sensitivities(
        build_program(config, weights), stacks, windows, lambda tensor: None, lambda *at: done.append(at)
    )
    assert [at for at, _ in done] == list(range(done[0][1]))
    assert set(found) == {n for n, stack in stacks.items() if stack[0].shape[1] % 32 == 0}
    values = sorted(set(found.values()))
    assert values[0] > 0
    for value in (values[0], values[-1]):  # the least and the most sensitive kind
        of_kind = [n for n in found if found[n] == value]
        meant = {tensor.name for n in of_kind for tensor in stacks[n]}
        changed = {n: rounded(t) if t.name in meant else t for n, t in folder.tensors.items()}
        total = 0.0
        for window in windows:
            p = log_probabilities(config, folder.tensors, window)
            q = log_probabilities(config, changed, window)
            total += float((np.exp(p) * (p - q)).sum()) / len(p) / len(windows)
        n_weights = sum(math.prod(t.shape) for n in of_kind for t in stacks[n])
        assert value == pytest.approx(total / n_weights, rel=0.02)
