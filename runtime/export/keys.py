"""GGUF metadata that says what a ModelConfig does, with the keys that llama.cpp's converter writes."""

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
from .rope import rope_keys

_LISTS_WINDOWS = ("olmo2", "exaone4", "gemma3n", "gemma4")  # layer by layer, as their converters do
_NEAR = 1e-6  # float32 keys


def gguf_architecture(config: ModelConfig) -> str:
    """`general.architecture` of a file for this model. UnsupportedModel if the format has none."""
    arch = ARCHS[config.arch]
    if arch.name == "granite4" and not config.recurrence and not config.moe:
        return "granite"  # what converters call one that is attention throughout
    if arch.name == "nemotron-h" and config.moe:
        return "nemotron_h_moe"
    if not arch.gguf:
        raise UnsupportedModel(f"GGUF has no {arch.name} models")
    return arch.gguf


def exported_keys(config: ModelConfig, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Keys and values that describe the model; whole numbers are uint32, others float32.

    `raw` is the part of config.json about the text model, for what ModelConfig does not keep.
    """
    c, name = config, gguf_architecture(config)
    arch, keys = ARCHS[c.arch], Metadata(raw, "config.json")
    norm = "attention.layer_norm_rms_epsilon" if arch.norm == "rms" else "attention.layer_norm_epsilon"
    own: dict[str, Any] = {
        "vocab_size": c.vocab_size,
        "context_length": c.context_length,
        "embedding_length": c.hidden,
        "block_count": c.n_layers,
        "feed_forward_length": _ffns(c),
        "attention.head_count": c.n_heads,
        "attention.head_count_kv": _kv_heads(c),
        norm: c.norm_eps,
        **_head_sizes(c),
        **rope_keys(c, arch, keys),
        **_windows(c, arch),
        **_scales(c, arch, raw),
        **_experts(c, keys),
        **_recurrence(c, keys),
        **_local_inputs(c),
    }
    if arch.name.startswith("nemotron-h"):  # readers ask for it under either name
        own["attention.layer_norm_epsilon"] = c.norm_eps
    if arch.name in ("stablelm", "gpt-neox"):
        own["use_parallel_residual"] = c.parallel
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in own.items()}


def _each_layer(values: list[int]) -> int | np.ndarray:
    """One number if it is the same for all layers, else all of them."""
    return values[0] if len(set(values)) == 1 else np.array(values, np.int32)


def _ffns(c: ModelConfig) -> int | np.ndarray:
    def width(layer: Layer) -> int:
        if not layer.has_ffn:
            return 0
        if layer.is_moe and c.moe and any(not each.has_ffn for each in c.layers):
            return c.moe.width
        return c.sizes(layer)[2]

    return _each_layer([width(layer) for layer in c.layers])


def _kv_heads(c: ModelConfig) -> int | np.ndarray:
    if c.recurrence and c.recurrence.kind == "gated_delta":  # other keys tell which layers attend
        return c.n_kv_heads
    return _each_layer([c.sizes(layer)[1] if layer.has_attention else 0 for layer in c.layers])


def _head_sizes(c: ModelConfig) -> dict[str, Any]:
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
    windows = [layer.window for layer in c.layers]
    widths = set(windows) - {0}
    if arch.window_in_gguf == "none" and not widths:
        return {}
    if len(widths) > 1:
        raise UnsupportedModel(f"GGUF cannot express windows of {len(widths)} widths")
    if not widths:
        return {"attention.sliding_window": 0} if arch.name == "phi3" else {}
    found: dict[str, Any] = {"attention.sliding_window": widths.pop()}
    usual = [bool((i + 1) % arch.window_period) for i in range(len(windows))]
    slides = [window > 0 for window in windows]
    if arch.window_in_gguf == "period" and (arch.gguf in _LISTS_WINDOWS or slides != usual):
        found["attention.sliding_window_pattern"] = np.array(slides)
    return found


def _scales(c: ModelConfig, arch: Arch, raw: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    named = arch.nope == "switch"  # Granite's files name all of them
    if not arch.scale_embedding and not arch.multipliers_in_gguf_weights and (named or c.embed_scale != 1.0):
        found["embedding_scale"] = c.embed_scale
    if named or c.residual_scale != 1.0:
        found["residual_scale"] = c.residual_scale
    if not arch.multipliers_in_gguf_weights and (named or c.logit_scale != 1.0):
        found["logit_scale"] = 1 / c.logit_scale if arch.logits_divided else c.logit_scale
    scale = c.attention_scale / (c.multipliers.key if arch.multipliers_in_gguf_weights else 1.0)
    if named or not math.isclose(scale, _usual_attention_scale(c, arch, raw), rel_tol=_NEAR):
        found["attention.scale"] = scale
    if c.attention_softcap:
        found["attn_logit_softcapping"] = c.attention_softcap
    if c.logit_softcap:
        found["final_logit_softcapping"] = c.logit_softcap
    return found


def _usual_attention_scale(c: ModelConfig, arch: Arch, raw: Mapping[str, Any]) -> float:
    """What a file's readers take scores times where it does not say."""
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
    e = c.moe
    if e is None:
        return {"expert_count": 0} if ARCHS[c.arch].name == "granite4" and c.recurrence else {}
    found: dict[str, Any] = {"expert_count": e.n_experts, "expert_used_count": e.top_k}
    dense = [i for i, layer in enumerate(c.layers) if layer.has_ffn and not layer.is_moe]
    if e.width != c.ffn or ARCHS[c.arch].gguf != "llama":
        found["expert_feed_forward_length"] = e.width
    if e.shared_width:
        found["expert_shared_feed_forward_length"] = e.shared_width
        found["expert_shared_count"] = -(-e.shared_width // e.width)
    if e.scoring == "sigmoid":
        found["expert_gating_func"] = 2
    arch = ARCHS[c.arch]
    if e.normalised != arch.normalised_in_gguf or e.scoring == "sigmoid":
        found["expert_weights_norm"] = e.normalised
    if e.scale != 1.0 or c.mla:
        found["expert_weights_scale"] = e.scale
    if e.groups > 1:
        found |= {"expert_group_count": e.groups, "expert_group_used_count": e.top_groups}
    if e.latent_width:
        found["moe_latent_size"] = e.latent_width
    leading = next((i for i, layer in enumerate(c.layers) if layer.is_moe), 0)
    if arch.gguf in ("deepseek2", "glm4moe", "lfm2moe", "ernie4_5-moe"):
        found["leading_dense_block_count"] = leading
        later = [i for i in dense if i > leading]
        if arch.gguf == "ernie4_5-moe":
            found["interleave_moe_layer_step"] = keys.integer("moe_layer_interval", 1)
        elif later:
            raise UnsupportedModel("GGUF cannot express dense layers behind those with experts")
    return found


def _recurrence(c: ModelConfig, keys: Metadata) -> dict[str, Any]:
    r = c.recurrence
    if r is None:
        return {}
    if r.kind == "short_conv":
        return {"shortconv.l_cache": r.taps}
    found: dict[str, Any] = {
        "ssm.conv_kernel": r.taps,
        "ssm.inner_size": r.inner,
        "ssm.state_size": r.state_size,
        "ssm.time_step_rank": r.heads,
        "ssm.group_count": r.groups,
    }
    if r.kind == "gated_delta":
        attends = [i for i, layer in enumerate(c.layers) if layer.has_attention]
        interval = keys.integer("full_attention_interval", attends[0] + 1 if attends else c.n_layers)
        found["full_attention_interval"] = interval
        usual = [i for i in range(c.n_layers) if (i + 1) % interval == 0]
        if attends != usual:
            found["attention.recurrent_layers"] = np.array([layer.has_recurrence for layer in c.layers])
    return found


def _local_inputs(c: ModelConfig) -> dict[str, Any]:
    """What Gemma 3n and 4 have: inputs of each layer, shared keys and values, several streams."""
    arch, found = ARCHS[c.arch], dict[str, Any]()
    if "inp_gate" not in arch.layer:
        return found
    found["embedding_length_per_layer_input"] = c.per_layer_input.width if c.per_layer_input else 0
    found["attention.shared_kv_layers"] = sum(layer.kv_from is not None for layer in c.layers)
    if c.altup:
        found |= {"altup.num_inputs": c.altup.streams, "altup.active_idx": c.altup.active}
        never = -math.inf
        each = [never if layer.std_multiplier is None else layer.std_multiplier for layer in c.layers]
        found["activation_sparsity_scale"] = np.array(each, np.float32)
    return found
