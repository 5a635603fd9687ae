"""A ModelConfig, read once from GGUF metadata or config.json.

What a file says goes before what its architecture's row in `ARCHS` says, and which tensors exist
before either. Nobody behind this module asks what architecture a model has or what file it came from.

Sources: the GGUF specification's key list; the configuration classes of transformers, whose
defaults apply where config.json leaves a key out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...quant.block import QTensor
from ...quant.errors import DamagedFile
from ..archs import ARCHS, Arch
from .altup import altup_from_gguf, altup_from_hf
from .fields import Fields, UnsupportedModel, show
from .latent import latent_from_gguf, latent_from_hf, score_growth_from_gguf, score_growth_from_hf
from .layer_sizes import ffns_from_hf, full_sizes_from_hf, usual_width, varied_from_gguf, varied_from_hf
from .layers import Layer, layers_from_gguf, layers_from_hf
from .model_config import ModelConfig
from .moe import EXPERT_COUNTS, Experts, experts_from_gguf, experts_from_hf
from .names import BARE, Names
from .per_layer import per_layer_from_gguf, per_layer_from_hf
from .recurrence import by_tensors, recurrence_from_gguf, recurrence_from_hf, scales_from_hf
from .rope_files import rope_from_gguf, rope_from_hf

__all__ = ["ARCHS", "Layer", "ModelConfig", "UnsupportedModel", "config_from_gguf", "config_from_hf"]

# Spellings of config.json → kinds of ops.GatedActivation
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu": "gelu",
    "relu2": "relu2",
}

MAX_EXTRA = 1 << 10  # layers that predict further tokens, which are skipped

# Switches of config.json that change what is computed, and the only setting of them that is supported
USUAL = {
    "add_cross_attention": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "use_cla": False,
    "use_parallel_block": True,
    "use_gated_activation": True,
    "attn_output_gate": True,
    "mamba_use_mlp": True,
}


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, QTensor]) -> ModelConfig:
    """The configuration of a GGUF file; of `tensors`, names, shapes and RoPE's divisors are looked at.

    Raises DamagedFile, or UnsupportedModel for an architecture or variant that is not in `ARCHS`.
    """
    name = Fields(metadata, "GGUF metadata").text("general.architecture")
    rows = [row for row in ARCHS.values() if row.gguf == name and name]
    if not rows:
        raise _unsupported(name, [row.gguf for row in ARCHS.values() if row.gguf])
    counts = Fields(metadata, "GGUF metadata", prefix=f"{name}.")
    arch = _best(rows, counts.integer("expert_count", 0, low=0) > 0)
    defaults = {f"{name}.{key}": value for key, value in arch.gguf_defaults.items()}
    keys = Fields({**defaults, **metadata}, "GGUF metadata", prefix=f"{name}.")
    experts, names = experts_from_gguf(keys, arch, tensors), Names(arch, tensors, from_gguf=True)
    extra = keys.integer("nextn_predict_layers", 0, low=0, high=MAX_EXTRA)
    n_layers = _n_layers(keys, "block_count", tensors, extra)
    hidden = keys.integer("embedding_length")
    heads = keys.integer("attention.head_count")
    latent = latent_from_gguf(keys, arch)
    head_dim = latent.head_dim if latent else _head_dim(keys, "attention.key_length", hidden, heads)
    if not latent:
        _check_value_lengths(keys, head_dim)
    by_hidden = n_layers == arch.scale_by_hidden_at
    scale = arch.attention_scale or (hidden / heads if by_hidden else head_dim) ** -0.5
    scale *= score_growth_from_gguf(keys, arch) if latent else 1.0
    ropes = rope_from_gguf(keys, tensors, latent.rotated if latent else head_dim, arch)
    layers = layers_from_gguf(keys, arch, ropes, _routed(n_layers, experts, tensors, names))
    layers = by_tensors(layers, arch, tensors, names)
    embedding = tensors.get("token_embd.weight")
    eps = "attention.layer_norm_rms_epsilon" if arch.norm == "rms" else "attention.layer_norm_epsilon"
    logit_scale = keys.number("logit_scale", 1.0)
    original = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
    return ModelConfig(
        arch=arch.name,
        from_gguf=True,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=1 if latent else usual_width(keys, "attention.head_count_kv", n_layers, heads),
        head_dim=head_dim,
        ffn=usual_width(keys, "feed_forward_length", n_layers, low=0),
        vocab_size=keys.integer("vocab_size", embedding.shape[0] if embedding else None),
        context_length=keys.integer("context_length"),
        norm_eps=keys.number(eps, high=1.0),
        activation=arch.activation,
        attention_scale=keys.number("attention.scale", scale),
        layers=varied_from_gguf(keys, layers, arch, tensors, names),
        tied="output.weight" not in tensors,
        norms=_norms(arch, n_layers, tensors, names),
        biases=_biases(arch, n_layers, tensors, names),
        parallel=keys.flag("use_parallel_residual", arch.parallel),
        embed_scale=hidden**0.5 if arch.scale_embedding else keys.number("embedding_scale", 1.0),
        residual_scale=keys.number("residual_scale", 1.0),
        logit_scale=1 / logit_scale if arch.logits_divided else logit_scale,
        attention_softcap=keys.number("attn_logit_softcapping", 0.0, zero=True),
        logit_softcap=keys.number("final_logit_softcapping", 0.0, zero=True),
        query_growth=(
            keys.number("attention.temperature_scale", 0.0, zero=True),
            keys.integer("attention.temperature_length", original),
        ),
        experts=experts,
        recurrence=recurrence_from_gguf(keys, arch, layers),
        extra_layers=extra,
        latent=latent,
        per_layer=per_layer_from_gguf(keys, arch, tensors),
        altup=altup_from_gguf(keys, arch, tensors),
        **_of_row(arch),
    )


def config_from_hf(config: Mapping[str, Any], tensors: Mapping[str, QTensor]) -> ModelConfig:
    """The configuration of a Hugging Face checkpoint, from config.json as published or by transformers 5.

    `tensors` as in the checkpoint; only names are looked at. Raises like `config_from_gguf`.
    """
    outer = Fields(config, "config.json")
    keys = outer.section("text_config") or outer
    name = keys.text("model_type", outer.text("model_type", ""))
    rows = [row for row in ARCHS.values() if name in row.hf]
    if not rows:
        raise _unsupported(name, [kind for row in ARCHS.values() for kind in row.hf])
    counts = Fields({**rows[0].hf_defaults, **keys.values}, keys.source)
    arch = _best(rows, any(counts.integer(key, 0, low=0) for key in EXPERT_COUNTS))
    values = {**arch.hf_defaults, **keys.values}
    values |= {usual: values[own] for usual, own in arch.hf_keys.items() if own in values}
    if isinstance(kinds := values.get("layers_block_type"), list):
        values.setdefault("num_hidden_layers", len(kinds))
    keys = Fields(values, keys.source)
    backwards = keys.values.get("use_bidirectional_attention")
    # With "vision", text is read forwards all the same.
    if not (
        backwards is None or backwards is False or (isinstance(backwards, str) and backwards == "vision")
    ):
        raise UnsupportedModel(f"use_bidirectional_attention = {show(backwards).lower()} is not supported")
    for key, usual in USUAL.items():
        if keys.flag(key, usual) != usual:
            raise UnsupportedModel(f"{key} = {str(not usual).lower()} is not supported")

    experts, names = experts_from_hf(keys, arch, tensors), Names(arch, tensors, from_gguf=False)
    n_layers = _n_layers(keys, "num_hidden_layers", tensors)
    hidden = keys.integer("hidden_size")
    heads = keys.integer("num_attention_heads")
    latent = latent_from_hf(keys, arch)
    head_dim = latent.head_dim if latent else _head_dim(keys, "head_dim", hidden, heads)
    full = full_sizes_from_hf(keys)
    ropes = rope_from_hf(keys, latent.rotated if latent else head_dim, arch, full[0])
    layers = layers_from_hf(keys, arch, ropes, _routed(n_layers, experts, tensors, names))
    layers = by_tensors(layers, arch, tensors, names)
    scales = scales_from_hf(keys)
    scale = arch.attention_scale or keys.number("query_pre_attn_scalar", head_dim) ** -0.5
    scale *= scales.key
    logit_scale = keys.number("logits_scaling", keys.number("logit_scale", 1.0))
    rope_entry = keys.section("rope_parameters") or keys.section("rope_scaling") or Fields({}, keys.source)
    scale *= score_growth_from_hf(rope_entry) if latent else 1.0
    ffns = ffns_from_hf(keys, n_layers, arch.hf_ffn_factor and arch.hf_ffn_factor * hidden, experts)
    demanded = {stem for key, stems in arch.hf_biases.items() if keys.flag(key, False) for stem in stems}
    return ModelConfig(
        arch=arch.name,
        from_gguf=False,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=1 if latent else keys.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn=ffns[0],
        vocab_size=keys.integer("vocab_size"),
        context_length=keys.integer("max_position_embeddings"),
        norm_eps=keys.number(arch.hf_norm_eps, high=1.0),
        activation=_activation(keys, arch),
        attention_scale=keys.number("attention_multiplier", scale),
        layers=varied_from_hf(keys, layers, ffns, full),
        tied=keys.flag("tie_word_embeddings", outer.flag("tie_word_embeddings", arch.tied)),
        norms=_norms(arch, n_layers, tensors, names),
        biases=_biases(arch, n_layers, tensors, names) | (demanded & set(arch.layer)),
        parallel=keys.flag("use_parallel_residual", arch.parallel),
        embed_scale=hidden**0.5 if arch.scale_embedding else keys.number("embedding_multiplier", 1.0),
        residual_scale=keys.number("residual_multiplier", 1.0),
        logit_scale=1 / logit_scale if arch.logits_divided else logit_scale,
        norm_offset=arch.hf_norm_offset,
        attention_softcap=keys.number("attn_logit_softcapping", 0.0, zero=True),
        logit_softcap=keys.number("final_logit_softcapping", 0.0, zero=True),
        query_growth=(
            rope_entry.number("llama_4_scaling_beta", 0.0, zero=True),
            rope_entry.integer("original_max_position_embeddings", keys.integer("max_position_embeddings")),
        ),
        experts=experts,
        recurrence=recurrence_from_hf(keys, arch, layers),
        scales=scales,
        extra_layers=keys.integer("num_nextn_predict_layers", 0, low=0, high=MAX_EXTRA),
        latent=latent,
        per_layer=per_layer_from_hf(keys, arch),
        altup=altup_from_hf(keys, arch),
        **_of_row(arch),
    )


def _of_row(arch: Arch) -> dict[str, Any]:
    """The fields that no file speaks of."""
    return {
        "norm": arch.norm,
        "qk_norm": arch.qk_norm,
        "qk_norm_after_rope": arch.qk_norm_after_rope,
        "gated": "ffn_up" not in arch.layer or "ffn_gate" in arch.layer,
        "sinks": "attn_sinks" in arch.layer,
        "output_gate": "attn_q_gate" in arch.layer,
        "learned_positions": arch.learned_positions,
        "value_norm": arch.value_norm,
        "layer_scales": "layer_output_scale" in arch.layer,
    }


def _best(rows: list[Arch], routed: bool) -> Arch:
    """Of rows with the same name in files, the one with or without experts."""
    return next((row for row in rows if ("ffn_gate_inp" in row.layer) == routed), rows[0])


def _norms(arch: Arch, n_layers: int, held: Mapping[str, QTensor], names: Names) -> frozenset[str]:
    """The stems of a layer's norms."""
    return arch.norms - {s for s in arch.optional if not _in_any(f"{s}.weight", n_layers, held, names)}


def _biases(arch: Arch, n_layers: int, held: Mapping[str, QTensor], names: Names) -> frozenset[str]:
    """The stems with a bias: the row's, and those of the file's. Only matrices may have them unasked: an RMS
    norm with a bias would be something else."""
    matrices = {stem for stem in arch.layer if not stem.endswith(("norm", "_exps"))} - BARE
    output = {"output"} if names("output.bias") in held else set()
    return arch.biases | output | {s for s in matrices if _in_any(f"{s}.bias", n_layers, held, names)}


def _in_any(name: str, n_layers: int, held: Mapping[str, QTensor], names: Names) -> bool:
    """Whether any layer has this tensor: those of one kind need not be the first."""
    return any(names(f"blk.{i}.{name}") in held for i in range(n_layers))


def _activation(keys: Fields, arch: Arch) -> str:
    spelling = next(spelling for spelling, kind in ACTIVATIONS.items() if kind == arch.activation)
    spelling = keys.text("hidden_activation", keys.text("hidden_act", spelling))
    if spelling not in ACTIVATIONS:
        raise UnsupportedModel(
            f"activation {show(spelling)} is not supported; supported are {_list(ACTIVATIONS)}"
        )
    return "gelu_tanh" if spelling == "gelu" and arch.hf_gelu_is_tanh else ACTIVATIONS[spelling]


def _routed(n_layers: int, experts: Experts | None, held: Mapping[str, QTensor], names: Names) -> list[bool]:
    """Which layers have experts: those with a router."""
    if experts is None:
        return [False] * n_layers
    return [names(f"blk.{i}.ffn_gate_inp.weight") in held for i in range(n_layers)]


def _n_layers(keys: Fields, key: str, tensors: Mapping[str, QTensor], extra: int = 0) -> int:
    """The number of layers but for `extra` ones, which a file cannot have more of than tensors."""
    n_layers = keys.integer(key, low=extra + 1) - extra
    if n_layers > len(tensors):
        raise DamagedFile(f"{keys.source} claims {n_layers} layers, but there are {len(tensors)} tensors")
    return n_layers


def _head_dim(keys: Fields, key: str, hidden: int, heads: int) -> int:
    if key not in keys and hidden % heads:
        raise DamagedFile(f"{keys.source}: a width of {hidden} does not divide into {heads} heads")
    return keys.integer(key, hidden // heads)


def _check_value_lengths(keys: Fields, head_dim: int) -> None:
    for kind in ("", "_swa"):
        length = keys.integer(f"attention.key_length{kind}", head_dim)
        if (values := keys.integer(f"attention.value_length{kind}", length)) != length:
            raise UnsupportedModel(
                f"values of {values} and keys of {length} dimensions; equal ones are supported"
            )


def _unsupported(name: str, supported: Iterable[str]) -> UnsupportedModel:
    return UnsupportedModel(f"architecture {show(name)} is not supported; supported are {_list(supported)}")


def _list(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
