"""A checkpoint in NVFP4 and the GGUF file made of it are one model, which the CPU machine runs as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kukri.quant.block import QTensor
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.formats import FORMATS
from kukri.quant.formats.nvfp4 import NVFP4_BLOCK
from kukri.quant.gguf.reader import GGUFFile
from kukri.quant.recipes.quantize import uncalibrated_encoder, write_quantized
from kukri.quant.recipes.recipes import RECIPES, plan
from kukri.quant.rounding.encode import encode
from kukri.runtime import ops
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.model.convert import open_convertible
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights
from kukri.tests.open_program import open_program

from ...quant.checkpoint.packed_cases import stored
from .test_moe import logits


def as_modelopt(name: str, tensor: QTensor) -> dict[str, Any]:
    """The tensors that ModelOpt stores for a matrix in NVFP4."""
    values = tensor.dequantize()
    factor = np.float32(np.abs(values).max() / 2688)
    blocks = encode(values / factor, FORMATS["NVFP4"]).reshape(len(values), -1, 36).view(NVFP4_BLOCK)[..., 0]
    codes = np.stack([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-2).reshape(len(values), -1, 2)
    return {
        name: ("U8", codes[..., 0] | codes[..., 1] << 4),
        f"{name}_scale": ("F8_E4M3", np.ascontiguousarray(blocks["d"]).reshape(len(values), -1)),
        f"{name}_scale_2": ("F32", np.array(factor)),
    }


def as_stored(tensor: QTensor) -> tuple[str, np.ndarray]:
    kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[tensor.format.name]
    return tensor.format.name, np.asarray(tensor.data).view(kind).reshape(tensor.shape)


def in_nvfp4(source: Path, folder: Path) -> Path:
    """The checkpoint with the matrices of its layers in NVFP4."""
    tensors: dict[str, Any] = {}
    for name, tensor in Checkpoint.open(source).tensors.items():
        packs = name.endswith("_proj.weight") and tensor.shape[1] % 64 == 0
        tensors |= as_modelopt(name, tensor) if packs else {name: as_stored(tensor)}
    stored(folder, {}, tensors)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_checkpoint_and_its_file(conformance: Any, tmp_path: Path) -> None:
    folder = in_nvfp4(conformance("ernie4.5"), tmp_path / "model")
    config, program = open_program(folder)
    packed = [
        op.weight for op in program.ops if isinstance(op, ops.MatMul) and op.weight.format.name == "NVFP4"
    ]
    assert len({weight.factors for weight in packed}) > 5
    chunks = 9, 1, 40, 1
    expected = logits(ReferenceMachine(program, 4), chunks)
    found = logits(CpuMachine(program, 4, threads=2, kv_type="f32"), chunks)
    # 8-bit activations: 0.027, where the same weights in Q8_0 or Q4_0 have 0.025 and 0.026.
    assert np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)) < 0.035

    model, path = open_convertible(folder, "model"), tmp_path / "a.gguf"
    planned = plan(
        RECIPES["nvfp4"], model.tensors, model.model_shape, overrides=[("token_embd|^output", FORMATS["F32"])]
    )
    write_quantized(
        path, model.metadata, model.types, planned, uncalibrated_encoder(), model.release, lambda done: None
    )
    file = GGUFFile.open(path)
    config = config_from_gguf(file.metadata, file.tensors)
    again = build_program(config, Weights(config, file.tensors))
    np.testing.assert_allclose(logits(ReferenceMachine(again, 4), chunks), expected, rtol=0, atol=2e-4)
