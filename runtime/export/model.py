"""Export: the metadata and tensors of a GGUF file for a model from a Hugging Face folder.

The metadata are read back and compared before anything is written, so that a model that GGUF cannot
describe is refused and never changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import UnsupportedModel
from ...quant.formats import FORMATS
from ...quant.gguf.gathered import GatheredTensor
from ..archs import ARCHS
from ..config.from_gguf import config_from_gguf
from ..config.layers import Layer
from ..config.model_config import ModelConfig
from ..config.recurrent import Multipliers
from ..config.rope import Rope
from ..weights.binding import Weights
from .keys import exported_keys
from .tensors import exported_tensors, permutes, splits_output

_CLOSE = 1e-5  # relative tolerance of numbers that are stored as float32


@dataclass(frozen=True)
class GGUFContents:
    """The contents of a GGUF file: metadata by key, and tensors in file order."""

    metadata: dict[str, Any]
    tensors: list[GatheredTensor]


def export_model(config: ModelConfig, weights: Weights, raw: Mapping[str, Any]) -> GGUFContents:
    """The GGUF file contents of a model; `raw` is its config.json.

    Raises UnsupportedModel, with the reason in one line, for an architecture or variant that GGUF cannot
    express.
    """
    text = raw.get("text_config")
    metadata = exported_keys(config, text if isinstance(text, Mapping) else raw)
    tensors = exported_tensors(config, weights)
    _check_round_trip(config, metadata, tensors)
    return GGUFContents(metadata, tensors)


def _check_round_trip(config: ModelConfig, metadata: dict[str, Any], tensors: list[GatheredTensor]) -> None:
    """Raise UnsupportedModel unless the metadata read back as the same model."""
    outlines = {tensor.name: _outline(tensor) for tensor in tensors}
    read_back = config_from_gguf(metadata, outlines)
    if wrong := difference(as_gguf(config), read_back):
        raise UnsupportedModel(f"GGUF cannot express this {config.arch} model: its {wrong}")


def _outline(tensor: GatheredTensor) -> QTensor:
    """A tensor without data; RoPE divisors keep theirs, which the configuration is read from."""
    if tensor.name.startswith("rope_"):
        return replace(tensor.parts[0], name=tensor.name)
    return QTensor(tensor.name, FORMATS["F32"], tensor.shape, np.empty((0, 0), np.uint8))


def as_gguf(config: ModelConfig) -> ModelConfig:
    """The configuration of a GGUF file of this model, whose weights include some scales and permutations."""
    arch, r = ARCHS[config.arch], config.recurrence
    layers = config.layers
    if permutes(config):
        layers = tuple(
            replace(layer, rope=layer.rope and replace(layer.rope, interleaved=True)) for layer in layers
        )
    changes: dict[str, Any] = {"from_gguf": True, "norm_offset": 0.0, "mtp_layers": 0, "layers": layers}
    if r:
        changes["recurrence"] = replace(r, tiled=arch.tiled_in_gguf, part_scales=(1.0,) * 5)
    changes["tied"] = config.tied and not splits_output(config)
    if arch.multipliers_in_gguf_weights:
        changes |= {"embed_scale": 1.0, "logit_scale": 1.0, "multipliers": Multipliers()}
        changes["attention_scale"] = config.attention_scale / config.multipliers.key
    return replace(config, **changes)


def difference(expected: ModelConfig, got: ModelConfig) -> str:
    """The first property in which two configurations describe different models; "" if there is none."""
    for field in fields(ModelConfig):
        if field.name in ("arch", "layers", "head_dim", "n_kv_heads", "ffn", "attention_temperature"):
            continue
        if field.name == "norms":  # norms of parts that no layer has do not count
            same = _used_norms(expected) == _used_norms(got)
        elif field.name == "recurrence" and expected.recurrence and got.recurrence:
            same = _same_recurrence(expected, got)
        else:
            same = _same(getattr(expected, field.name), getattr(got, field.name))
        if not same:
            return f"{field.name} ({_shown(getattr(expected, field.name))})"
    if expected.attention_temperature[0] != 0 and not _same(
        expected.attention_temperature, got.attention_temperature
    ):
        return "attention_temperature"
    if len(expected.layers) != len(got.layers):
        return "number of layers"
    for i, (a, b) in enumerate(zip(expected.layers, got.layers, strict=True)):
        for field in fields(Layer):
            if field.name in ("head_dim", "kv_heads", "ffn"):
                continue
            if not _same(getattr(a, field.name), getattr(b, field.name)):
                return f"layer {i}'s {field.name} ({_shown(getattr(a, field.name))})"
        sizes, got_sizes = expected.sizes(a), got.sizes(b)
        has_heads = a.has_attention and not expected.mla
        has_ffn = a.has_ffn and not a.is_moe
        if (has_heads and sizes[:2] != got_sizes[:2]) or (has_ffn and sizes[2] != got_sizes[2]):
            return f"layer {i}'s sizes {sizes}"
    return ""


def _used_norms(config: ModelConfig) -> frozenset[str]:
    return frozenset(stem for stem in config.norms if stem != "ssm_norm" or config.recurrence)


def _same_recurrence(a: ModelConfig, b: ModelConfig) -> bool:
    """Compare the recurrences; head order does not count with one group, or one head a group."""
    x, y = a.recurrence, b.recurrence
    assert x
    assert y
    if x.groups in (1, x.heads):
        x, y = replace(x, tiled=False), replace(y, tiled=False)
    return _same(x, y)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Rope) and isinstance(b, Rope):
        return _same_rope(a, b)
    if isinstance(a, float) and isinstance(b, float | int):
        return a == b or math.isclose(a, b, rel_tol=_CLOSE)
    if is_dataclass(a) and type(a) is type(b):
        return all(_same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _same_rope(a: Rope, b: Rope) -> bool:
    """Whether two RoPEs rotate alike, at any length."""
    if (a.dims, a.interleaved, a.original_context) != (b.dims, b.interleaved, b.original_context):
        return False
    lengths = (0, a.original_context + 1)
    equal = all(np.allclose(a.inv_freq(n), b.inv_freq(n), rtol=_CLOSE, atol=_CLOSE * 1e-6) for n in lengths)
    return equal and math.isclose(a.attention_factor, b.attention_factor, rel_tol=_CLOSE)


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:79] + "…"
