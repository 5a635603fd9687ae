"""What one row of the table of architectures says, and the names of a layer's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

QKV = frozenset({"attn_q", "attn_k", "attn_v"})
ATTENTION = QKV | {"attn_output"}
FFN = frozenset({"ffn_gate", "ffn_up", "ffn_down"})

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
# The parts of a larger model around the text model, in files of models that see.
VISION = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)


def layer_names(*without: str, **names: str) -> Mapping[str, str]:
    """`LLAMA_LAYER` without some stems and with other names."""
    return MappingProxyType({k: v for k, v in {**LLAMA_LAYER, **names}.items() if k not in without})


@dataclass(frozen=True)
class Arch:
    """What a model's files leave unsaid about its architecture.

    `layer` maps the stems of a layer's tensors from GGUF's names to Hugging Face's
    ("attn_q" → "self_attn.q_proj"); each has a `.weight`, and a `.bias` where the file has one or
    `biases` demands it. Stems with the same name there are one tensor, its rows one after the other; "{}"
    stands for the number of an expert.
    A norm, or "ffn_gate", that is not in `layer` is one that the model does not have.
    """

    name: str
    gguf: str  # `general.architecture`; the first row with it counts. "": the format has no such models
    hf: tuple[str, ...]  # `model_type`; a wrapper's, around a `text_config`, as well
    layer: Mapping[str, str] = field(default_factory=lambda: LLAMA_LAYER)
    optional: frozenset[str] = frozenset()  # stems of `layer` that a model has if its file has them

    # --- the forward pass
    norm: Literal["rms", "layer"] = "rms"
    qk_norm: Literal["head", "each head", "whole"] = "head"  # see ModelConfig.qk_norm
    qk_norm_after_rope: bool = False
    parallel: bool = False  # attention and FFN both read the stream as it enters the layer
    learned_positions: bool = False  # a table of them is added to the embeddings
    activation: str = "silu"
    scale_embedding: bool = False  # by sqrt(hidden)
    interleaved_in_gguf: bool = False  # RoPE pairs
    interleaved_in_hf: bool = False
    rope_base: float = 10000.0
    rotary_factor: float = 1.0  # the part of a head that turns, where config.json does not say
    local_rope_base: float | None = None  # of sliding layers; None: they share the other's
    local_rope_unscaled: bool = False  # RoPE scaling is for the other layers only
    # Which layers have the sliding window of the metadata: none, all, all but every `window_period`-th,
    # or (if switched on) those from max_window_layers on, or those that layer_types names.
    window: Literal["none", "all", "period", "from", "named"] = "none"
    window_in_gguf: Literal["none", "all", "period"] = "none"
    window_period: int = 6
    # Which layers have no RoPE: none, all, every `nope_period`-th, the full ones of a model with sliding
    # ones, or all where the file says so (GGUF: rope.scaling.finetuned; else position_embedding_type).
    nope: Literal["none", "all", "period", "full", "switch"] = "none"
    nope_period: int = 4
    yarn_truncates: bool = True  # where config.json does not say
    yarn_log_unit: float = 1.0  # what yarn_log_multiplier of GGUF files is a multiple of
    attention_scale: float | None = None  # of scores, where it is the same for all sizes
    value_norm: bool = False  # values are normed like keys, without weights
    values_from_keys: bool = False  # a GGUF file's layers without attn_v take keys for values
    # The kind of RecurrentConfig that layers may have in the place of attention, or beside it; and which
    # parts a layer has, its tensors tell.
    recurrence: Literal["", "short_conv", "gated_delta", "mamba2"] = ""
    scoring: Literal["softmax", "sigmoid"] = "softmax"  # of experts
    moe_parallel_dense: bool = False  # layers with experts have a usual FFN as well
    swiglu_limit: float = 0.0  # of experts, see ops.MoE; 0: they have the usual activation
    logits_divided: bool = False  # by the scale that the metadata names, not multiplied
    # GGUF: the one size, by its number of layers, whose scores are scaled by hidden / heads, not head_dim
    scale_by_hidden_at: int | None = None

    # --- files
    biases: frozenset[str] = frozenset()  # stems of tensors that always have one
    # Switches of config.json → stems that have a bias if it is on
    hf_biases: Mapping[str, frozenset[str]] = field(
        default_factory=lambda: {"attention_bias": ATTENTION, "mlp_bias": FFN}
    )
    tied: bool = False  # where config.json does not say; GGUF files leave the output matrix out
    gguf_names: Mapping[str, str] = field(default_factory=dict)  # stems that GGUF calls otherwise
    fused_in_gguf: Mapping[str, str] = field(
        default_factory=dict
    )  # stems that converters leave in one tensor
    bare_in_gguf: frozenset[str] = frozenset()  # stems without ".weight" there
    output_in_gguf: bool = False  # readers want an output matrix even where embeddings are tied
    multipliers_in_gguf_weights: bool = (
        False  # what is multiplied on the way has no keys there; matrices have it in them
    )
    tiled_in_gguf: bool = False  # see RecurrentConfig.tiled
    normalised_in_gguf: bool = True  # the shares of chosen experts, where metadata does not say
    gguf_defaults: Mapping[str, Any] = field(default_factory=dict)  # what metadata may leave out
    hf_defaults: Mapping[str, Any] = field(default_factory=dict)  # what config.json may leave out
    hf_keys: Mapping[str, str] = field(default_factory=dict)  # the usual key → what this config.json calls it
    hf_norm_eps: str = "rms_norm_eps"
    hf_ffn_factor: int | None = None  # FFN width over hidden size, where config.json does not say
    hf_norm_offset: float = 0.0  # added to norm weights; GGUF files have it in them already
    hf_gelu_is_tanh: bool = False  # "gelu" means its approximation
    hf_prefixes: tuple[str, ...] = ("model.", "language_model.model.", "model.language_model.", "")
    hf_layers: str = "layers"
    hf_top: Mapping[str, str] = field(  # tensors outside the layers
        default_factory=lambda: {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
    )
    hf_transposed: bool = False  # matrices in layers are (inputs, outputs)
    hf_qkv_by_head: bool = False  # rows of a fused projection: q, k, v of the first head, of the second, …
    hf_experts_transposed: bool = False  # (experts, inputs, outputs), gate and up taking turns among outputs
    hf_skip: tuple[str, ...] = ()  # prefixes of tensors that the text model does not use

    @property
    def norms(self) -> frozenset[str]:
        """Stems of the norms in a layer."""
        return frozenset(stem for stem in self.layer if stem.endswith("norm"))
