"""A ModelConfig, read from config.json and the tensor names of a Hugging Face checkpoint.

What the file says goes before what the row of its architecture in `ARCHS` says, and which tensors exist goes
before both. Source: the configuration classes of transformers, whose defaults apply where config.json leaves
a key out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...quant.block import QTensor
from ...quant.errors import UnsupportedModel
from ..archs import ARCHS, Arch
from ..archs.others import task_of
from .altup import altup_from_hf
from .layer_sizes import ffns_from_hf, full_sizes_from_hf, sized_layers_from_hf
from .layers import Layer, layers_from_hf, seen_both_ways
from .metadata import Metadata, show
from .mla import MLAConfig, mla_from_hf, yarn_score_scale_from_hf
from .model_config import ModelConfig
from .moe import EXPERT_COUNTS, moe_from_hf
from .per_layer import per_layer_from_hf
from .reading import (
    MAX_MTP_LAYERS,
    biases_of,
    choose_arch,
    embedding_fields,
    fields_of_arch,
    head_dim_of,
    is_causal,
    layer_count,
    moe_layers,
    norms_of,
    position_offset,
    unsupported_arch,
    vocab_size_of,
    why_no_text,
)
from .recurrent import Multipliers, mixers_by_tensors, multipliers_from_hf, recurrent_from_hf
from .rope_files import rope_entry, rope_from_hf
from .tensor_names import TensorNames

# Spellings of config.json → kinds of ops.GatedActivation
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu": "gelu",
    "relu2": "relu2",
}

# Switches of config.json that change what is computed, and the only value of them that is supported
SUPPORTED_SWITCHES = {
    "add_cross_attention": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "use_cla": False,
    "use_parallel_block": True,
    "use_gated_activation": True,
    "attn_output_gate": True,
    "mamba_use_mlp": True,
}

SCORING_HEAD = re.compile(
    r"(.*\.)?(score|classifier|classification_head|reward_head|regression_head|value_head|v_head|qa_outputs)"
    r"\.(.*\.)?(weight|bias)"
)


def config_from_hf(config: Mapping[str, Any], tensors: Mapping[str, QTensor]) -> ModelConfig:
    """The configuration of a Hugging Face checkpoint, from config.json as published or by transformers 5.

    Of `tensors`, those of the checkpoint, only names and the shape of the embedding table are read. Raises
    like `config_from_gguf`.
    """
    wrapper = Metadata(config, "config.json")
    arch, keys = _arch_and_keys(wrapper)
    _check_switches(keys)
    moe, names = moe_from_hf(keys, arch, tensors), TensorNames(arch, tensors, from_gguf=False)
    tied = keys.flag("tie_word_embeddings", wrapper.flag("tie_word_embeddings", arch.tied))
    causal = is_causal(keys, arch)
    no_text = why_no_text(causal, arch) or _no_text(wrapper, tied, tensors, names)
    n_layers = layer_count(keys, "num_hidden_layers", tensors)
    hidden = keys.integer("hidden_size")
    heads = keys.integer("num_attention_heads")
    mla = mla_from_hf(keys, arch)
    head_dim = mla.head_dim if mla else head_dim_of(keys, "head_dim", hidden, heads)
    full = full_sizes_from_hf(keys)
    ropes = rope_from_hf(keys, mla.rope_dim if mla else head_dim, arch, full[0])
    layers = layers_from_hf(keys, arch, ropes, moe_layers(n_layers, moe, tensors, names))
    layers = mixers_by_tensors(layers, arch, tensors, names)
    multipliers = multipliers_from_hf(keys)
    scale = _attention_scale(keys, arch, mla, head_dim, multipliers)
    ffns = ffns_from_hf(keys, n_layers, arch.hf_ffn_factor and arch.hf_ffn_factor * hidden, moe)
    return ModelConfig(
        arch=arch.name,
        from_gguf=False,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=1 if mla else keys.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn=ffns[0],
        attention_scale=keys.number("attention_multiplier", scale),
        layers=sized_layers_from_hf(keys, seen_both_ways(layers, causal), ffns, full),
        tied=tied,
        norms=norms_of(arch, n_layers, tensors, names),
        biases=biases_of(arch, n_layers, tensors, names) | _switched_biases(keys, arch),
        norm_offset=arch.hf_norm_offset,
        moe=moe,
        multipliers=multipliers,
        mla=mla,
        causal=causal,
        no_text=no_text,
        position_offset=position_offset(keys, arch),
        **_scalars(keys, arch, hidden, tensors.get(names("token_embd.weight"))),
        **_blocks(keys, arch, layers),
        **embedding_fields(keys, arch, tensors, names),
        **fields_of_arch(arch),
    )


def _arch_and_keys(wrapper: Metadata) -> tuple[Arch, Metadata]:
    """The row of the text model's `model_type`, and its configuration with the row's defaults and keys."""
    keys = wrapper.section("text_config") or wrapper
    name = keys.text("model_type", wrapper.text("model_type", ""))
    rows = [row for row in ARCHS.values() if name in row.hf]
    if not rows:
        raise unsupported_arch(name, [kind for row in ARCHS.values() for kind in row.hf])
    counts = Metadata({**rows[0].hf_defaults, **keys.values}, keys.source)
    arch = choose_arch(rows, any(counts.integer(key, 0, low=0) for key in EXPERT_COUNTS))
    values = {**arch.hf_defaults, **keys.values}
    values |= {usual: values[own] for usual, own in arch.hf_keys.items() if own in values}
    if isinstance(kinds := values.get("layers_block_type"), list):
        values.setdefault("num_hidden_layers", len(kinds))
    return arch, Metadata(values, keys.source)


def _check_switches(keys: Metadata) -> None:
    """UnsupportedModel for a switch whose value changes the forward pass in a way that is not implemented."""
    bidirectional = keys.values.get("use_bidirectional_attention")
    # With "vision" only images are read in both directions; text is still causal.
    known = bidirectional is None or isinstance(bidirectional, bool)
    if not (known or (isinstance(bidirectional, str) and bidirectional == "vision")):
        raise UnsupportedModel(
            f"use_bidirectional_attention = {show(bidirectional).lower()} is not supported"
        )
    for key, supported in SUPPORTED_SWITCHES.items():
        if keys.flag(key, supported) != supported:
            raise UnsupportedModel(f"{key} = {str(not supported).lower()} is not supported")


def _no_text(wrapper: Metadata, tied: bool, tensors: Mapping[str, QTensor], names: TensorNames) -> str:
    """What a model is for that has another head than the output matrix, such as a classifier's; or ""."""
    classes = wrapper.values.get("architectures")
    task = task_of(classes if isinstance(classes, list) else [])
    head = next((name for name in tensors if SCORING_HEAD.fullmatch(name)), None)
    if names("output.weight") in tensors or (tied and not head):
        return ""
    if head and not task:
        return f"tensor {head}: the model is a classifier or reward model, and writes no text"
    return task


def _attention_scale(
    keys: Metadata, arch: Arch, mla: MLAConfig | None, head_dim: int, multipliers: Multipliers
) -> float:
    """The factor of the scores where config.json has no `attention_multiplier`."""
    scale = arch.attention_scale or keys.number("query_pre_attn_scalar", head_dim) ** -0.5
    scale *= multipliers.key
    return scale * (yarn_score_scale_from_hf(rope_entry(keys)) if mla else 1.0)


def _switched_biases(keys: Metadata, arch: Arch) -> set[str]:
    """The stems that have a bias because a switch of config.json is on."""
    stems = {stem for key, stems in arch.hf_biases.items() if keys.flag(key, False) for stem in stems}
    return stems & set(arch.layer)


def _scalars(keys: Metadata, arch: Arch, hidden: int, embedding: QTensor | None) -> dict[str, Any]:
    """Fields of a ModelConfig that are one number or flag of config.json."""
    logit_scale = keys.number("logits_scaling", keys.number("logit_scale", 1.0))
    context_length = keys.integer("max_position_embeddings") - position_offset(keys, arch)
    rope = rope_entry(keys)
    return {
        "vocab_size": vocab_size_of(keys, embedding),
        "context_length": context_length,
        "norm_eps": keys.number(arch.hf_norm_eps, high=1.0),
        "activation": _activation(keys, arch),
        "parallel": keys.flag("use_parallel_residual", arch.parallel),
        "embed_scale": hidden**0.5 if arch.scale_embedding else keys.number("embedding_multiplier", 1.0),
        "residual_scale": keys.number("residual_multiplier", 1.0),
        "logit_scale": 1 / logit_scale if arch.logits_divided else logit_scale,
        "attention_softcap": keys.number("attn_logit_softcapping", 0.0, zero=True),
        "logit_softcap": keys.number("final_logit_softcapping", 0.0, zero=True),
        "attention_temperature": (
            rope.number("llama_4_scaling_beta", 0.0, zero=True),
            rope.integer("original_max_position_embeddings", context_length),
        ),
        "mtp_layers": keys.integer("num_nextn_predict_layers", 0, low=0, high=MAX_MTP_LAYERS),
    }


def _blocks(keys: Metadata, arch: Arch, layers: tuple[Layer, ...]) -> dict[str, Any]:
    """The configurations of recurrent mixers, per-layer inputs and AltUp."""
    return {
        "recurrence": recurrent_from_hf(keys, arch, layers),
        "per_layer_input": per_layer_from_hf(keys, arch),
        "altup": altup_from_hf(keys, arch),
    }


def _activation(keys: Metadata, arch: Arch) -> str:
    spelling = next(spelling for spelling, kind in ACTIVATIONS.items() if kind == arch.activation)
    spelling = keys.text("hidden_activation", keys.text("hidden_act", spelling))
    if spelling not in ACTIVATIONS:
        raise UnsupportedModel(
            f"activation {show(spelling)} is not supported; supported are {', '.join(ACTIVATIONS)}"
        )
    return "gelu_tanh" if spelling == "gelu" and arch.hf_gelu_is_tanh else ACTIVATIONS[spelling]
