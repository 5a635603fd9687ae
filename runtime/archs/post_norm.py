"""Models with norms behind attention and FFN: OLMo 2 and 3 and EXAONE 4 only there, GLM-4 also in front."""

from __future__ import annotations

from dataclasses import replace

from .arch import FFN, FUSED_FFN, QK_NORMS, QKV, Arch, layer_names

OLMO2 = Arch(
    name="olmo2",
    gguf="olmo2",
    output_in_gguf=True,
    hf=("olmo2",),
    layer=layer_names(
        "attn_norm",
        "ffn_norm",
        **QK_NORMS,
        post_attention_norm="post_attention_layernorm",
        post_ffw_norm="post_feedforward_layernorm",
    ),
    qk_norm="whole",
    window_in_gguf="period",  # OLMo 3 has a window, and is called olmo2 in GGUF files
    window_period=4,
    local_rope_unscaled=True,
    hf_defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
)

ROWS = (
    OLMO2,
    replace(
        OLMO2,
        name="olmo3",
        hf=("olmo3",),
        window="period",
        rope_base=5e5,
        hf_defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096},
    ),
    Arch(
        name="exaone4",
        gguf="exaone4",
        hf=("exaone4",),
        layer=OLMO2.layer,
        window="period",
        window_in_gguf="period",
        window_period=4,
        nope="full",
        hf_biases={},
        hf_defaults={
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 32,
            "sliding_window": 4096,
        },
    ),
    Arch(
        name="glm4",
        gguf="glm4",
        hf=("glm4",),
        layer=layer_names(
            post_attention_norm="post_self_attn_layernorm",
            post_ffw_norm="post_mlp_layernorm",
            ffn_gate="mlp.gate_up_proj",
            ffn_up="mlp.gate_up_proj",
        ),
        interleaved_in_gguf=True,
        interleaved_in_hf=True,
        rotary_factor=0.5,
        fused_in_gguf=FUSED_FFN,
        hf_biases={"attention_bias": QKV, "mlp_bias": FFN},
        hf_defaults={
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1.5625e-7,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "attention_bias": True,
        },
    ),
)
