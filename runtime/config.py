"""ModelConfig: everything about a model but its weights, read once from GGUF metadata or config.json.

What a file says goes before what its architecture's row in `ARCHS` says, and which tensors exist
before either. Nobody behind this module asks what architecture a model has or what file it came from.

Sources: the GGUF specification's key list; the configuration classes of transformers, whose
defaults apply where config.json leaves a key out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..quant.block import QTensor
from ..quant.errors import DamagedFile
from .archs import ARCHS, Arch, hf_name, hf_prefix
from .fields import Fields, UnsupportedModel, show
from .rope import Rope, rope_from_gguf, rope_from_hf

__all__ = ["ARCHS", "Layer", "ModelConfig", "UnsupportedModel", "config_from_gguf", "config_from_hf"]

# Spellings of config.json → kinds of ops.GatedActivation
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu": "gelu",
}


@dataclass(frozen=True)
class Layer:
    """What may differ between layers."""

    rope: Rope
    window: int = 0  # sliding window of attention, in tokens; 0: all


@dataclass(frozen=True)
class ModelConfig:
    """One decoder-only model. Raises DamagedFile for sizes that do not fit together."""

    arch: str  # the row in ARCHS
    from_gguf: bool  # names of tensors: GGUF's, or Hugging Face's
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    context_length: int  # tokens that the model was trained for
    norm_eps: float
    activation: str  # a kind of ops.GatedActivation
    attention_scale: float
    layers: tuple[Layer, ...]
    tied: bool  # the output matrix is the embedding table
    biases: frozenset[str] = frozenset()  # stems of layer tensors with a bias: "attn_q"
    qk_norm: bool = False  # RMSNorm of each query and key head before RoPE
    post_norms: bool = False  # RMSNorm of what attention and FFN add to the residual stream
    rope_divisors: bool = False  # the file brings rope_freqs.weight
    embed_scale: float = 1.0
    norm_offset: float = 0.0  # added to the norm weights of the file
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise DamagedFile(
                f"{self.n_heads} attention heads cannot share {self.n_kv_heads} key-value heads"
            )
        for layer in self.layers:
            dims = layer.rope.dims
            if dims % 2 or not 2 <= dims <= self.head_dim:
                raise DamagedFile(f"RoPE cannot rotate {dims} dimensions of a head of {self.head_dim}")


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, QTensor]) -> ModelConfig:
    """The configuration of a GGUF file; `tensors` as in the file, only names and shapes are looked at.

    Raises DamagedFile, or UnsupportedModel for an architecture or variant that is not in `ARCHS`.
    """
    name = Fields(metadata, "GGUF metadata").text("general.architecture")
    arch = next((row for row in ARCHS.values() if row.gguf == name), None)
    if arch is None:
        raise _unsupported(name, list(dict.fromkeys(row.gguf for row in ARCHS.values())))
    keys = Fields(metadata, "GGUF metadata", prefix=f"{name}.")
    if keys.integer("expert_count", 0, low=0):
        raise UnsupportedModel(f"{name} with experts (expert_count) is not supported; dense models are")

    n_layers = _n_layers(keys, "block_count", tensors)
    hidden = keys.integer("embedding_length")
    heads = keys.integer("attention.head_count")
    head_dim = _head_dim(keys, "attention.key_length", hidden, heads)
    if (value_length := keys.integer("attention.value_length", head_dim)) != head_dim:
        raise UnsupportedModel(
            f"values of {value_length} and keys of {head_dim} dimensions; equal ones are supported"
        )
    by_hidden = n_layers == arch.scale_by_hidden_at
    scale = (hidden / heads if by_hidden else head_dim) ** -0.5
    rope, local = rope_from_gguf(
        keys, head_dim, arch.interleaved_in_gguf, arch.rope_base, arch.local_rope_base
    )
    embedding = tensors.get("token_embd.weight")
    return ModelConfig(
        arch=arch.name,
        from_gguf=True,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=keys.integer("feed_forward_length"),
        vocab_size=keys.integer("vocab_size", embedding.shape[0] if embedding else None),
        context_length=keys.integer("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", high=1.0),
        activation=arch.activation,
        attention_scale=keys.number("attention.scale", scale),
        layers=_layers(_windows_gguf(keys, arch, n_layers), rope, local),
        tied="output.weight" not in tensors,
        biases=arch.biases | {stem for stem in _matrices(arch) if f"blk.0.{stem}.bias" in tensors},
        qk_norm="attn_q_norm" in arch.layer,
        post_norms="post_ffw_norm" in arch.layer,
        rope_divisors="rope_freqs.weight" in tensors,
        embed_scale=hidden**0.5 if arch.scale_embedding else 1.0,
        attention_softcap=keys.number("attn_logit_softcapping", 0.0, zero=True),
        logit_softcap=keys.number("final_logit_softcapping", 0.0, zero=True),
    )


def _matrices(arch: Arch) -> list[str]:
    """The stems of a layer's matrices. Only these may have biases: an RMS norm has none."""
    return [stem for stem in arch.layer if not stem.endswith("norm")]


def config_from_hf(config: Mapping[str, Any], tensors: Mapping[str, QTensor]) -> ModelConfig:
    """The configuration of a Hugging Face checkpoint, from config.json as published or by transformers 5.

    `tensors` as in the checkpoint; only names are looked at. Raises like `config_from_gguf`.
    """
    outer = Fields(config, "config.json")
    keys = outer.section("text_config") or outer
    name = keys.text("model_type", outer.text("model_type", ""))
    arch = next((row for row in ARCHS.values() if name in row.hf), None)
    if arch is None:
        raise _unsupported(name, [kind for row in ARCHS.values() for kind in row.hf])
    if "quantization_config" in outer or "quantization_config" in keys:
        raise UnsupportedModel(
            "quantised checkpoints (quantization_config) are not supported; F32, F16 and BF16 are"
        )
    keys = Fields({**arch.hf_defaults, **keys.values}, keys.source)
    if keys.flag("use_bidirectional_attention", False):
        raise UnsupportedModel("bidirectional attention is not supported; causal models are")

    n_layers = _n_layers(keys, "num_hidden_layers", tensors)
    hidden = keys.integer("hidden_size")
    heads = keys.integer("num_attention_heads")
    head_dim = _head_dim(keys, "head_dim", hidden, heads)
    rotated = int(head_dim * keys.number("partial_rotary_factor", 1.0, high=1.0))
    rope, local = rope_from_hf(keys, rotated, arch.rope_base, arch.local_rope_base)
    activation = keys.text("hidden_activation", keys.text("hidden_act", _spelling(arch.activation)))
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(
            f"activation {show(activation)} is not supported; supported are {_list(ACTIVATIONS)}"
        )
    prefix = hf_prefix(tensors)
    biases = {s for s in _matrices(arch) if hf_name(arch, prefix, f"blk.0.{s}.bias") in tensors} | arch.biases
    if keys.flag("attention_bias", False):
        biases |= {"attn_q", "attn_k", "attn_v", "attn_output"}
    if keys.flag("mlp_bias", False):
        biases |= {"ffn_gate", "ffn_up", "ffn_down"}
    return ModelConfig(
        arch=arch.name,
        from_gguf=False,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=keys.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn=keys.integer("intermediate_size"),
        vocab_size=keys.integer("vocab_size"),
        context_length=keys.integer("max_position_embeddings"),
        norm_eps=keys.number("rms_norm_eps", high=1.0),
        activation=ACTIVATIONS[activation],
        attention_scale=keys.number("query_pre_attn_scalar", head_dim) ** -0.5,
        layers=_layers(_windows_hf(keys, arch, n_layers), rope, local),
        tied=keys.flag("tie_word_embeddings", outer.flag("tie_word_embeddings", arch.tied)),
        biases=frozenset(biases),
        qk_norm="attn_q_norm" in arch.layer,
        post_norms="post_ffw_norm" in arch.layer,
        embed_scale=hidden**0.5 if arch.scale_embedding else 1.0,
        norm_offset=arch.norm_offset_in_hf,
        attention_softcap=keys.number("attn_logit_softcapping", 0.0, zero=True),
        logit_softcap=keys.number("final_logit_softcapping", 0.0, zero=True),
    )


def _n_layers(keys: Fields, key: str, tensors: Mapping[str, QTensor]) -> int:
    """The number of layers, which a file cannot have more of than tensors."""
    n_layers = keys.integer(key)
    if n_layers > len(tensors):
        raise DamagedFile(f"{keys.source} claims {n_layers} layers, but there are {len(tensors)} tensors")
    return n_layers


def _head_dim(keys: Fields, key: str, hidden: int, heads: int) -> int:
    if key not in keys and hidden % heads:
        raise DamagedFile(f"{keys.source}: a width of {hidden} does not divide into {heads} heads")
    return keys.integer(key, hidden // heads)


def _layers(windows: list[int], rope: Rope, local: Rope) -> tuple[Layer, ...]:
    """Layers with these windows (0: full attention); `local` is for those that have one."""
    return tuple(Layer(local if window else rope, window) for window in windows)


def _periodic(window: int, period: int, n_layers: int) -> list[int]:
    """Every `period`-th layer is full."""
    return [window if (i + 1) % period else 0 for i in range(n_layers)]


def _windows_gguf(keys: Fields, arch: Arch, n_layers: int) -> list[int]:
    window = keys.integer("attention.sliding_window", 0, low=0)
    if arch.window_in_gguf == "none":
        return [0] * n_layers
    if arch.window_in_gguf == "all":
        return [window] * n_layers
    return _periodic(window, keys.integer("attention.sliding_window_pattern", arch.window_period), n_layers)


def _windows_hf(keys: Fields, arch: Arch, n_layers: int) -> list[int]:
    window = keys.integer("sliding_window", 0, low=0)
    if arch.window == "none" or (arch.window == "from" and not keys.flag("use_sliding_window", False)):
        return [0] * n_layers
    if "layer_types" in keys:
        types = keys.values["layer_types"]
        if not isinstance(types, list) or len(types) != n_layers:
            raise keys.fail("layer_types", f"a list of {n_layers}")
        if strange := [t for t in types if t not in ("full_attention", "sliding_attention")]:
            raise UnsupportedModel(
                f"layer type {show(strange[0])} is not supported; full_attention and sliding_attention are"
            )
        return [window if t == "sliding_attention" else 0 for t in types]
    if arch.window == "all":
        return [window] * n_layers
    if arch.window == "from":
        first = keys.integer("max_window_layers", low=0)
        return [0 if i < first else window for i in range(n_layers)]
    period = keys.integer(
        "sliding_window_pattern", keys.integer("_sliding_window_pattern", arch.window_period)
    )
    return _periodic(window, period, n_layers)


def _spelling(activation: str) -> str:
    return next(spelling for spelling, kind in ACTIVATIONS.items() if kind == activation)


def _unsupported(name: str, supported: list[str]) -> UnsupportedModel:
    return UnsupportedModel(f"architecture {show(name)} is not supported; supported are {_list(supported)}")


def _list(names: Mapping[str, str] | list[str]) -> str:
    return ", ".join(names)
