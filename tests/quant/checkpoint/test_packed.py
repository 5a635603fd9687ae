"""Values and formats of packed checkpoints against slow readers of the same bits."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint

from .packed_cases import CASES, E2M1, Tensors, gptq, nf4, nvfp4, stored, words

ROUNDED = ("nf4, float16", "gptq, act-order, long scales", "gptq, 8 bits with zero points")


@pytest.mark.parametrize("name", CASES)
def test_values(tmp_path: Path, name: str) -> None:
    (settings, tensors, expected), form = CASES[name]
    key = "quantization" if name.startswith("mlx") else "quantization_config"
    checkpoint = Checkpoint.open(stored(tmp_path / "m", settings, tensors, key))
    assert checkpoint.packing
    [tensor] = checkpoint.tensors.values()
    expected = np.asarray(expected, np.float32)
    if name in ROUNDED:
        expected = expected.astype(np.float16).astype(np.float32)
    assert (tensor.format.name, tensor.shape) == (form, expected.shape)
    np.testing.assert_array_equal(tensor.dequantize(), expected)

    n_rows = math.prod(expected.shape[:-1])
    data, flat = np.asarray(tensor.data), expected.reshape(n_rows, -1)
    assert data.shape == tensor.data.shape == (n_rows, tensor.n_bytes // n_rows)
    assert len(tensor.data) == n_rows
    assert tensor.data.tobytes() == data.tobytes()
    for index in (slice(3, 5), slice(1, None, 3), slice(0, 0), np.array([4, 0, 4]), -1):
        np.testing.assert_array_equal(np.asarray(tensor.data[index]), data[index])
    np.testing.assert_array_equal(np.asarray(tensor.data[2:][1:4:2]), data[3:6:2])
    matrix = tensor.format.dequantize(np.asarray(tensor.data[1:4]).reshape(-1, tensor.format.type_size))
    np.testing.assert_array_equal(matrix.reshape(3, -1) * tensor.row_factors()[1:4, None], flat[1:4])
    checkpoint.release(tensor)
    np.testing.assert_array_equal(tensor.dequantize(), expected)


def test_bfloat16_is_rounded_to_even(tmp_path: Path) -> None:
    settings, tensors, expected = nf4(43, 6, 64, dtype="bfloat16")
    [tensor] = Checkpoint.open(stored(tmp_path / "m", settings, tensors)).tensors.values()
    assert tensor.format.name == "BF16"
    got, error = tensor.dequantize(), np.abs(tensor.dequantize() - expected)
    assert (error <= np.spacing(np.abs(expected)) * 2.0**15).all()
    assert (got.view(np.uint32) & 0xFFFF == 0).all()


def test_llm_int8(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes, peaks = rng.integers(-127, 128, (5, 24)).astype(np.int8), rng.random(5).astype(np.float32)
    tensors: Tensors = {
        "m.weight": ("I8", codes),
        "m.SCB": ("F32", peaks),
        "m.weight_format": ("U8", np.uint8(0)),
    }
    folder = stored(tmp_path / "m", {"quant_method": "bitsandbytes"}, tensors)
    [tensor] = Checkpoint.open(folder).tensors.values()
    np.testing.assert_allclose(
        tensor.dequantize(), codes * peaks[:, None] / 127, rtol=2.0**-11, atol=2.0**-24
    )


@pytest.mark.parametrize("mode", ["gpt-oss", "mlx", "compressed-tensors"])
def test_mxfp4(tmp_path: Path, mode: str) -> None:
    rng = np.random.default_rng(0)
    q, e = rng.integers(0, 16, (2, 6, 96)), rng.integers(100, 130, (2, 6, 3)).astype(np.uint8)
    expected = np.float32(E2M1)[q] * np.repeat(np.ldexp(1.0, e.astype(int) - 127), 32, axis=-1)
    packed, settings = words(q, 4), {"quant_method": "mxfp4"}
    tensors: Tensors = {"e_blocks": ("U8", packed.view(np.uint8).reshape(2, 6, 3, 16)), "e_scales": ("U8", e)}
    if mode == "mlx":
        settings = {"mode": "mxfp4", "bits": 4, "group_size": 32}
        tensors = {"e.weight": ("U32", packed.view(np.uint32)), "e.scales": ("U8", e)}
    if mode == "compressed-tensors":
        settings = {"quant_method": mode, "format": "mxfp4-pack-quantized"}
        tensors = {"e.weight_packed": ("U8", packed[0].view(np.uint8)), "e.weight_scale": ("U8", e[0])}
        expected = expected[0]
    [tensor] = Checkpoint.open(stored(tmp_path / "m", settings, tensors)).tensors.values()
    assert tensor.format.name == "MXFP4"
    np.testing.assert_array_equal(tensor.dequantize(), expected)


def test_experts_share_a_format(tmp_path: Path) -> None:
    """Though one's scales would be short enough for less."""
    tensors: Tensors = {}
    for e, short in enumerate((True, False)):
        settings, each, _ = gptq(e, 16, 64, short=short)
        tensors |= {f"l.experts.{e}.up{name[1:]}": tensor for name, tensor in each.items()}
    held = Checkpoint.open(stored(tmp_path / "m", settings, tensors)).tensors
    assert [tensor.format.name for tensor in held.values()] == ["Q5_0", "Q5_0"]


def test_settings_in_other_places(tmp_path: Path) -> None:
    settings, tensors, expected = nvfp4(0, 6, 96, modelopt=True)
    folder = stored(tmp_path / "m", None, tensors)
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    [tensor] = Checkpoint.open(folder).tensors.values()
    np.testing.assert_array_equal(tensor.dequantize(), expected)
    settings, tensors, expected = gptq(0, 16, 64)
    folder = stored(folder, {"quantization_config": settings}, tensors, key="text_config")
    [tensor] = Checkpoint.open(folder).tensors.values()
    np.testing.assert_array_equal(tensor.dequantize(), expected)


FIXTURES = {
    "llama-gptq": ("GPTQ", {"Q4_0": 14, "F16": 7}),
    "llama-gptq-asym": ("GPTQ", {"Q4_1": 14, "F16": 7}),
    "llama-gptq-int8": ("GPTQ", {"Q8_0": 14, "F16": 7}),
    "llama-gptq-actorder": ("GPTQ", {"BF16": 14, "F16": 21}),
    "llama-awq": ("AWQ", {"Q4_1": 14, "F16": 7}),
    "llama-ct-w8a8": ("compressed-tensors", {"Q8_0": 14, "BF16": 7}),
    "llama-fp8-block128": ("FP8", {"BF16": 11}),
    "llama-mlx": ("MLX", {"Q4_1": 16, "BF16": 5}),
    "llama-nf4": ("bitsandbytes", {"F32": 14, "F16": 7}),
    "gpt-oss-mxfp4": ("MXFP4", {"MXFP4": 4, "BF16": 33}),
}


@pytest.mark.parametrize("name", FIXTURES)
def test_formats_of_fixtures(conformance: Any, name: str) -> None:
    checkpoint = Checkpoint.open(conformance(name))
    formats = Counter(tensor.format.name for tensor in checkpoint.tensors.values())
    assert (checkpoint.packing, dict(formats)) == FIXTURES[name]
