"""Models in folders, as programs: what tests of machines and engines begin with."""

from __future__ import annotations

from pathlib import Path

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.config.model_config import ModelConfig
from kukri.runtime.ops import Program
from kukri.runtime.program.build import build_program
from kukri.runtime.weights.binding import Weights


def open_program(folder: Path, vectors: bool = False) -> tuple[ModelConfig, Program]:
    """Config and program of the model in a folder; with `vectors` it ends with hidden states."""
    model = Checkpoint.open(folder)
    config = config_from_hf(model.config, model.tensors)
    return config, build_program(config, Weights(config, model.tensors), vectors=vectors)
