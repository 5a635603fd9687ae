"""A ModelConfig, read from the metadata and tensors of a GGUF file.

What the file says goes before what the row of its architecture in `ARCHS` says, and which tensors exist goes
before both. Source: the list of keys in the GGUF specification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...quant.block import QTensor
from ...quant.errors import UnsupportedModel
from ..archs import ARCHS, Arch
from .altup import altup_from_gguf
from .layer_sizes import first_width, sized_layers_from_gguf
from .layers import Layer, layers_from_gguf, seen_both_ways
from .metadata import Metadata
from .mla import MLAConfig, mla_from_gguf, yarn_score_scale_from_gguf
from .model_config import ModelConfig
from .moe import moe_from_gguf
from .per_layer import per_layer_from_gguf
from .reading import (
    MAX_MTP_LAYERS,
    biases_of,
    check_gguf_kind,
    choose_arch,
    embedding_fields,
    fields_of_arch,
    head_dim_of,
    is_causal,
    layer_count,
    moe_layers,
    norms_of,
    unsupported_arch,
    vocab_size_of,
    why_no_text,
)
from .recurrent import mixers_by_tensors, recurrent_from_gguf
from .rope_files import rope_from_gguf
from .tensor_names import TensorNames

_SCORING_HEAD = re.compile(r"cls(_out|\.output)?\.(weight|bias)")  # of rerankers


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, QTensor]) -> ModelConfig:
    """The configuration of a GGUF file. Of `tensors` only names, shapes and RoPE's divisors are read.

    Raises DamagedFile, or UnsupportedModel for an architecture or variant that is not in `ARCHS`.
    """
    check_gguf_kind(metadata, len(tensors))
    arch, keys = _arch_and_keys(metadata)
    moe, names = moe_from_gguf(keys, arch, tensors), TensorNames(arch, tensors, from_gguf=True)
    mtp_layers = keys.integer("nextn_predict_layers", 0, low=0, high=MAX_MTP_LAYERS)
    n_layers = layer_count(keys, "block_count", tensors, mtp_layers)
    hidden = keys.integer("embedding_length")
    heads = keys.integer("attention.head_count")
    mla = mla_from_gguf(keys, arch)
    head_dim = _head_dim(keys, hidden, heads, mla)
    scale_dims = hidden / heads if n_layers == arch.scale_by_hidden_at else head_dim
    scale = _attention_scale(keys, arch, mla, scale_dims)
    ropes = rope_from_gguf(keys, tensors, mla.rope_dim if mla else head_dim, arch)
    layers = layers_from_gguf(keys, arch, ropes, moe_layers(n_layers, moe, tensors, names))
    layers = mixers_by_tensors(layers, arch, tensors, names)
    causal = is_causal(keys, arch)
    layers = seen_both_ways(layers, causal)
    sized_layers = sized_layers_from_gguf(keys, layers, arch, tensors, names)
    return ModelConfig(
        arch=arch.name,
        from_gguf=True,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=1 if mla else first_width(keys, "attention.head_count_kv", n_layers, heads),
        head_dim=head_dim,
        ffn=first_width(keys, "feed_forward_length", n_layers, low=0),
        attention_scale=keys.number("attention.scale", scale),
        layers=sized_layers,
        tied="output.weight" not in tensors,
        norms=norms_of(arch, n_layers, tensors, names),
        biases=biases_of(arch, n_layers, tensors, names),
        moe=moe,
        mtp_layers=mtp_layers,
        mla=mla,
        causal=causal,
        no_text=why_no_text(causal, arch) or _no_text(tensors),
        **_scalars(keys, arch, hidden, tensors),
        **_blocks(keys, arch, tensors, layers),
        **embedding_fields(keys, arch, tensors, names),
        **fields_of_arch(arch),
    )


def _arch_and_keys(metadata: Mapping[str, Any]) -> tuple[Arch, Metadata]:
    """The row of `general.architecture`, and the metadata under its prefix, with the row's defaults."""
    name = Metadata(metadata, "GGUF metadata").text("general.architecture")
    rows = [row for row in ARCHS.values() if row.gguf == name and name]
    if not rows:
        raise unsupported_arch(name, [row.gguf for row in ARCHS.values() if row.gguf])
    keys = Metadata(metadata, "GGUF metadata", prefix=f"{name}.")
    arch = choose_arch(rows, keys.integer("expert_count", 0, low=0) > 0)
    defaults = {f"{name}.{key}": value for key, value in arch.gguf_defaults.items()}
    return arch, Metadata({**defaults, **metadata}, "GGUF metadata", prefix=f"{name}.")


def _no_text(tensors: Mapping[str, QTensor]) -> str:
    """What a model is for that writes no text; or ""."""
    head = next((name for name in tensors if _SCORING_HEAD.match(name)), None)
    return f"tensor {head}: the model is a classifier or reranker, and writes no text" if head else ""


def _head_dim(keys: Metadata, hidden: int, heads: int, mla: MLAConfig | None) -> int:
    if mla:
        return mla.head_dim
    head_dim = head_dim_of(keys, "attention.key_length", hidden, heads)
    for kind in ("", "_swa"):
        length = keys.integer(f"attention.key_length{kind}", head_dim)
        if (values := keys.integer(f"attention.value_length{kind}", length)) != length:
            raise UnsupportedModel(
                f"values of {values} and keys of {length} dimensions; equal ones are supported"
            )
    return head_dim


def _attention_scale(keys: Metadata, arch: Arch, mla: MLAConfig | None, dims: float) -> float:
    """The factor of the scores where metadata does not say: that of the row, or 1/√dims."""
    scale = arch.attention_scale or dims**-0.5
    return scale * (yarn_score_scale_from_gguf(keys, arch) if mla else 1.0)


def _scalars(keys: Metadata, arch: Arch, hidden: int, tensors: Mapping[str, QTensor]) -> dict[str, Any]:
    """Fields of a ModelConfig that are one number or flag of the metadata."""
    embedding = tensors.get("token_embd.weight")
    eps = "attention.layer_norm_rms_epsilon" if arch.norm == "rms" else "attention.layer_norm_epsilon"
    logit_scale = keys.number("logit_scale", 1.0)
    context_length = keys.integer("context_length")
    original = keys.integer("rope.scaling.original_context_length", context_length)
    return {
        "vocab_size": vocab_size_of(keys, embedding),
        "context_length": context_length,
        "norm_eps": keys.number(eps, high=1.0),
        "activation": arch.activation,
        "parallel": keys.flag("use_parallel_residual", arch.parallel),
        "embed_scale": hidden**0.5 if arch.scale_embedding else keys.number("embedding_scale", 1.0),
        "residual_scale": keys.number("residual_scale", 1.0),
        "logit_scale": 1 / logit_scale if arch.logits_divided else logit_scale,
        "attention_softcap": keys.number("attn_logit_softcapping", 0.0, zero=True),
        "logit_softcap": keys.number("final_logit_softcapping", 0.0, zero=True),
        "attention_temperature": (
            keys.number("attention.temperature_scale", 0.0, zero=True),
            keys.integer("attention.temperature_length", original),
        ),
    }


def _blocks(
    keys: Metadata, arch: Arch, tensors: Mapping[str, QTensor], layers: tuple[Layer, ...]
) -> dict[str, Any]:
    """The configurations of recurrent mixers, per-layer inputs and AltUp."""
    return {
        "recurrence": recurrent_from_gguf(keys, arch, layers),
        "per_layer_input": per_layer_from_gguf(keys, arch, tensors),
        "altup": altup_from_gguf(keys, arch, tensors),
    }
