"""Models with multi-head latent attention: DeepSeek V2 and V3, GLM-4.7-Flash; all deepseek2 in GGUF files."""

from __future__ import annotations

from dataclasses import replace

from .arch import FFN, Arch, layer_names

DEEPSEEK2 = Arch(
    name="deepseek2",
    gguf="deepseek2",
    hf=("deepseek_v2",),
    layer=layer_names(
        "attn_k",
        "attn_v",
        attn_q_a="self_attn.q_a_proj",
        attn_q_a_norm="self_attn.q_a_layernorm",
        attn_q_b="self_attn.q_b_proj",
        attn_kv_a_mqa="self_attn.kv_a_proj_with_mqa",
        attn_kv_a_norm="self_attn.kv_a_layernorm",
        attn_k_b="self_attn.kv_b_proj",
        attn_v_b="self_attn.kv_b_proj",
        ffn_gate_inp="mlp.gate",
        exp_probs_b="mlp.gate.e_score_correction_bias",
        ffn_gate_exps="mlp.experts.{}.gate_proj",
        ffn_up_exps="mlp.experts.{}.up_proj",
        ffn_down_exps="mlp.experts.{}.down_proj",
        ffn_gate_shexp="mlp.shared_experts.gate_proj",
        ffn_up_shexp="mlp.shared_experts.up_proj",
        ffn_down_shexp="mlp.shared_experts.down_proj",
    ),
    optional=frozenset({"attn_q_a_norm"}),
    interleaved_in_gguf=True,
    interleaved_in_hf=True,
    yarn_log_unit=0.1,
    normalised_in_gguf=False,
    hf_biases={
        "attention_bias": frozenset({"attn_q_a", "attn_kv_a_mqa", "attn_output"}),
        "mlp_bias": FFN,
    },
    hf_defaults={
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "moe_intermediate_size": 1407,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "topk_method": "greedy",
    },
)

ROWS = (
    DEEPSEEK2,
    replace(
        DEEPSEEK2,
        name="deepseek3",
        hf=("deepseek_v3",),
        scoring="sigmoid",
        hf_defaults={
            **DEEPSEEK2.hf_defaults,
            "max_position_embeddings": 4096,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "n_group": 8,
            "topk_group": 4,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "topk_method": "noaux_tc",
        },
    ),
    replace(
        DEEPSEEK2,
        name="glm4-moe-lite",
        hf=("glm4_moe_lite",),
        scoring="sigmoid",
        hf_defaults={
            "max_position_embeddings": 202752,
            "rms_norm_eps": 1e-5,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "v_head_dim": 256,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 64,
            "n_shared_experts": 1,
            "num_experts_per_tok": 4,
            "routed_scaling_factor": 1.8,
            "topk_method": "noaux_tc",
        },
    ),
)
