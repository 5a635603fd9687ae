"""Granite 4, Nemotron-H and Falcon-H1: Mamba-2 in most layers, or beside attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from . import llama, moe
from .arch import DENSE_FFN, Arch, layer_names, without

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


def _prefixed(block: str, names: Mapping[str, str]) -> dict[str, str]:
    return {stem: f"{block}.{name}" for stem, name in names.items()}


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
        **_prefixed("mamba", MAMBA),
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
        **without(moe.experts("mixer"), "ffn_gate_exps"),
        **without(moe.shared("mixer.shared_experts"), "ffn_gate_shexp"),
        "ffn_latent_down": "mixer.fc1_latent_proj",
        "ffn_latent_up": "mixer.fc2_latent_proj",
        "exp_probs_b": "mixer.gate.e_score_correction_bias",
        **_prefixed("mixer", MAMBA),
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
    GRANITE4,
    replace(
        GRANITE4,
        name="granite4-moe",
        layer={
            **without(GRANITE4.layer, *DENSE_FFN),
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
            **_prefixed("mamba", MAMBA),
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
