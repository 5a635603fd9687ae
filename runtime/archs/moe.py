"""Llama-like models with a mixture of experts: Mixtral, Qwen-MoE, gpt-oss, GLM-4.5, MiniMax-M2, ERNIE 4.5."""

from __future__ import annotations

from dataclasses import replace

from . import llama
from .arch import ATTENTION, DENSE_FFN, QK_NORMS, QKV, Arch, layer_names, without

BY_NAME = {row.name: row for row in llama.ROWS}


def experts(
    block: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> dict[str, str]:
    """The names of the router of `block` and of its experts, "{}" for the number of an expert."""
    return {
        "ffn_gate_inp": f"{block}.gate",
        "ffn_gate_exps": f"{block}.experts.{{}}.{gate}",
        "ffn_up_exps": f"{block}.experts.{{}}.{up}",
        "ffn_down_exps": f"{block}.experts.{{}}.{down}",
    }


def shared(block: str) -> dict[str, str]:
    """The names of the shared expert of `block`."""
    return {f"ffn_{part}_shexp": f"{block}.{part}_proj" for part in ("gate", "up", "down")}


MIXTRAL_EXPERTS = experts("block_sparse_moe", "w1", "w3", "w2")

ROWS = (
    replace(
        BY_NAME["mistral"],
        name="mixtral",  # in GGUF files it is called llama
        hf=("mixtral",),
        layer={**without(llama.LLAMA.layer, *DENSE_FFN), **MIXTRAL_EXPERTS},
        rope_base=1e6,
        hf_defaults={
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
        },
    ),
    replace(
        BY_NAME["qwen2"],
        name="qwen2moe",
        gguf="qwen2moe",
        output_in_gguf=True,
        hf=("qwen2_moe",),
        layer={
            **llama.LLAMA.layer,
            **experts("mlp"),
            **shared("mlp.shared_expert"),
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        },
        normalised_in_gguf=False,
        biases=frozenset(),
        hf_biases={"qkv_bias": QKV},
        hf_defaults={
            **llama.QWEN2.hf_defaults,
            "num_key_value_heads": 16,
            "qkv_bias": True,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts_per_tok": 4,
            "norm_topk_prob": False,
        },
    ),
    replace(
        BY_NAME["qwen3"],
        name="qwen3moe",
        gguf="qwen3moe",
        hf=("qwen3_moe",),
        layer={**BY_NAME["qwen3"].layer, **experts("mlp")},
        hf_defaults={
            **llama.QWEN2.hf_defaults,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
    ),
    Arch(
        name="gpt-oss",
        gguf="gpt-oss",
        output_in_gguf=True,
        hf=("gpt_oss",),
        layer=layer_names(
            *DENSE_FFN,
            attn_sinks="self_attn.sinks",
            ffn_gate_inp="mlp.router",
            ffn_gate_exps="mlp.experts.gate_up_proj",
            ffn_up_exps="mlp.experts.gate_up_proj",
            ffn_down_exps="mlp.experts.down_proj",
        ),
        window="period",
        window_in_gguf="period",
        window_period=2,
        rope_base=150000.0,
        yarn_truncates=False,
        swiglu_limit=7.0,
        biases=ATTENTION | {"ffn_gate_inp"},
        gguf_names={"ffn_norm": "post_attention_norm"},
        hf_defaults={
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
        },
        hf_experts_transposed=True,
    ),
    Arch(
        name="glm4moe",
        gguf="glm4moe",
        hf=("glm4_moe",),
        layer=layer_names(
            **QK_NORMS,
            **experts("mlp"),
            **shared("mlp.shared_experts"),
            exp_probs_b="mlp.gate.e_score_correction_bias",
        ),
        optional=frozenset(QK_NORMS),
        rotary_factor=0.5,
        scoring="sigmoid",
        hf_biases={"attention_bias": QKV},
        gguf_names={"ffn_norm": "post_attention_norm"},
        hf_defaults={
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "moe_intermediate_size": 1408,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
        },
    ),
    Arch(
        name="minimax-m2",
        gguf="minimax-m2",
        output_in_gguf=True,
        hf=("minimax_m2",),
        layer=layer_names(
            *DENSE_FFN,
            **QK_NORMS,
            **MIXTRAL_EXPERTS,
            exp_probs_b="block_sparse_moe.e_score_correction_bias",
        ),
        qk_norm="whole",
        rope_base=5e6,
        scoring="sigmoid",
        hf_defaults={
            "max_position_embeddings": 196608,
            "rms_norm_eps": 1e-6,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_experts_per_tok": 8,
        },
        hf_skip=("model.mtp",),
    ),
    replace(
        BY_NAME["ernie4.5"],
        name="ernie4.5-moe",
        gguf="ernie4_5-moe",
        hf=("ernie4_5_moe",),
        layer={
            **llama.LLAMA.layer,
            **experts("mlp"),
            **shared("mlp.shared_experts"),
            "exp_probs_b": "mlp.moe_statics.e_score_correction_bias",
        },
        hf_keys={"num_experts_per_tok": "moe_k"},
        hf_defaults={
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 1536,
            "moe_k": 6,
            "moe_num_shared_experts": 2,
        },
        hf_skip=("model.mtp_",),
    ),
)
