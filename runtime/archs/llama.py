"""Llama and the models that follow it: RMS norm in front of attention and of a gated FFN."""

from __future__ import annotations

from dataclasses import replace

from .arch import FFN, FUSED_FFN, FUSED_QKV, QK_NORMS, QKV, VISION, Arch, layer_names

LLAMA = Arch(
    name="llama",
    gguf="llama",
    hf=("llama",),
    interleaved_in_gguf=True,
    window_in_gguf="all",
    hf_defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
)

QWEN2 = Arch(
    name="qwen2",
    gguf="qwen2",
    hf=("qwen2",),
    biases=QKV,
    window="from",
    hf_defaults={
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 32,
        "max_window_layers": 28,
        "sliding_window": 4096,
    },
)

GRANITE = Arch(
    name="granite",
    gguf="granite",
    hf=("granite",),
    interleaved_in_gguf=True,
    nope="switch",
    logits_divided=True,
    hf_defaults={
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "attention_multiplier": 1.0,
        "position_embedding_type": "rope",
    },
)

ROWS = (
    LLAMA,
    replace(
        LLAMA,
        name="mistral",  # in GGUF files it is called llama
        hf=("mistral",),
        window="all",
        hf_defaults={
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        hf_skip=VISION,
    ),
    replace(
        LLAMA,
        name="ministral3",
        gguf="mistral3",
        hf=("ministral3",),
        window="all",
        hf_defaults={
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
        hf_skip=VISION,
    ),
    QWEN2,
    replace(
        QWEN2,
        name="qwen3",
        gguf="qwen3",
        hf=("qwen3",),
        layer=layer_names(**QK_NORMS),
        biases=frozenset(),
        hf_defaults={**QWEN2.hf_defaults, "head_dim": 128},
    ),
    Arch(
        name="smollm3",
        gguf="smollm3",
        hf=("smollm3",),
        interleaved_in_gguf=True,
        rope_base=2e6,
        window="named",
        nope="period",
        tied=True,
        hf_defaults={"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 4},
    ),
    Arch(
        name="phi3",
        gguf="phi3",
        hf=("phi3",),
        layer=layer_names(
            attn_q="self_attn.qkv_proj",
            attn_k="self_attn.qkv_proj",
            attn_v="self_attn.qkv_proj",
            ffn_gate="mlp.gate_up_proj",
            ffn_up="mlp.gate_up_proj",
        ),
        window="all",
        window_in_gguf="all",
        fused_in_gguf={**FUSED_QKV, **FUSED_FFN},
        hf_biases={},  # published files have the keys of other models
        hf_defaults={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
    ),
    GRANITE,
    Arch(
        name="seed-oss",
        gguf="seed_oss",
        hf=("seed_oss",),
        hf_biases={
            "attention_bias": QKV,
            "attention_out_bias": frozenset({"attn_output"}),
            "mlp_bias": FFN,
        },
        gguf_names={"ffn_norm": "post_attention_norm"},
        hf_defaults={
            "max_position_embeddings": 524288,
            "rms_norm_eps": 1e-6,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_bias": True,
        },
    ),
    Arch(
        name="ernie4.5",
        gguf="ernie4_5",
        hf=("ernie4_5",),
        interleaved_in_gguf=True,
        interleaved_in_hf=True,
        rope_base=5e5,
        tied=True,
        hf_biases={"use_bias": QKV | FFN | {"attn_output"}},
        hf_defaults={
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 2,
            "head_dim": 128,
        },
    ),
    Arch(
        name="hunyuan-dense",
        gguf="hunyuan-dense",
        hf=("hunyuan_v1_dense",),
        layer=layer_names(attn_q_norm="self_attn.query_layernorm", attn_k_norm="self_attn.key_layernorm"),
        qk_norm_after_rope=True,
        hf_defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
    ),
)
