"""The GGUF metadata of a ModelConfig, with the keys that llama.cpp's converter writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...quant.errors import UnsupportedModel
from ..archs import ARCHS, Arch
from ..config.layers import Layer
from ..config.metadata import Metadata
from ..config.mla import yarn_score_scale_from_gguf
from ..config.model_config import ModelConfig
from .architectures import gguf_rules
from .rope import rope_keys

_NEAR = 1e-6  # relative tolerance of numbers that are stored as float32


def gguf_architecture(config: ModelConfig) -> str:
    """`general.architecture` of a file of this model. Raises UnsupportedModel if the format has none."""
    arch = ARCHS[config.arch]
    if not arch.gguf:
        raise UnsupportedModel(f"GGUF has no {arch.name} models")
    rules = gguf_rules(arch.gguf)
    if rules.attention_only_name and not config.recurrence and not config.moe:
        return rules.attention_only_name
    if rules.moe_name and config.moe:
        return rules.moe_name
    return arch.gguf


def exported_keys(config: ModelConfig, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys and values that describe the model; readers take integers as uint32, floats as float32.

    `raw` is the text model's part of config.json, for values that ModelConfig does not keep. Raises
    UnsupportedModel for what no key can express.
    """
    c, name = config, gguf_architecture(config)
    arch, keys = ARCHS[c.arch], Metadata(raw, "config.json")
    rules = gguf_rules(arch.gguf)
    norm = "attention.layer_norm_rms_epsilon" if arch.norm == "rms" else "attention.layer_norm_epsilon"
    values: dict[str, Any] = {
        "vocab_size": c.vocab_size,
        "context_length": c.context_length,
        "embedding_length": c.hidden,
        "block_count": c.n_layers,
        "feed_forward_length": _ffn_widths(c),
        "attention.head_count": c.n_heads,
        "attention.head_count_kv": _kv_heads(c),
        norm: c.norm_eps,
        **_head_sizes(c),
        **rope_keys(c, arch, keys),
        **_windows(c, arch),
        **_scales(c, arch, raw),
        **_experts(c, keys),
        **_recurrence(c, keys),
        **_per_layer_inputs(c),
    }
    if rules.layer_norm_epsilon:
        values["attention.layer_norm_epsilon"] = c.norm_eps
    if rules.parallel_residual:
        values["use_parallel_residual"] = c.parallel
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in values.items()}


def _each_layer(values: list[int]) -> int | np.ndarray:
    """One number if it is the same for all layers, otherwise an int32 array of all."""
    return values[0] if len(set(values)) == 1 else np.array(values, np.int32)


def _ffn_widths(c: ModelConfig) -> int | np.ndarray:
    """The width of each layer's FFN, 0 in layers without one."""

    def width(layer: Layer) -> int:
        if not layer.has_ffn:
            return 0
        if layer.is_moe and c.moe and any(not other.has_ffn for other in c.layers):
            return c.moe.width
        return c.sizes(layer)[2]

    return _each_layer([width(layer) for layer in c.layers])


def _kv_heads(c: ModelConfig) -> int | np.ndarray:
    """The key-value heads of each layer, 0 in layers without attention."""
    if c.recurrence and c.recurrence.kind == "gated_delta":  # other keys state the layers with attention
        return c.n_kv_heads
    return _each_layer([c.sizes(layer)[1] if layer.has_attention else 0 for layer in c.layers])


def _head_sizes(c: ModelConfig) -> dict[str, Any]:
    """The sizes of heads, of layers with and without a window, or of latent attention (MLA)."""
    if latent := c.mla:
        sizes = {
            "attention.kv_lora_rank": latent.kv_rank,
            "attention.key_length": latent.cache_width,
            "attention.value_length": latent.kv_rank,
            "attention.key_length_mla": latent.head_dim,
            "attention.value_length_mla": latent.value_dim,
        }
        return sizes | ({"attention.q_lora_rank": latent.q_rank} if latent.q_rank else {})
    full = next((c.sizes(layer)[0] for layer in c.layers if not layer.window), c.head_dim)
    sizes = {"attention.key_length": full, "attention.value_length": full}
    local = {c.sizes(layer)[0] for layer in c.layers if layer.window}
    if local - {full}:
        size = min(local)
        sizes |= {"attention.key_length_swa": size, "attention.value_length_swa": size}
    return sizes


def _windows(c: ModelConfig, arch: Arch) -> dict[str, Any]:
    """The sliding window, and which layers have it if that does not follow from the architecture."""
    rules = gguf_rules(arch.gguf)
    windows = [layer.window for layer in c.layers]
    widths = set(windows) - {0}
    if arch.window_in_gguf == "none" and not widths:
        return {}
    if len(widths) > 1:
        raise UnsupportedModel(f"GGUF cannot express windows of {len(widths)} widths")
    if not widths:
        return {"attention.sliding_window": 0} if rules.zero_window else {}
    keys: dict[str, Any] = {"attention.sliding_window": widths.pop()}
    usual = [bool((i + 1) % arch.window_period) for i in range(len(windows))]
    slides = [window > 0 for window in windows]
    if arch.window_in_gguf == "period" and (rules.window_list or slides != usual):
        keys["attention.sliding_window_pattern"] = np.array(slides)
    return keys


def _scales(c: ModelConfig, arch: Arch, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Multipliers of embeddings, residuals, logits and attention scores that are not 1, and soft caps."""
    entries: dict[str, Any] = {}
    all_scales = arch.nope == "switch"  # Granite's files have all four, also those that are 1
    if (
        not arch.scale_embedding
        and not arch.multipliers_in_gguf_weights
        and (all_scales or c.embed_scale != 1.0)
    ):
        entries["embedding_scale"] = c.embed_scale
    if all_scales or c.residual_scale != 1.0:
        entries["residual_scale"] = c.residual_scale
    if not arch.multipliers_in_gguf_weights and (all_scales or c.logit_scale != 1.0):
        entries["logit_scale"] = 1 / c.logit_scale if arch.logits_divided else c.logit_scale
    scale = c.attention_scale / (c.multipliers.key if arch.multipliers_in_gguf_weights else 1.0)
    if all_scales or not math.isclose(scale, _usual_attention_scale(c, arch, raw), rel_tol=_NEAR):
        entries["attention.scale"] = scale
    if c.attention_softcap:
        entries["attn_logit_softcapping"] = c.attention_softcap
    if c.logit_softcap:
        entries["final_logit_softcapping"] = c.logit_softcap
    return entries


def _usual_attention_scale(c: ModelConfig, arch: Arch, raw: Mapping[str, Any]) -> float:
    """The scale of attention scores that readers assume for files without `attention.scale`."""
    by_hidden = c.n_layers == arch.scale_by_hidden_at
    head_dim = c.mla.head_dim if c.mla else _head_sizes(c)["attention.key_length"]
    usual: float = arch.attention_scale or (c.hidden / c.n_heads if by_hidden else head_dim) ** -0.5
    return usual * (
        yarn_score_scale_from_gguf(
            Metadata(rope_keys(c, arch, Metadata(raw, "config.json")), "config.json"), arch
        )
        if c.mla
        else 1.0
    )


def _experts(c: ModelConfig, keys: Metadata) -> dict[str, Any]:
    """Number, widths and routing of experts, and the layers that have none."""
    e, arch = c.moe, ARCHS[c.arch]
    rules = gguf_rules(arch.gguf)
    if e is None:
        return {"expert_count": 0} if rules.zero_experts and c.recurrence else {}
    entries: dict[str, Any] = {"expert_count": e.n_experts, "expert_used_count": e.top_k}
    if e.width != c.ffn or not rules.experts_have_ffn_width:
        entries["expert_feed_forward_length"] = e.width
    if e.shared_width:
        entries["expert_shared_feed_forward_length"] = e.shared_width
        entries["expert_shared_count"] = -(-e.shared_width // e.width)
    if e.scoring == "sigmoid":
        entries["expert_gating_func"] = 2
    if e.normalised != arch.normalised_in_gguf or e.scoring == "sigmoid":
        entries["expert_weights_norm"] = e.normalised
    if e.scale != 1.0 or c.mla:
        entries["expert_weights_scale"] = e.scale
    if e.groups > 1:
        entries |= {"expert_group_count": e.groups, "expert_group_used_count": e.top_groups}
    if e.latent_width:
        entries["moe_latent_size"] = e.latent_width
    leading = next((i for i, layer in enumerate(c.layers) if layer.is_moe), 0)
    has_later_dense = any(layer.has_ffn and not layer.is_moe for layer in c.layers[leading + 1 :])
    if rules.leading_dense:
        entries["leading_dense_block_count"] = leading
    if rules.moe_step:
        entries["interleave_moe_layer_step"] = keys.integer("moe_layer_interval", 1)
    elif rules.leading_dense and has_later_dense:
        raise UnsupportedModel("GGUF cannot express dense layers behind those with experts")
    return entries


def _recurrence(c: ModelConfig, keys: Metadata) -> dict[str, Any]:
    """Sizes of recurrent layers, and which layers have attention instead."""
    r = c.recurrence
    if r is None:
        return {}
    if r.kind == "short_conv":
        return {"shortconv.l_cache": r.taps}
    entries: dict[str, Any] = {
        "ssm.conv_kernel": r.taps,
        "ssm.inner_size": r.inner,
        "ssm.state_size": r.state_size,
        "ssm.time_step_rank": r.heads,
        "ssm.group_count": r.groups,
    }
    if r.kind == "gated_delta":
        attends = [i for i, layer in enumerate(c.layers) if layer.has_attention]
        interval = keys.integer("full_attention_interval", attends[0] + 1 if attends else c.n_layers)
        entries["full_attention_interval"] = interval
        usual = [i for i in range(c.n_layers) if (i + 1) % interval == 0]
        if attends != usual:
            entries["attention.recurrent_layers"] = np.array([layer.has_recurrence for layer in c.layers])
    return entries


def _per_layer_inputs(c: ModelConfig) -> dict[str, Any]:
    """Keys of Gemma 3n and 4: per-layer inputs, shared keys and values, AltUp, activation sparsity."""
    arch, entries = ARCHS[c.arch], dict[str, Any]()
    if "inp_gate" not in arch.layer:
        return entries
    entries["embedding_length_per_layer_input"] = c.per_layer_input.width if c.per_layer_input else 0
    entries["attention.shared_kv_layers"] = sum(layer.kv_from is not None for layer in c.layers)
    if c.altup:
        entries |= {"altup.num_inputs": c.altup.streams, "altup.active_idx": c.altup.active}
        deviations = [
            -math.inf if layer.std_multiplier is None else layer.std_multiplier for layer in c.layers
        ]
        entries["activation_sparsity_scale"] = np.array(deviations, np.float32)
    return entries
