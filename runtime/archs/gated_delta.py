"""Qwen3-Next and Qwen3.5: the gated delta rule in three layers of four, gated attention in the fourth."""

from __future__ import annotations

from dataclasses import replace

from . import moe
from .arch import DENSE_FFN, QK_NORMS, Arch, layer_names, without

DELTA = {
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
GATED_ATTENTION = {"attn_q_gate": "self_attn.q_proj", **QK_NORMS}
QWEN_EXPERTS = {
    **moe.experts("mlp"),
    **moe.shared("mlp.shared_expert"),
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
QWEN3_NEXT = Arch(
    name="qwen3next",
    gguf="qwen3next",
    hf=("qwen3_next",),
    layer={
        **layer_names(**GATED_ATTENTION, **QWEN_EXPERTS),
        **DELTA,
        "ssm_mix": "linear_attn.in_proj_qkvz",
        "ssm_z": "linear_attn.in_proj_qkvz",
        "ssm_beta": "linear_attn.in_proj_ba",
        "ssm_step": "linear_attn.in_proj_ba",
    },
    recurrence="gated_delta",
    mtp_reads_normed=True,
    rotary_factor=0.25,
    gguf_names={
        "attn_q_gate": "attn_q",
        "ffn_norm": "post_attention_norm",
        "ssm_mix": "attn_qkv",
        "ssm_z": "attn_gate",
        "ssm_beta": "ssm_ba",
        "ssm_step": "ssm_ba",
    },
    hf_norm_offset=1.0,
    hf_defaults={
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10,
    },
    hf_skip=("mtp.",),
)
QWEN35 = replace(
    QWEN3_NEXT,
    name="qwen3.5",
    gguf="qwen35",
    hf=("qwen3_5_text", "qwen3_5"),
    layer={
        **layer_names(**GATED_ATTENTION),
        **DELTA,
        "ssm_mix": "linear_attn.in_proj_qkv",
        "ssm_z": "linear_attn.in_proj_z",
        "ssm_beta": "linear_attn.in_proj_b",
        "ssm_step": "linear_attn.in_proj_a",
    },
    gguf_names={**QWEN3_NEXT.gguf_names, "ssm_beta": "ssm_beta", "ssm_step": "ssm_alpha"},
    tiled_in_gguf=True,
    hf_defaults={**QWEN3_NEXT.hf_defaults, "num_key_value_heads": 4},
    hf_skip=("mtp.", "model.visual."),
)

ROWS = (
    QWEN3_NEXT,
    QWEN35,
    replace(
        QWEN35,
        name="qwen3.5-moe",
        gguf="qwen35moe",
        hf=("qwen3_5_moe_text", "qwen3_5_moe"),
        layer={**without(QWEN35.layer, *DENSE_FFN), **QWEN_EXPERTS},
        hf_defaults={**QWEN3_NEXT.hf_defaults, "num_experts_per_tok": 8},
    ),
)
