"""Those with recurrent layers: short convolutions, the gated delta rule, Mamba-2 (see recurrence.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from . import llama, moe
from .arch import QK_NORMS, VISION, Arch, layer_names

DENSE = ("ffn_gate", "ffn_up", "ffn_down")
# What config.json calls a Mamba mixer's tensors, after the mixer's own name
MAMBA = {
    "ssm_z": "in_proj",
    "ssm_mix": "in_proj",
    "ssm_step": "in_proj",
    "ssm_conv1d": "conv1d",
    "ssm_dt": "dt_bias",
    "ssm_a": "A_log",
    "ssm_d": "D",
    "ssm_norm": "norm",
    "ssm_out": "out_proj",
}
MAMBA_IN_GGUF = dict.fromkeys(("ssm_z", "ssm_mix", "ssm_step"), "ssm_in")
MAMBA_DEFAULTS = {"mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_d_state": 256, "mamba_d_head": "auto"}


def _in(block: str, names: Mapping[str, str]) -> dict[str, str]:
    return {stem: f"{block}.{name}" for stem, name in names.items()}


def _without(layer: Mapping[str, str], *stems: str) -> dict[str, str]:
    return {stem: name for stem, name in layer.items() if stem not in stems}


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

GRANITE4 = replace(
    llama.GRANITE,
    name="granite4",
    gguf="granitehybrid",
    hf=("granitemoehybrid",),
    layer={
        **layer_names(
            ffn_gate="shared_mlp.input_linear",
            ffn_up="shared_mlp.input_linear",
            ffn_down="shared_mlp.output_linear",
        ),
        **_in("mamba", MAMBA),
    },
    recurrence="mamba2",
    gguf_names=MAMBA_IN_GGUF,
    hf_defaults={
        **MAMBA_DEFAULTS,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "attention_multiplier": 1.0,
        "position_embedding_type": "none",
        "shared_intermediate_size": 1024,
        "num_local_experts": 8,
        "num_experts_per_tok": 8,
        "mamba_n_heads": 128,
        "mamba_expand": 2,
    },
    hf_keys={"intermediate_size": "shared_intermediate_size"},
)

NEMOTRON_H = Arch(
    name="nemotron-h",
    gguf="nemotron_h",
    hf=("nemotron_h",),
    layer={
        "attn_norm": "norm",
        "attn_q": "mixer.q_proj",
        "attn_k": "mixer.k_proj",
        "attn_v": "mixer.v_proj",
        "attn_output": "mixer.o_proj",
        "ffn_up": "mixer.up_proj",
        "ffn_down": "mixer.down_proj",
        **_without(moe.experts("mixer"), "ffn_gate_exps"),
        **_without(moe.shared("mixer.shared_experts"), "ffn_gate_shexp"),
        "ffn_latent_down": "mixer.fc1_latent_proj",
        "ffn_latent_up": "mixer.fc2_latent_proj",
        "exp_probs_b": "mixer.gate.e_score_correction_bias",
        **_in("mixer", MAMBA),
    },
    activation="relu2",
    nope="all",
    recurrence="mamba2",
    scoring="sigmoid",
    gguf_names=MAMBA_IN_GGUF,
    hf_biases={},
    hf_norm_eps="layer_norm_epsilon",
    hf_keys={
        "head_dim": "attention_head_dim",  # in older files
        "hidden_act": "mlp_hidden_act",
        "shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
        "mamba_n_heads": "mamba_num_heads",
        "mamba_d_head": "mamba_head_dim",
        "mamba_d_state": "ssm_state_size",
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
    },
    hf_defaults={
        "max_position_embeddings": 4096,
        "layer_norm_epsilon": 1e-5,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
    },
    hf_prefixes=("backbone.", "model."),
    hf_top={"token_embd": "embeddings", "output_norm": "norm_f", "output": "lm_head"},
    hf_skip=("mtp.",),
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
    QWEN3_NEXT,
    QWEN35,
    replace(
        QWEN35,
        name="qwen3.5-moe",
        gguf="qwen35moe",
        hf=("qwen3_5_moe_text", "qwen3_5_moe"),
        layer={**_without(QWEN35.layer, *DENSE), **QWEN_EXPERTS},
        hf_defaults={**QWEN3_NEXT.hf_defaults, "num_experts_per_tok": 8},
    ),
    GRANITE4,
    replace(
        GRANITE4,
        name="granite4-moe",
        layer={
            **_without(GRANITE4.layer, *DENSE),
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            "ffn_gate_exps": "block_sparse_moe.input_linear",
            "ffn_up_exps": "block_sparse_moe.input_linear",
            "ffn_down_exps": "block_sparse_moe.output_linear",
            "ffn_gate_shexp": "shared_mlp.input_linear",
            "ffn_up_shexp": "shared_mlp.input_linear",
            "ffn_down_shexp": "shared_mlp.output_linear",
        },
        hf_keys={"shared_expert_intermediate_size": "shared_intermediate_size"},
    ),
    NEMOTRON_H,
    replace(NEMOTRON_H, name="nemotron-h-moe", gguf="nemotron_h_moe", hf=()),
    Arch(
        name="falcon-h1",
        gguf="falcon-h1",
        hf=("falcon_h1",),
        layer={
            **layer_names(
                ffn_norm="pre_ff_layernorm",
                ffn_gate="feed_forward.gate_proj",
                ffn_up="feed_forward.up_proj",
                ffn_down="feed_forward.down_proj",
            ),
            **_in("mamba", MAMBA),
        },
        optional=frozenset({"ssm_norm"}),
        recurrence="mamba2",
        gguf_names=MAMBA_IN_GGUF,
        multipliers_in_gguf_weights=True,
        bare_in_gguf=frozenset({"ffn_norm"}),
        hf_keys={"logit_scale": "lm_head_multiplier"},
        hf_defaults={
            **MAMBA_DEFAULTS,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "mamba_n_heads": 128,
            "mamba_expand": 2,
            "mamba_norm_before_gate": True,
        },
        hf_top={"token_embd": "embed_tokens", "output_norm": "final_layernorm", "output": "lm_head"},
    ),
)
