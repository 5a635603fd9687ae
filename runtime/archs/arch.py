"""Arch: a row of the table of architectures, and names of tensors that many rows share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

QKV = frozenset({"attn_q", "attn_k", "attn_v"})
ATTENTION = QKV | {"attn_output"}
FFN = frozenset({"ffn_gate", "ffn_up", "ffn_down"})
DENSE_FFN = ("ffn_gate", "ffn_up", "ffn_down")

LLAMA_LAYER = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
FUSED_QKV = {"attn_q": "attn_qkv", "attn_k": "attn_qkv", "attn_v": "attn_qkv"}
FUSED_FFN = {"ffn_gate": "ffn_up", "ffn_up": "ffn_up"}
QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
# Prefixes of the tensors around the text model of a vision-language model
VISION = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)


def layer_names(*absent: str, **names: str) -> Mapping[str, str]:
    """`LLAMA_LAYER` with other or more names, and without the stems `absent`."""
    return MappingProxyType(without({**LLAMA_LAYER, **names}, *absent))


def without(layer: Mapping[str, str], *stems: str) -> dict[str, str]:
    """`layer` without some stems."""
    return {stem: name for stem, name in layer.items() if stem not in stems}


@dataclass(frozen=True)
class Arch:
    """What the files of a model do not say about its architecture.

    `layer` maps the stems of a layer's tensors from GGUF's names to Hugging Face's ("attn_q" →
    "self_attn.q_proj"). Each has a `.weight`, and a `.bias` if the file has one or `biases` has the stem.
    Stems with the same Hugging Face name are fused in one tensor, their rows one after the other; "{}" is
    replaced by the number of an expert. A model has no norm and no "ffn_gate" that is not in `layer`.
    """

    name: str
    gguf: str  # `general.architecture`, which the first row with it reads. "": GGUF has no such models
    hf: tuple[str, ...]  # `model_type` of the model, or of the wrapper around a `text_config`
    layer: Mapping[str, str] = field(default_factory=lambda: LLAMA_LAYER)
    optional: frozenset[str] = frozenset()  # norms in `layer` that a model has only if its file has them

    # --- the forward pass
    causal: bool = True  # tokens see only what is in front of them; else the whole text
    first_norm: bool = True  # the first layer has the norm in front of attention that the others have
    norm: Literal["rms", "layer"] = "rms"
    qk_norm: Literal["head", "each head", "whole"] = "head"  # see ModelConfig.qk_norm
    qk_norm_after_rope: bool = False
    parallel: bool = False  # attention and FFN read the same residual stream
    learned_positions: bool = False  # a table is added to the embeddings
    padded_positions: bool = False  # in folders its rows up to that of the padding token are not used
    activation: str = "silu"
    scale_embedding: bool = False  # by sqrt(hidden)
    interleaved_in_gguf: bool = False  # RoPE pairs
    interleaved_in_hf: bool = False
    rope_base: float = 10000.0
    rotary_factor: float = 1.0  # the part of a head that is rotated, where config.json does not say
    local_rope_base: float | None = None  # of sliding layers; None: the same RoPE as in full layers
    local_rope_unscaled: bool = False  # RoPE scaling is for full layers only
    # The layers with a sliding window: none, all, all but every `window_period`-th; or with
    # use_sliding_window those from max_window_layers on, or those in layer_types.
    window: Literal["none", "all", "period", "from", "named"] = "none"
    window_in_gguf: Literal["none", "all", "period"] = "none"
    window_period: int = 6
    window_first_full: bool = (
        False  # with "period": the first of `window_period` layers has none, not the last
    )
    # The layers without RoPE: none, all, every `nope_period`-th, those with full attention in a model that
    # has sliding windows, or all if the file says so (GGUF: rope.scaling.finetuned; else
    # position_embedding_type).
    nope: Literal["none", "all", "period", "full", "switch"] = "none"
    nope_period: int = 4
    yarn_truncates: bool = True  # where config.json does not say
    yarn_log_unit: float = 1.0  # the unit of yarn_log_multiplier in GGUF files
    attention_scale: float | None = None  # of scores; None: it depends on head_dim
    value_norm: bool = False  # values have an RMS norm without weights
    values_from_keys: bool = False  # a GGUF file's layers without attn_v take keys for values
    # The kind of recurrent mixer (see RecurrentConfig). A file's tensors show which layers have it, instead
    # of attention or beside it.
    recurrence: Literal["", "short_conv", "gated_delta", "mamba2"] = ""
    scoring: Literal["softmax", "sigmoid"] = "softmax"  # of experts
    moe_parallel_dense: bool = False  # layers with experts have a dense FFN in parallel
    mtp_reads_normed: bool = False  # the layer for multi-token prediction reads hidden states behind a norm
    swiglu_limit: float = 0.0  # of experts, see ops.MoE; 0: `activation`
    logits_divided: bool = False  # logits are divided by the metadata's scale, not multiplied
    # GGUF: the number of layers of the one size whose scores are scaled by hidden / heads, not by head_dim
    scale_by_hidden_at: int | None = None

    # --- files
    biases: frozenset[str] = frozenset()  # stems of tensors that always have a bias
    # Switches of config.json → stems that have a bias if it is on
    hf_biases: Mapping[str, frozenset[str]] = field(
        default_factory=lambda: {"attention_bias": ATTENTION, "mlp_bias": FFN}
    )
    tied: bool = False  # where config.json does not say; a tied GGUF file has no output matrix
    gguf_names: Mapping[str, str] = field(default_factory=dict)  # stem → its name in GGUF files
    # Stem → the stem of the fused tensor in which converters leave it
    fused_in_gguf: Mapping[str, str] = field(default_factory=dict)
    bare_in_gguf: frozenset[str] = frozenset()  # stems without ".weight" in GGUF files
    output_in_gguf: bool = False  # GGUF files need an output matrix even with tied embeddings
    # GGUF has no keys for `ModelConfig.multipliers`; its matrices are already multiplied
    multipliers_in_gguf_weights: bool = False
    tiled_in_gguf: bool = False  # see RecurrentConfig.tiled
    normalised_in_gguf: bool = True  # routing weights, where metadata does not say
    gguf_defaults: Mapping[str, Any] = field(default_factory=dict)  # of metadata
    hf_defaults: Mapping[str, Any] = field(default_factory=dict)  # of config.json
    hf_keys: Mapping[str, str] = field(default_factory=dict)  # the usual key → the key of this config.json
    hf_norm_eps: str = "rms_norm_eps"
    hf_ffn_factor: int | None = None  # FFN width over hidden size, where config.json does not say
    hf_norm_offset: float = 0.0  # added to norm weights; those of GGUF files include it
    hf_gelu_is_tanh: bool = False  # "gelu" is the tanh approximation
    hf_prefixes: tuple[str, ...] = ("model.", "language_model.model.", "model.language_model.", "")
    hf_layers: str = "layers"
    hf_top: Mapping[str, str] = field(  # tensors outside the layers
        default_factory=lambda: {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
    )
    hf_transposed: bool = False  # matrices in layers are (inputs, outputs)
    hf_qkv_by_head: bool = False  # rows of a fused projection: q, k, v of the first head, of the second, …
    hf_experts_transposed: bool = False  # (experts, inputs, outputs), gate and up alternate in the outputs
    hf_skip: tuple[str, ...] = ()  # prefixes of tensors that the text model does not use
    hf_heads: tuple[str, ...] = ()  # prefixes of tensors of heads for other tasks, which are not used either

    @property
    def norms(self) -> frozenset[str]:
        """Stems of the norms in a layer."""
        return frozenset(stem for stem in self.layer if stem.endswith("norm"))
