"""RoPE in a GGUF file: its keys, and the tensors of frequency divisors for scalings that have no keys."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ...quant.errors import UnsupportedModel
from ...quant.gguf.gathered import GatheredTensor
from ..archs import Arch
from ..config.metadata import Metadata
from ..config.model_config import ModelConfig
from ..config.rope import DynamicNTK, Llama3Scaling, LongRope, Rope, Yarn, yarn_attention_factor
from ..config.rope_files import rope_entry
from .architectures import gguf_rules

_NEAR = 1e-6  # relative tolerance of numbers that are stored as float32
_NO_ROTATION = 1e30  # the divisor of pairs that are not rotated
_INFINITE = 1e29  # divisors from here on mean no rotation


def rope_keys(c: ModelConfig, arch: Arch, keys: Metadata) -> dict[str, Any]:
    """The rope.* keys; `keys` is the text model's part of config.json. Raises UnsupportedModel."""
    full = full_rope(c)
    switch: dict[str, Any] = {}
    if arch.nope == "switch":
        switch["rope.scaling.finetuned"] = full is not None
    if full is None:
        return switch
    entries = {"rope.dimension_count": full.dims, "rope.freq_base": full.base, **switch}
    if isinstance(full.scaling, DynamicNTK):
        raise UnsupportedModel("GGUF cannot express RoPE scaling dynamic")
    if isinstance(full.scaling, LongRope):
        entries["rope.scaling.original_context_length"] = full.scaling.original_context
        entries["rope.scaling.attn_factor"] = full.attention_factor
    elif isinstance(full.scaling, Yarn):
        entries |= _yarn(full, full.scaling, arch, keys)
    elif full.factor != 1.0:
        entries |= {"rope.scaling.type": "linear", "rope.scaling.factor": full.factor}
    local = next((layer.rope for layer in c.layers if layer.window and layer.rope), None)
    if local and arch.local_rope_base is not None:
        entries["rope.freq_base_swa"] = local.base
        if local.dims != full.dims:
            entries["rope.dimension_count_swa"] = local.dims
    if c.attention_temperature[0]:
        entries["attention.temperature_scale"] = c.attention_temperature[0]
        if c.attention_temperature[1] != entries.get(
            "rope.scaling.original_context_length", c.context_length
        ):
            entries["attention.temperature_length"] = c.attention_temperature[1]
    if default_sections := gguf_rules(arch.gguf).mrope_sections:
        sections = (rope_entry(keys).values.get("mrope_section") or list(default_sections))[:4]
        entries["rope.dimension_sections"] = np.array([*sections, 0, 0, 0, 0][:4], np.int32)
    return entries


def _yarn(rope: Rope, scaling: Yarn, arch: Arch, keys: Metadata) -> dict[str, Any]:
    """The keys of YaRN; the attention factor only if it is not the one that readers compute."""
    entries: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling.factor,
        "rope.scaling.original_context_length": int(scaling.original_context),
        "rope.scaling.yarn_beta_fast": scaling.fast_turns,
        "rope.scaling.yarn_beta_slow": scaling.slow_turns,
    }
    scale = rope_entry(keys).number("mscale_all_dim", 0.0, zero=True)
    if scale:
        entries["rope.scaling.yarn_log_multiplier"] = scale * arch.yarn_log_unit
    usual = yarn_attention_factor(scaling.factor, scale if arch.yarn_log_unit != 1.0 else 1.0, scale)
    if not math.isclose(usual, rope.attention_factor, rel_tol=_NEAR):
        entries["rope.scaling.yarn_attn_factor"] = rope.attention_factor
    return entries


def rope_tensors(config: ModelConfig) -> Iterable[GatheredTensor]:
    """Tensors with the divisors of the frequencies, for the scalings that GGUF stores as tensors."""
    full = full_rope(config)
    if full is None:
        return []
    if isinstance(full.scaling, LongRope):
        factors = {"long": full.scaling.divisors, "short": full.divisors}
        return [
            GatheredTensor.from_values(f"rope_factors_{length}.weight", np.array(values))
            for length, values in factors.items()
        ]
    if isinstance(full.scaling, Llama3Scaling):
        return [GatheredTensor.from_values("rope_freqs.weight", llama3_divisors(full, full.scaling))]
    if full.divisors:
        values = np.array(full.divisors)
        return [
            GatheredTensor.from_values(
                "rope_freqs.weight", np.where(values < _INFINITE, values, _NO_ROTATION)
            )
        ]
    return []


def full_rope(config: ModelConfig) -> Rope | None:
    """The RoPE of layers without a window; of layers with one if all have a window; None without RoPE."""
    ropes = [(bool(layer.window), layer.rope) for layer in config.layers if layer.rope]
    return min(ropes, key=lambda pair: pair[0])[1] if ropes else None


def llama3_divisors(rope: Rope, scaling: Llama3Scaling) -> np.ndarray:
    """The divisor of each pair's frequency, float32 [dims / 2]."""
    plain = replace(rope, scaling=None).inv_freq().astype(np.float64)
    turns = scaling.original_context * plain / (2 * np.pi)
    keep = np.clip((turns - scaling.low_turns) / (scaling.high_turns - scaling.low_turns), 0, 1)
    return (1 / ((1 - keep) / scaling.factor + keep)).astype(np.float32)
