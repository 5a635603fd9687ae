"""Gemma 3n and 4: per-layer inputs, shared keys and values, attention scores that are not scaled."""

from __future__ import annotations

from .arch import QK_NORMS, VISION, Arch, layer_names
from .gemma import NORMS_AROUND

MULTIMODAL = (*VISION, "model.audio_tower.", "model.embed_vision.", "model.embed_audio.")
TOP = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "per_layer_token_embd": "embed_tokens_per_layer",
    "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm",
}

PER_LAYER_INPUT = {  # and the norms of a layer
    **QK_NORMS,
    **NORMS_AROUND,
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}

GEMMA3N = Arch(
    name="gemma3n",
    gguf="gemma3n",
    hf=("gemma3n_text", "gemma3n"),
    layer=layer_names(
        **PER_LAYER_INPUT,
        laurel_l="laurel.linear_left",
        laurel_r="laurel.linear_right",
        laurel_post_norm="laurel.post_laurel_norm",
        altup_router="altup.modality_router",
        altup_router_norm="altup.router_norm",
        altup_predict_coef="altup.prediction_coefs",
        altup_correct_coef="altup.correction_coefs",
        altup_correct_scale="altup.correct_output_scale",
    ),
    activation="gelu_tanh",
    scale_embedding=True,
    tied=True,
    window="period",
    window_in_gguf="period",
    window_period=5,
    rope_base=1e6,
    local_rope_base=1e4,
    attention_scale=1.0,
    value_norm=True,
    hf_top={
        **TOP,
        "altup_proj": "altup_projections",
        "altup_unembd_proj": "altup_unembed_projections",
    },
    gguf_defaults={
        "altup.num_inputs": 4,
        "altup.active_idx": 0,
        "final_logit_softcapping": 30.0,
    },
    hf_defaults={
        "vocab_size": 262400,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "sliding_window": 512,
        "final_logit_softcapping": 30.0,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "altup_active_idx": 0,
        "altup_num_inputs": 4,
        "num_kv_shared_layers": 15,
        "laurel_rank": 64,
    },
    hf_skip=MULTIMODAL,
)

ROWS = (
    GEMMA3N,
    Arch(
        name="gemma4",
        gguf="gemma4",
        hf=("gemma4_text", "gemma4"),
        layer=layer_names(
            **PER_LAYER_INPUT,
            layer_output_scale="layer_scalar",
            ffn_gate_inp="router.proj",
            ffn_gate_inp_scale="router.scale",
            ffn_gate_exps="experts.gate_up_proj",
            ffn_up_exps="experts.gate_up_proj",
            ffn_down_exps="experts.down_proj",
            ffn_down_exps_scale="router.per_expert_scale",
            pre_ffw_norm_2="pre_feedforward_layernorm_2",
            post_ffw_norm_1="post_feedforward_layernorm_1",
            post_ffw_norm_2="post_feedforward_layernorm_2",
        ),
        optional=frozenset({"post_norm"}),
        activation="gelu_tanh",
        scale_embedding=True,
        tied=True,
        window="period",
        window_in_gguf="period",
        window_period=6,
        rope_base=1e6,
        local_rope_base=1e4,
        attention_scale=1.0,
        value_norm=True,
        values_from_keys=True,
        moe_parallel_dense=True,
        hf_top=TOP,
        fused_in_gguf={"ffn_gate_exps": "ffn_gate_up_exps", "ffn_up_exps": "ffn_gate_up_exps"},
        gguf_names={"ffn_gate_inp_scale": "ffn_gate_inp.scale", "ffn_down_exps_scale": "ffn_down_exps.scale"},
        hf_keys={"num_experts_per_tok": "top_k_experts"},
        hf_defaults={
            "vocab_size": 262144,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 30,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "global_head_dim": 512,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "sliding_window": 512,
            "vocab_size_per_layer_input": 262144,
            "hidden_size_per_layer_input": 256,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1e6,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        hf_skip=MULTIMODAL,
    ),
)
