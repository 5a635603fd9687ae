"""The architectures: one row each, and the names of their tensors in either kind of file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True)
class Arch:
    """What a model's files leave unsaid about its architecture.

    `layer` maps the stems of a layer's tensors from GGUF's names to Hugging Face's
    ("attn_q" → "self_attn.q_proj"); each has a `.weight`, and a `.bias` where the file has one or
    `biases` demands it.
    """

    name: str
    gguf: str  # `general.architecture`; the first row with it counts
    hf: tuple[str, ...]  # `model_type`; a wrapper's, around a `text_config`, as well
    layer: Mapping[str, str]
    biases: frozenset[str] = frozenset()
    interleaved_in_gguf: bool = False  # RoPE pairs; Hugging Face files always rotate halves
    activation: str = "silu"
    scale_embedding: bool = False  # by sqrt(hidden)
    norm_offset_in_hf: float = 0.0  # added to norm weights; GGUF files have it in them already
    tied: bool = False  # where config.json does not say; GGUF files leave the output matrix out
    # Which layers have the sliding window of the metadata: none, all, all but every
    # `window_period`-th, or (if switched on) those from max_window_layers on.
    window: Literal["none", "all", "period", "from"] = "none"
    window_in_gguf: Literal["none", "all", "period"] = "none"
    window_period: int = 6
    rope_base: float = 10000.0
    local_rope_base: float | None = None  # of sliding layers; None: they share the other
    # GGUF: the one size, by its number of layers, whose scores are scaled by hidden / heads, not head_dim
    scale_by_hidden_at: int | None = None
    hf_defaults: Mapping[str, Any] = field(default_factory=dict)  # what config.json may leave out
    hf_skip: tuple[str, ...] = ()  # prefixes of tensors that the text model does not use


_LLAMA_LAYER = MappingProxyType(
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

_LLAMA = Arch(
    name="llama",
    gguf="llama",
    hf=("llama",),
    layer=_LLAMA_LAYER,
    interleaved_in_gguf=True,
    window_in_gguf="all",
    hf_defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
)

_ROWS = (
    _LLAMA,
    replace(
        _LLAMA,
        name="mistral",  # in GGUF files it is called llama
        hf=("mistral",),
        window="all",
        hf_defaults={
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
    ),
    Arch(
        name="qwen2",
        gguf="qwen2",
        hf=("qwen2",),
        layer=_LLAMA_LAYER,
        biases=frozenset({"attn_q", "attn_k", "attn_v"}),
        window="from",
        hf_defaults={
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "num_key_value_heads": 32,
            "max_window_layers": 28,
            "sliding_window": 4096,
        },
    ),
    Arch(
        name="gemma3",
        gguf="gemma3",
        hf=("gemma3_text", "gemma3"),
        layer=MappingProxyType(
            {
                **_LLAMA_LAYER,
                "attn_q_norm": "self_attn.q_norm",
                "attn_k_norm": "self_attn.k_norm",
                "post_attention_norm": "post_attention_layernorm",
                "ffn_norm": "pre_feedforward_layernorm",
                "post_ffw_norm": "post_feedforward_layernorm",
            }
        ),
        activation="gelu_tanh",
        scale_embedding=True,
        norm_offset_in_hf=1.0,
        tied=True,
        window="period",
        window_in_gguf="period",
        rope_base=1e6,
        local_rope_base=1e4,
        scale_by_hidden_at=62,
        hf_defaults={
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        },
        hf_skip=(
            "vision_tower.",
            "multi_modal_projector.",
            "model.vision_tower.",
            "model.multi_modal_projector.",
        ),
    ),
)

ARCHS: Mapping[str, Arch] = MappingProxyType({row.name: row for row in _ROWS})

# Outside the layers, as in Arch.layer.
_TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}

_HF_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "")


def hf_prefix(names: Iterable[str]) -> str:
    """What stands before "embed_tokens.weight" in a checkpoint's tensor names."""
    held = set(names)
    return next((p for p in _HF_PREFIXES if f"{p}embed_tokens.weight" in held), _HF_PREFIXES[0])


def hf_name(arch: Arch, prefix: str, name: str) -> str:
    """The Hugging Face name of the tensor that GGUF calls `name`."""
    stem, _, kind = name.rpartition(".")
    if stem == "output":
        wrapper = "language_model." if prefix == "language_model.model." else ""
        return f"{wrapper}lm_head.{kind}"
    if not stem.startswith("blk."):
        return f"{prefix}{_TOP[stem]}.{kind}"
    _, layer, stem = stem.split(".")
    return f"{prefix}layers.{layer}.{arch.layer[stem]}.{kind}"
