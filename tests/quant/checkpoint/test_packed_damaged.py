"""Packed checkpoints that are damaged, unsupported or configured wrongly."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.errors import DamagedFile, UnsupportedModel

from .packed_cases import CASES, Tensors, stored


def changed(kind: str, **replaced: tuple[str, np.ndarray] | None) -> tuple[Any, Tensors]:
    """A sound case with other tensors, whose names have __ for a dot, or without them."""
    (settings, tensors, _), _ = CASES[kind]
    tensors = dict(tensors)
    for name, tensor in replaced.items():
        if tensor is None:
            del tensors[name.replace("__", ".")]
        else:
            tensors[name.replace("__", ".")] = tensor
    return settings, tensors


I32, F16, F32, U8 = (np.zeros((4, 4), kind) for kind in (np.int32, np.float16, np.float32, np.uint8))


@pytest.mark.parametrize(
    ("kind", "replaced", "message"),
    [
        ("gptq", {"m__scales": None}, "tensor 'm.scales' is missing"),
        ("gptq", {"m__qzeros": None}, "tensor 'm.qzeros' is missing"),
        ("gptq", {"m__qweight": ("F16", F16)}, "tensor 'm.qweight' has dtype F16"),
        ("gptq", {"m__qweight": ("I32", I32[0])}, "tensor 'm.qweight' has shape (4,)"),
        ("gptq", {"m__scales": ("F16", F16)}, "tensor 'm.scales' has shape (4, 4), not of 40 outputs"),
        ("gptq", {"m__qzeros": ("I32", I32)}, "tensor 'm.qzeros' has shape (4, 4)"),
        ("gptq", {"m__g_idx": ("I32", np.full(96, 3, np.int32))}, "tensor 'm.g_idx' names group 3 of 3"),
        ("gptq", {"m__g_idx": ("I32", np.full(96, -1, np.int32))}, "tensor 'm.g_idx' names group -1 of 3"),
        ("gptq", {"m__g_idx": ("I32", I32)}, "tensor 'm.g_idx' has shape"),
        ("gptq", {"m__weight": ("F16", F16)}, "tensor 'm.weight' is there twice"),
        ("gptq", {"other": ("I32", I32)}, "tensor 'other' has dtype I32"),
        ("awq", {"m__scales": ("F16", F16)}, "tensor 'm.scales' has shape"),
        ("awq", {"m__qzeros": ("F32", F32)}, "tensor 'm.qzeros' has dtype F32"),
        ("ct, 4 bits", {"m__weight_scale": None}, "tensor 'm.weight_scale' is missing"),
        ("ct, 4 bits", {"m__weight_shape": None}, "tensor 'm.weight_shape' is missing"),
        ("ct, 4 bits", {"m__weight_shape": ("I64", np.array([9, 128]))}, "'m.weight_packed' has shape"),
        ("ct, 4 bits", {"m__weight_shape": ("I64", np.array([13, 0]))}, "16 words a row for 0 inputs"),
        ("ct, 4 bits", {"m__weight_shape": ("I64", np.array([13, -8]))}, "words a row for -8 inputs"),
        ("ct, 4 bits", {"m__weight_scale": ("F32", F32)}, "tensor 'm.weight_scale' has shape (4, 4)"),
        ("ct, 4 bits", {"m__weight_scale": ("F32", np.zeros((13, 3), "f4"))}, "has 3 groups"),
        ("ct, 4 bits", {"m__weight_zero_point": ("I32", I32)}, "tensor 'm.weight_zero_point' has shape"),
        ("ct, bytes", {"m__weight_scale": None}, "tensor 'm.weight_scale' is missing"),
        ("fp8", {"m__weight_scale_inv": None}, "tensor 'm.weight' has no scales"),
        ("fp8", {"m__weight_scale_inv": ("F32", F32)}, "tensor 'm.weight_scale_inv' has shape (4, 4)"),
        ("fp8", {"m__weight_scale_inv": ("U8", U8)}, "tensor 'm.weight_scale_inv' has dtype U8"),
        ("nvfp4", {"m__weight_global_scale": None}, "tensor 'm.weight_scale_2' is missing"),
        ("nvfp4", {"m__weight_global_scale": ("F32", np.zeros(1, "f4"))}, "'m.weight_global_scale' is 0"),
        ("nvfp4", {"m__weight_scale": ("F8_E4M3", U8)}, "tensor 'm.weight_scale' has shape (4, 4)"),
        ("mlx", {"m__scales": None}, "tensor 'm.scales' is missing"),
        ("mlx", {"m__biases": ("F16", F16)}, "tensor 'm.biases' has shape (4, 4)"),
        ("mlx", {"m__weight": ("U32", np.zeros((7, 5), "u4"))}, "tensor 'm.weight' has no groups of 64"),
        ("nf4", {"m__weight": None}, "tensor 'm.weight' is missing"),
        ("nf4", {"m__weight": ("U8", U8)}, "tensor 'm.weight' has not the 384 bytes"),
        ("nf4", {"m__weight__quant_map": ("F32", F32)}, "tensor 'm.weight.quant_map' has shape"),
        ("nf4", {"m__weight__absmax": ("U8", U8)}, "tensor 'm.weight.absmax' has shape"),
        ("nf4", {"m__weight__nested_absmax": None}, "tensor 'm.weight.nested_absmax' is missing"),
    ],
)
def test_damaged(tmp_path: Path, kind: str, replaced: dict[str, Any], message: str) -> None:
    key = "quantization" if kind == "mlx" else "quantization_config"
    folder = stored(tmp_path / "m", *changed(kind, **replaced), key=key)
    with pytest.raises(DamagedFile) as error:
        Checkpoint.open(folder)
    assert message in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "state", [b"", b"[]", b"{", b"[" * 99999, b'{"shape": [1]}', b'{"shape": [0, 4]}', b"{}", b'{"shape": 3}']
)
def test_damaged_state(tmp_path: Path, state: bytes) -> None:
    raw = np.frombuffer(state or b" ", np.uint8)
    settings, tensors = changed("nf4")
    tensors["m.weight.quant_state.bitsandbytes__nf4"] = ("U8", raw)
    folder = stored(tmp_path / "m", settings, tensors)
    with pytest.raises(DamagedFile, match="quant_state"):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    ("settings", "named", "listed"),
    [
        ({"quant_method": "hqq"}, "'hqq'", "gptq, awq, compressed-tensors"),
        ({"quant_method": "quip\n"}, "'quip", "bitsandbytes"),
        ({"x": 1}, "''", "gptq"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits", "4 and 8"),
        ({"quant_method": "gptq", "bits": 2}, "2 bits", "4 and 8"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "marlin", "gptq_v2"),
        ({"quant_method": "awq", "version": "gemv"}, "gemv", "gemm"),
        ({"quant_method": "awq", "w_bit": 3}, "3 bits", "4"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "marlin-24", "pack-quantized"),
        (
            {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparse-24-bitmask",
            "dense",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 3}}}},
            "3-bit",
            "4 and 8",
        ),
        (
            {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"u": {}}}},
            "transform_config",
            "without",
        ),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "w4a8_awq", "nvfp4"),
    ],
)
def test_unsupported(tmp_path: Path, settings: Any, named: str, listed: str) -> None:
    folder = stored(tmp_path / "m", settings, {"m.weight": ("F16", F16)})
    with pytest.raises(UnsupportedModel) as error:
        Checkpoint.open(folder)
    assert named in str(error.value)
    assert listed in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "settings",
    [
        [],
        3,
        {"quant_method": 1},
        {"quant_method": "gptq", "bits": "4"},
        {"quant_method": "gptq", "group_size": True},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "fp8", "weight_block_size": 128},
        {"quant_method": "compressed-tensors", "config_groups": []},
        {"quant_method": "compressed-tensors", "config_groups": {"g": 1}},
    ],
)
def test_settings_of_wrong_types(tmp_path: Path, settings: Any) -> None:
    folder = stored(tmp_path / "m", settings, {"m.weight": ("F16", F16)})
    with pytest.raises(DamagedFile) as error:
        Checkpoint.open(folder)
    assert str(error.value).isprintable()


def test_names_close_to_what_is_skipped(tmp_path: Path) -> None:
    """Gemma 3n has a vector with an ending that scales of activations have as their name."""
    settings, tensors, _ = CASES["gptq"][0]
    tensors = {
        **tensors,
        "l.altup.correct_output_scale": ("F16", F16[0]),
        "l.k_proj.output_scale": ("F32", F32[0, :1]),
    }
    held = Checkpoint.open(stored(tmp_path / "m", settings, tensors)).tensors
    assert set(held) == {"m.weight", "l.altup.correct_output_scale"}
