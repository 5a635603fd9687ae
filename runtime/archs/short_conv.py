"""LFM2 and LFM2-MoE: gated short convolutions in most layers, attention in some."""

from __future__ import annotations

from dataclasses import replace

from . import moe
from .arch import VISION, Arch

LFM2 = Arch(
    name="lfm2",
    gguf="lfm2",
    hf=("lfm2", "lfm2_vl"),
    layer={
        "attn_norm": "operator_norm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "ssm_mix": "conv.in_proj",
        "ssm_z": "conv.in_proj",
        "ssm_x": "conv.in_proj",
        "ssm_conv1d": "conv.conv",
        "ssm_out": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
    },
    recurrence="short_conv",
    rope_base=1e6,
    tied=True,
    gguf_names={
        **dict.fromkeys(("ssm_mix", "ssm_z", "ssm_x"), "shortconv.in_proj"),
        "ssm_conv1d": "shortconv.conv",
        "ssm_out": "shortconv.out_proj",
        "output_norm": "token_embd_norm",
    },
    hf_norm_eps="norm_eps",
    hf_keys={"tie_word_embeddings": "tie_embedding", "intermediate_size": "block_ff_dim"},
    hf_defaults={
        "max_position_embeddings": 128000,
        "norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
    hf_top={"token_embd": "embed_tokens", "output_norm": "embedding_norm", "output": "lm_head"},
    hf_skip=VISION,
)

ROWS = (
    LFM2,
    replace(
        LFM2,
        name="lfm2moe",
        gguf="lfm2moe",
        hf=("lfm2_moe",),
        layer={
            **LFM2.layer,
            **moe.experts("feed_forward", "w1", "w3", "w2"),
            "exp_probs_b": "feed_forward.expert_bias",
        },
        scoring="sigmoid",
        hf_keys={"tie_word_embeddings": "tie_embedding"},
        hf_defaults={
            "max_position_embeddings": 128000,
            "norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "conv_L_cache": 3,
            "moe_intermediate_size": 1792,
            "num_experts_per_tok": 4,
        },
    ),
)
