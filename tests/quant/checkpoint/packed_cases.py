"""Packed checkpoints of every scheme, made bit by bit, with the weights that they stand for."""

import json
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np

from kukri.quant.checkpoint.raw_tensors import float8_values

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
    "nvfp4": (nvfp4(32, 6, 128), "NVFP4"),
    "nvfp4 of modelopt": (nvfp4(33, 6, 192, modelopt=True), "NVFP4"),
    "nvfp4, narrow": (nvfp4(30, 6, 96), "BF16"),
    "nvfp4 of modelopt, narrow": (nvfp4(31, 6, 96, modelopt=True), "BF16"),
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
