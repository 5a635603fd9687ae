"""The adapter fixtures, and the models that they are for."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.writer import TensorRecord, write_gguf
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.export.model import export_model
from kukri.runtime.weights.binding import Weights

DATA = Path(__file__).parents[2] / "data"
MANIFEST = json.loads((DATA / "conformance" / "manifest.json").read_text())
ATOL = {entry["name"]: entry["suggested_atol"] for entry in MANIFEST["fixtures"]}


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an adapter fixture (tests/data/adapters/README.md), unpacked for this session."""
    folder = tmp_path_factory.mktemp("adapters")
    for path in (DATA / "adapters").glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(folder, **safe)  # noqa: S202
    return folder.joinpath


@pytest.fixture(scope="session")
def gguf_of(
    conformance: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A model fixture as a GGUF file in float32, without a tokenizer."""
    folder = tmp_path_factory.mktemp("gguf")

    def write(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            checkpoint = Checkpoint.open(conformance(name))
            config = config_from_hf(checkpoint.config, checkpoint.tensors)
            exported = export_model(config, Weights(config, checkpoint.tensors), checkpoint.config)
            records = [TensorRecord(tensor.name, tensor.shape, FORMATS["F32"]) for tensor in exported.tensors]
            data = (
                (rows.dequantize().view(np.uint8) for rows in tensor.chunks()) for tensor in exported.tensors
            )
            write_gguf(path, exported.metadata, {}, records, data)
        return path

    return write
