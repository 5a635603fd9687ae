"""Conformance fixtures as GGUF files, written with the `gguf` package as converters do.

Names come from the package's own table, so that a wrong one of ours does not agree with itself.
"""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.tests.gguf_recurrent import falcon_scale, recurrent_tensors

PERMUTED = {
    "llama",
    "mistral3",
    "granite",
    "granitehybrid",
    "smollm3",
}  # q and k in pairs; halves in the other
LAYER_NORM = {"stablelm", "command-r", "cohere2", "starcoder2", "gpt2", "gptneox"}
WIDTHS = ("intermediate_size", "n_inner")


def as_gguf(folder: Path, path: Path, arch: str, whole: Container[str] = (), **extra: Any) -> Path:
    """Write the fixture in `folder` to `path`. `extra` are keys without the architecture's name in front;
    `whole` names tensors that today's converters take apart, but older ones did not."""
    checkpoint = Checkpoint.open(folder)
    config: dict[str, Any] = checkpoint.config.get("text_config", checkpoint.config)
    hidden = config.get("hidden_size") or config["n_embd"]
    heads = config.get("num_attention_heads") or config["n_head"]
    kv_heads = config.get("num_key_value_heads", heads)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    width = next((config[key] for key in WIDTHS if key in config), 4 * hidden)
    head_dim = config.get("head_dim", hidden // heads)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.get("max_position_embeddings") or config["n_positions"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    if "feed_forward_length" not in extra:
        writer.add_feed_forward_length(width)
    writer.add_head_count(heads)
    if "attention.head_count_kv" not in extra:
        writer.add_head_count_kv(kv_heads)
    writer.add_vocab_size(config["vocab_size"])
    if "head_dim" in config and "attention.key_length" not in extra:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    eps = next(config[key] for key in config if key.endswith(("norm_eps", "norm_epsilon")))
    (writer.add_layer_norm_eps if arch in LAYER_NORM else writer.add_layer_norm_rms_eps)(eps)
    v5 = json.loads((folder / "config.v5.json").read_text())
    v5 = v5.get("text_config", v5).get("rope_parameters", {})
    base = v5.get("full_attention", v5).get("rope_theta")
    if base and "rope.freq_base" not in extra:
        writer.add_rope_freq_base(float(base))
    for key, value in extra.items():
        _add(writer, f"{arch}.{key}", value)
    for name, tensor in _tensors(checkpoint, arch, heads, kv_heads, layers, whole).items():
        writer.add_tensor(name, np.ascontiguousarray(tensor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _tensors(
    checkpoint: Checkpoint, arch: str, heads: int, kv_heads: int, layers: int, whole: Container[str]
) -> dict[str, np.ndarray]:
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    table = gguf.get_tensor_name_map(number, layers)
    out: dict[str, np.ndarray] = {}
    config: dict[str, Any] = checkpoint.config.get("text_config", checkpoint.config)
    stacks: dict[str, list[np.ndarray]] = {}
    for stored, tensor in checkpoint.tensors.items():
        values = tensor.dequantize()
        if stored.endswith(".attn.bias") or stored.startswith(("model.visual.", "mtp.")):
            continue
        if arch == "granitehybrid" and "_linear" in stored:  # names that the table does not have
            block, dense = f"blk.{stored.split('.')[2]}", not config["num_local_experts"]
            kind = "_exps" if "block_sparse" in stored else "" if dense else "_shexp"
            if "input" in stored:
                halves = np.split(values, 2, axis=-2)
                out |= zip(
                    (f"{block}.ffn_{part}{kind}.weight" for part in ("gate", "up")), halves, strict=True
                )
            else:
                out[f"{block}.ffn_down{kind}.weight"] = values
            continue
        if mixer := recurrent_tensors(stored, values, config, arch):
            out |= mixer
            continue
        stored = stored.replace("model.language_model.", "model.")
        if f".layers.{layers}." in stored or ".mtp_" in stored or ".experts." in stored:
            continue
        if "kv_b_proj" in stored and "attn_kv_b" not in whole:
            block, n = f"blk.{stored.split('.')[2]}", checkpoint.config["qk_nope_head_dim"]
            by_head = values.reshape(heads, -1, values.shape[-1])
            out[f"{block}.attn_k_b.weight"] = by_head[:, :n].swapaxes(1, 2)
            out[f"{block}.attn_v_b.weight"] = by_head[:, n:]
            continue
        if stored.endswith(("router.scale", "per_expert_scale")):
            of = "ffn_down_exps" if "per_expert" in stored else "ffn_gate_inp"
            out[f"blk.{stored.split('.')[2]}.{of}.scale"] = values
            continue
        if "altup" in stored and "projections" in stored:
            stacks.setdefault(stored.split(".")[1], []).append(values)
            continue
        if stored.endswith(("e_score_correction_bias", "expert_bias")):
            out[f"blk.{stored.split('.')[2]}.exp_probs_b.bias"] = values.reshape(-1)
            continue
        name = table.get_name(stored, try_suffixes=(".weight", ".bias"))
        name = f"{name}.weight" if stored.endswith(("sinks", "_scale", "layer_scalar")) else name
        assert name, stored
        offset = arch in ("gemma", "gemma2", "gemma3") or arch.startswith(("qwen3next", "qwen35"))
        if offset and name.endswith("norm.weight"):
            values = values + 1
        if arch == "gpt2" and name.startswith("blk.") and values.ndim == 2:
            values = values.T
        if arch == "gptneox" and "attn_qkv" in name:
            by_head = values.reshape(heads, 3, -1, *values.shape[1:])
            values = by_head.swapaxes(0, 1).reshape(values.shape)
        if arch in PERMUTED and ("attn_q." in name or "attn_k." in name):
            n = heads if "attn_q." in name else kv_heads
            values = values.reshape(n, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        values = values * falcon_scale(name, config) if arch == "falcon-h1" else values
        out[name] = values.reshape(-1) if "shared_expert_gate" in stored else values
    for layer in range(layers):
        out |= _experts(checkpoint, layer)
    for stored, matrices in stacks.items():
        out[table.get_name(f"model.{stored}") + ".weight"] = np.stack(matrices)
    return out | rope_tensors(checkpoint.config)


def _experts(checkpoint: Checkpoint, layer: int) -> dict[str, np.ndarray]:
    """The experts of a layer stacked, if it has any: [experts, outputs, inputs]."""
    held = {
        name.partition(".experts.")[2]: tensor.dequantize()
        for name, tensor in checkpoint.tensors.items()
        if f".layers.{layer}." in name and ".experts." in name
    }
    stacked = {}
    for part, old in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        names = [f"{part}_proj.weight", f"{old}.weight"]
        each = [held[f"{e}.{n}"] for e in range(len(held)) for n in names if f"{e}.{n}" in held]
        if each:
            stacked[f"blk.{layer}.ffn_{part}_exps.weight"] = np.stack(each)
    if "gate_up_proj" in held and "gate_up_proj_bias" not in held:  # [experts, outputs, inputs]
        if "gemma" in checkpoint.config["model_type"]:  # as it is
            stacked[f"blk.{layer}.ffn_gate_up_exps.weight"] = held["gate_up_proj"]
        else:
            for part, values in zip(("gate", "up"), np.split(held["gate_up_proj"], 2, axis=1), strict=True):
                stacked[f"blk.{layer}.ffn_{part}_exps.weight"] = values
        stacked[f"blk.{layer}.ffn_down_exps.weight"] = held["down_proj"]
    elif "gate_up_proj" in held:  # gpt-oss: [experts, inputs, outputs], gate and up in turns
        for first, part in enumerate(("gate", "up")):
            name = f"blk.{layer}.ffn_{part}_exps"
            stacked[f"{name}.weight"] = held["gate_up_proj"][:, :, first::2].swapaxes(1, 2)
            stacked[f"{name}.bias"] = held["gate_up_proj_bias"][:, first::2]
        stacked[f"blk.{layer}.ffn_down_exps.weight"] = held["down_proj"].swapaxes(1, 2)
        stacked[f"blk.{layer}.ffn_down_exps.bias"] = held["down_proj_bias"]
    return stacked


def rope_tensors(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """What stands in tensors of llama3 scaling and of LongRoPE, by the formulas of their authors."""
    full = (config.get("rope_parameters") or {}).get("full_attention", {})
    if full.get("rope_type") == "proportional":
        pairs = config["global_head_dim"] // 2
        turning = int(pairs * full["partial_rotary_factor"])
        return {"rope_freqs.weight": np.where(np.arange(pairs) < turning, 1.0, 1e30)}
    scaling = config.get("rope_scaling") or {}
    if "long_factor" in scaling:
        return {
            f"rope_factors_{kind}.weight": np.array(scaling[f"{kind}_factor"]) for kind in ("short", "long")
        }
    if scaling.get("rope_type") != "llama3":
        return {}
    turns = config["rope_theta"] ** -np.linspace(0, 1, config["head_dim"] // 2, endpoint=False)
    waves = 2 * np.pi / turns
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (original / waves - low) / (high - low)
    blended = 1 / ((1 - smooth) / factor + smooth)
    divisors = np.where(waves < original / high, 1.0, np.where(waves > original / low, factor, blended))
    return {"rope_freqs.weight": divisors}
