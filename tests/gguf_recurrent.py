"""What becomes of a recurrent mixer's tensors in a GGUF file, as converters do it."""

from __future__ import annotations

from typing import Any

import numpy as np

MAMBA = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "norm": "ssm_norm", "out_proj": "ssm_out"}
CONV = {"conv": "shortconv.conv", "in_proj": "shortconv.in_proj", "out_proj": "shortconv.out_proj"}
DELTA = {
    **MAMBA,
    "in_proj_qkv": "attn_qkv",
    "in_proj_z": "attn_gate",
    "in_proj_b": "ssm_beta",
    "in_proj_a": "ssm_alpha",
    "in_proj_ba": "ssm_ba",
}
MIXERS = {".mamba.": MAMBA, ".mixer.": MAMBA, ".conv.": CONV, ".linear_attn.": DELTA}


def recurrent_tensors(
    stored: str, values: np.ndarray, config: dict[str, Any], arch: str
) -> dict[str, np.ndarray]:
    """The tensors that the checkpoint's tensor `stored` becomes; none if it is no mixer's."""
    mixer = next((part for part in MIXERS if part in stored), None)
    if mixer is None:
        return {}
    before, _, name = stored.partition(mixer)
    block, delta = f"blk.{before.rpartition('.')[2]}", mixer == ".linear_attn."
    if delta and arch != "qwen3next":
        values = _tiled(name, values, config)
    if name == "A_log":
        values = -np.exp(values)
    if name in ("A_log", "D"):
        return {f"{block}.ssm_{name[0].lower()}": values if delta else values[:, None]}
    if name == "dt_bias":
        return {f"{block}.ssm_dt.bias": values}
    stem, _, kind = name.rpartition(".")
    if stem == "in_proj_qkvz":
        q, k, v, z = _by_kind(values, config)
        return {f"{block}.attn_qkv.weight": np.concatenate([q, k, v]), f"{block}.attn_gate.weight": z}
    if stem not in MIXERS[mixer]:
        return {}
    if kind == "weight" and values.ndim == 3:  # a convolution
        values = values[:, 0]
    if stem == "norm" and not delta:
        values = values.reshape(config.get("mamba_n_groups", config.get("n_groups")), -1)
    if arch == "falcon-h1" and stem == "in_proj":
        values = values * _falcon_parts(config)[:, None]
    if arch == "falcon-h1" and stem == "out_proj":
        values = values * config["ssm_out_multiplier"]
    return {f"{block}.{MIXERS[mixer][stem]}.{kind}": values}


def _heads(config: dict[str, Any]) -> tuple[int, int, int, int]:
    """Key heads, their dimension, value heads for each of them, their dimension."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return keys, config["linear_key_head_dim"], values // keys, config["linear_value_head_dim"]


def _by_kind(values: np.ndarray, config: dict[str, Any]) -> list[np.ndarray]:
    """All queries, all keys, all values, all gates, out of those of one key head after the other."""
    groups, key_dim, each, value_dim = _heads(config)
    rows = values.reshape(groups, -1, values.shape[-1])
    ends = np.cumsum([key_dim, key_dim, each * value_dim])
    return [part.reshape(-1, values.shape[-1]) for part in np.split(rows, ends, axis=1)]


def _tiled(name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Value heads in the order in which they take turns with the key heads."""
    groups, key_dim, each, _ = _heads(config)

    def turned(rows: np.ndarray) -> np.ndarray:
        width = len(rows) // (groups * each)
        return rows.reshape(groups, each, width, -1).swapaxes(0, 1).reshape(rows.shape)

    if name.startswith("out_proj"):
        return turned(values.T).T
    if name.startswith(("in_proj_qkv", "conv1d")):
        keys = 2 * groups * key_dim
        return np.concatenate([values[:keys], turned(values[keys:])])
    return values if name.startswith("norm") else turned(values)


def _falcon_parts(config: dict[str, Any]) -> np.ndarray:
    grouped = config["mamba_n_groups"] * config["mamba_d_state"]
    sizes = [config["mamba_d_ssm"]] * 2 + [grouped] * 2 + [config["mamba_n_heads"]]
    return np.repeat(config["ssm_multipliers"], sizes) * config["ssm_in_multiplier"]


def falcon_scale(name: str, config: dict[str, Any]) -> float:
    """What Falcon-H1's other matrices are multiplied with, by their GGUF names."""
    stem = name.removesuffix(".weight").rpartition(".")[2]
    scales = {
        "token_embd": config["embedding_multiplier"],
        "output": config["lm_head_multiplier"],
        "attn_q": config["attention_in_multiplier"],
        "attn_k": config["attention_in_multiplier"] * config["key_multiplier"],
        "attn_v": config["attention_in_multiplier"],
        "attn_output": config["attention_out_multiplier"],
        "ffn_gate": config["mlp_multipliers"][0],
        "ffn_down": config["mlp_multipliers"][1],
    }
    return float(scales.get(stem, 1.0))
