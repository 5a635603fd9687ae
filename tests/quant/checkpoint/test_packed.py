"""Packed checkpoints against slow readers of the same bits, and damaged ones."""

import json
import math
from collections import Counter
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.checkpoint.raw_tensors import float8_values
from kukri.quant.errors import DamagedFile, UnsupportedModel

Tensors = dict[str, tuple[str, np.ndarray]]  # name → dtype, array
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def bf16(values: np.ndarray) -> np.ndarray:
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(folder: Path, quantization: Any, tensors: Tensors, key: str = "quantization_config") -> Path:
    """A folder with these tensors."""
    folder.mkdir(exist_ok=True)
    header, at = {}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    raw = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(array).tobytes() for _, array in tensors.values())
    (folder / "model.safetensors").write_bytes(pack("<Q", len(raw)) + raw + data)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", key: quantization}))
    return folder


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [..., n] low first in int32 [..., n · bits / 32]; one bit after the other."""
    every = codes[..., None] >> np.arange(bits) & 1
    flat = every.reshape(*codes.shape[:-1], -1).astype(np.uint8)
    flat = np.concatenate([flat, np.zeros((*flat.shape[:-1], -flat.shape[-1] % 32), np.uint8)], axis=-1)
    return np.packbits(flat, axis=-1, bitorder="little").view(np.int32)


class Case:
    """Tensors and what they stand for."""

    def __init__(self, seed: int, rows: int, width: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows, self.width = rows, width

    def codes(self, bits: int) -> np.ndarray:
        return self.rng.integers(0, 1 << bits, (self.rows, self.width))

    def scales(self, n_groups: int, short: bool = True) -> np.ndarray:
        """float32 [rows, groups] that float16 holds; `short`: with two significant bits."""
        values = self.rng.integers(2, 4, (self.rows, n_groups)) / 512
        full = self.rng.random((self.rows, n_groups)) / 100 + 0.001
        return (values if short else full).astype(np.float16).astype(np.float32)


def gptq(seed: int, rows: int, width: int, bits: int = 4, size: int = 32, **how: Any) -> Any:
    c = Case(seed, rows, width)
    whole = width if size == -1 else size
    n_groups, middle, v2 = -(-width // whole), 1 << bits - 1, how.get("v2", False)
    q, s = c.codes(bits), c.scales(n_groups, how.get("short", True))
    low = 0 if v2 else 1
    z = np.full(s.shape, middle) if how.get("sym") else c.rng.integers(low, (1 << bits) + low, s.shape)
    g = np.arange(width) // whole
    g = c.rng.permutation(g) if how.get("act_order") else g
    tensors = {
        "m.qweight": ("I32", words(q.T.swapaxes(0, 1), bits).T),
        "m.qzeros": ("I32", words((z - low).T, bits)),
        "m.scales": ("F16", s.T.astype(np.float16)),
    }
    if how.get("act_order") or how.get("zero_g_idx"):
        tensors["m.g_idx"] = ("I32", (0 * g if how.get("zero_g_idx") else g).astype(np.int32))
    settings = {"quant_method": "gptq", "bits": bits, "group_size": size}
    settings |= {"checkpoint_format": "gptq_v2"} if v2 else {}
    return settings, tensors, s[:, g] * (q - z[:, g])


def awq(seed: int, rows: int, width: int, size: int = 32, short: bool = True) -> tuple[Any, Tensors, Any]:
    c = Case(seed, rows, width)
    whole = width if size == -1 else size
    q, s = c.codes(4), c.scales(width // whole, short)
    z = c.rng.integers(0, 16, s.shape)

    def packed(codes: np.ndarray) -> np.ndarray:
        columns = codes.T.reshape(codes.shape[1], -1, 8)[..., AWQ_ORDER]
        return words(columns.reshape(codes.shape[1], -1), 4)

    tensors = {
        "m.qweight": ("I32", packed(q)),
        "m.qzeros": ("I32", packed(z)),
        "m.scales": ("F16", s.T.astype(np.float16)),
    }
    g = np.arange(width) // whole
    settings = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm"}
    return settings, tensors, s[:, g] * (q - z[:, g])


def compressed(seed: int, rows: int, width: int, bits: int = 4, size: int | None = 32, **how: Any) -> Any:
    c = Case(seed, rows, width)
    whole, half, bytes_ = size or width, 1 << bits - 1, how.get("bytes", False)
    q, s = c.codes(bits), c.scales(-(-width // whole))
    g = np.arange(width) // whole
    g = c.rng.permutation(g) if how.get("act_order") else g
    z = c.rng.integers(0, 2 * half, s.shape) if how.get("asym") else np.full(s.shape, half)
    if bytes_:
        tensors = {"m.weight": ("I8", (q - half).astype(np.int8))}
    else:
        tensors = {
            "m.weight_packed": ("I32", words(q, bits)),
            "m.weight_shape": ("I64", np.array([rows, width])),
        }
    tensors["m.weight_scale"] = ("BF16", bf16(s))
    if how.get("asym"):
        zeros = ("I8", (z - half).astype(np.int8)) if bytes_ else ("I32", words(z.T, bits).T)
        tensors["m.weight_zero_point"] = zeros
    if how.get("act_order"):
        tensors["m.weight_g_idx"] = ("I32", g.astype(np.int32))
    other = {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "type": "float"}}
    weights = {"num_bits": bits, "type": "int", "group_size": size, "strategy": "group"}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if bytes_ else "pack-quantized",
        "ignore": ["lm_head", "re:.*gate$"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}, "group_1": other},
        "kv_cache_scheme": {"num_bits": 8},
    }
    return settings, tensors, s[:, g] * (q - z[:, g])


def fp8(seed: int, shape: tuple[int, ...], tall: int, wide: int, dtype: str = "F8_E4M3", **how: Any) -> Any:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 120, shape).astype(np.uint8) | rng.integers(0, 2, shape).astype(np.uint8) << 7
    down, across = -(-shape[-2] // tall), -(-shape[-1] // wide)
    s = rng.integers(4, 8, (*shape[:-2], down, across)).astype(np.float32) / 1024
    spread = np.repeat(np.repeat(s, tall, -2), wide, -1)[..., : shape[-2], : shape[-1]]
    scale = s.reshape(how.get("scale_shape", s.shape))
    name = how.get("name", "m.weight")
    settings = {"quant_method": "fp8", "weight_block_size": how.get("stated", [tall, wide])}
    tensors = {
        name: (dtype, codes),
        name + how.get("ending", "_scale_inv"): ("F32", scale),
        "m.activation_scale": ("BF16", bf16(np.float32(1))),
        "m.k_scale": ("F32", np.ones(1, np.float32)),
    }
    return settings, tensors, float8_values(dtype)[codes] * spread


def nvfp4(seed: int, rows: int, width: int, modelopt: bool = False) -> tuple[Any, Tensors, Any]:
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 16, (rows, width))
    codes = rng.integers(1, 120, (rows, width // 16)).astype(np.uint8)
    values = np.float32(E2M1)[q] * np.repeat(float8_values("F8_E4M3")[codes], 16, axis=1) / 512
    packed = words(q, 4).view(np.uint8)
    common: Tensors = {"m.weight_scale": ("F8_E4M3", codes)}
    if modelopt:
        common |= {"m.weight": ("U8", packed), "m.weight_scale_2": ("F32", np.float32(1 / 512))}
        return {"quant_method": "modelopt", "quant_algo": "NVFP4"}, common, values
    common |= {
        "m.weight_packed": ("U8", packed),
        "m.weight_global_scale": ("F32", np.float32([512])),
        "m.input_global_scale": ("F32", np.float32([3])),
    }
    return {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, common, values


def mlx(seed: int, shape: tuple[int, ...], bits: int, size: int, own: bool = False) -> Any:
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 1 << bits, shape)
    of_scales = (*shape[:-1], shape[-1] // size)
    s, b = (rng.integers(-7, 8, of_scales).astype(np.float32) / 512 for _ in range(2))
    tensors = {
        "m.weight": ("U32", words(q, bits).view(np.uint32)),
        "m.scales": ("BF16", bf16(s)),
        "m.biases": ("BF16", bf16(b)),
    }
    settings: dict[str, Any] = {"bits": bits, "group_size": size}
    if own:
        settings = {"bits": 2, "group_size": 128, "m": settings, "lm_head": False}
    return settings, tensors, np.repeat(s, size, -1) * q + np.repeat(b, size, -1)


def nf4(seed: int, rows: int, width: int, nested: bool = True, size: int = 64, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 16, rows * width)
    padded = np.concatenate([q, np.zeros(len(q) % 2, int)]).reshape(-1, 2)
    table = np.sort(rng.normal(size=16)).astype(np.float32)
    n_blocks = -(-len(q) // size)
    state: dict[str, Any] = {"shape": [rows, width], "blocksize": size, "dtype": dtype}
    tensors: Tensors = {
        "m.weight": ("U8", (padded[:, :1] << 4 | padded[:, 1:]).astype(np.uint8)),
        "m.weight.quant_map": ("F32", table),
    }
    absmax = rng.random(n_blocks).astype(np.float32)
    if nested:
        codes = rng.integers(0, 256, n_blocks).astype(np.uint8)
        nested_map = rng.random(256).astype(np.float32)
        peaks = rng.random(-(-n_blocks // 4)).astype(np.float32)
        absmax = nested_map[codes] * np.repeat(peaks, 4)[:n_blocks] + np.float32(0.25)
        state |= {"nested_blocksize": 4, "nested_offset": 0.25}
        tensors |= {
            "m.weight.absmax": ("U8", codes),
            "m.weight.nested_quant_map": ("F32", nested_map),
            "m.weight.nested_absmax": ("F32", peaks),
        }
    else:
        tensors["m.weight.absmax"] = ("F32", absmax)
    raw = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors["m.weight.quant_state.bitsandbytes__nf4"] = ("U8", raw)
    values = (table[q] * np.repeat(absmax, size)[: len(q)]).reshape(rows, width)
    return {"quant_method": "bitsandbytes", "load_in_4bit": True}, tensors, values


CASES = {
    "gptq": (gptq(0, 40, 96, sym=True), "Q4_0"),
    "gptq, v2": (gptq(1, 40, 128, size=64, v2=True), "Q4_1"),
    "gptq, one group": (gptq(2, 8, 160, size=-1), "Q4_1"),
    "gptq, long scales": (gptq(3, 48, 256, size=128, short=False), "Q5_0"),
    "gptq, groups of 16": (gptq(4, 16, 64, size=16), "BF16"),
    "gptq, odd width": (gptq(5, 16, 40, size=40, sym=True), "BF16"),
    "gptq, act-order": (gptq(6, 40, 96, act_order=True), "BF16"),
    "gptq, act-order, long scales": (gptq(7, 40, 96, act_order=True, short=False), "F16"),
    "gptq, g_idx unused": (gptq(8, 40, 96, zero_g_idx=True, sym=True), "Q4_0"),
    "gptq, 8 bits": (gptq(9, 36, 96, bits=8, sym=True, short=False), "Q8_0"),
    "gptq, 8 bits with zero points": (gptq(10, 36, 96, bits=8, short=False), "F16"),
    "awq": (awq(11, 24, 128, 64), "Q4_1"),
    "awq, long scales": (awq(12, 24, 96, short=False), "Q5_0"),
    "awq, one group": (awq(13, 8, 64, -1), "Q4_1"),
    "ct, 4 bits": (compressed(14, 13, 128, size=64), "Q4_0"),
    "ct, 4 bits with zero points": (compressed(15, 13, 96, asym=True), "Q4_1"),
    "ct, 4 bits, act-order": (compressed(16, 16, 96, act_order=True), "BF16"),
    "ct, 4 bits, words not full": (compressed(17, 5, 52, size=13, asym=True), "BF16"),
    "ct, 8 bits": (compressed(18, 9, 96, bits=8, size=None), "Q8_0"),
    "ct, bytes": (compressed(19, 9, 96, bits=8, size=None, bytes=True), "Q8_0"),
    "ct, bytes with zero points": (compressed(20, 9, 96, bits=8, bytes=True, asym=True), "F16"),
    "fp8": (fp8(21, (50, 70), 32, 16), "BF16"),
    "fp8, partial blocks": (fp8(22, (192, 320), 128, 128), "BF16"),
    "fp8, one scale": (fp8(23, (9, 40), 9, 40, scale_shape=(), stated=None), "BF16"),
    "fp8, per output": (fp8(24, (9, 40), 1, 40, stated=None, ending="_scale"), "BF16"),
    "fp8, per output, flat": (fp8(25, (9, 40), 1, 40, stated=None, scale_shape=(9,)), "BF16"),
    "fp8, e5m2": (fp8(26, (9, 40), 4, 8, dtype="F8_E5M2"), "BF16"),
    "fp8, experts": (fp8(27, (3, 20, 24), 8, 16), "BF16"),
    "fp8, experts, one scale each": (fp8(28, (3, 20, 24), 20, 24, scale_shape=(3,), stated=None), "BF16"),
    "fp8, stacked": (fp8(29, (3, 20, 24), 8, 16, name="m.experts.gate_up_proj"), "BF16"),
    "nvfp4": (nvfp4(30, 6, 96), "BF16"),
    "nvfp4 of modelopt": (nvfp4(31, 6, 96, modelopt=True), "BF16"),
    "mlx": (mlx(32, (7, 128), 4, 64), "Q4_1"),
    "mlx, 3 bits": (mlx(33, (7, 128), 3, 32), "Q4_1"),
    "mlx, 5 bits": (mlx(34, (7, 128), 5, 32), "Q5_1"),
    "mlx, 6 bits": (mlx(35, (7, 128), 6, 32), "F16"),
    "mlx, 8 bits": (mlx(36, (7, 128), 8, 64), "F16"),
    "mlx, settings of its own": (mlx(37, (7, 128), 2, 32, own=True), "Q4_1"),
    "mlx, experts": (mlx(38, (2, 7, 64), 4, 32), "Q4_1"),
    "nf4": (nf4(39, 6, 128), "F32"),
    "nf4, blocks over rows": (nf4(40, 7, 45), "F32"),
    "nf4, not nested": (nf4(41, 6, 64, nested=False, size=32), "F32"),
    "nf4, float16": (nf4(42, 6, 64, dtype="float16"), "F16"),
}

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
    np.testing.assert_array_equal(matrix.reshape(3, -1), flat[1:4])
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
