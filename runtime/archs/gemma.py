"""Gemma 1 to 3: scaled embeddings, norm weights stored minus 1, tanh-GELU; from 2 on norms behind blocks."""

from __future__ import annotations

from dataclasses import replace

from .arch import QK_NORMS, VISION, Arch, layer_names

NORMS_AROUND = {  # norms in front of and behind each block
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

GEMMA = Arch(
    name="gemma",
    gguf="gemma",
    hf=("gemma",),
    activation="gelu_tanh",
    hf_gelu_is_tanh=True,
    scale_embedding=True,
    hf_norm_offset=1.0,
    tied=True,
    hf_defaults={
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 16,
        "head_dim": 256,
    },
)

GEMMA2 = replace(
    GEMMA,
    name="gemma2",
    gguf="gemma2",
    hf=("gemma2",),
    layer=layer_names(**NORMS_AROUND),
    window="period",
    window_in_gguf="period",
    window_period=2,
    scale_by_hidden_at=46,
    gguf_defaults={
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "attention.sliding_window": 4096,
    },
    hf_defaults={
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)

GEMMA3 = replace(
    GEMMA2,
    name="gemma3",
    gguf="gemma3",
    hf=("gemma3_text", "gemma3"),
    layer={
        **GEMMA2.layer,
        **QK_NORMS,
    },
    window_period=6,
    rope_base=1e6,
    local_rope_base=1e4,
    scale_by_hidden_at=62,
    gguf_defaults={},
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
    hf_skip=VISION,
)

ROWS = (
    GEMMA,
    GEMMA2,
    GEMMA3,
    replace(GEMMA3, name="gemma-embedding", gguf="gemma-embedding", hf=(), causal=False),
)
