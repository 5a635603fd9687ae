"""Encoders: BERT and its relatives, which read a text in both directions and make vectors of it."""

from __future__ import annotations

from dataclasses import replace

from .arch import ATTENTION, FFN, FUSED_FFN, FUSED_QKV, Arch

_NORMS = frozenset({"token_embd_norm", "attn_output_norm", "layer_output_norm"})

BERT = Arch(
    name="bert",
    gguf="bert",
    hf=("bert",),
    layer={
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
    causal=False,
    norm="layer",
    learned_positions=True,
    nope="all",
    activation="gelu",
    biases=_NORMS | ATTENTION | {"ffn_up", "ffn_down"},
    hf_biases={},
    hf_norm_eps="layer_norm_eps",
    hf_defaults={"max_position_embeddings": 512, "layer_norm_eps": 1e-12, "hidden_act": "gelu"},
    hf_prefixes=("bert.", ""),
    hf_layers="encoder.layer",
    hf_top={
        "token_embd": "embeddings.word_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
        "output": "cls.predictions.decoder",
    },
    hf_heads=("pooler.", "cls."),
)

NOMIC = replace(
    BERT,
    name="nomic-bert",
    gguf="nomic-bert",
    hf=("nomic_bert",),
    layer={
        "attn_q": "attn.Wqkv",
        "attn_k": "attn.Wqkv",
        "attn_v": "attn.Wqkv",
        "attn_output": "attn.out_proj",
        "attn_output_norm": "norm1",
        "ffn_gate": "mlp.fc12",
        "ffn_up": "mlp.fc11",
        "ffn_down": "mlp.fc2",
        "layer_output_norm": "norm2",
    },
    learned_positions=False,
    nope="none",
    rope_base=1000.0,
    activation="silu",
    biases=_NORMS,
    fused_in_gguf=FUSED_QKV,
    hf_defaults={"max_position_embeddings": 2048, "layer_norm_eps": 1e-12},
    hf_keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
        "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_emb_fraction",
    },
    hf_layers="encoder.layers",
    hf_top={
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "emb_ln",
    },
)

ROWS = (
    BERT,
    replace(
        BERT,
        name="xlm-roberta",  # in GGUF files it is called bert
        gguf="",
        hf=("xlm-roberta", "roberta", "camembert"),
        padded_positions=True,
        hf_defaults={"max_position_embeddings": 514, "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
        hf_prefixes=("roberta.", ""),
        hf_top={**BERT.hf_top, "output": "lm_head.decoder"},
        hf_heads=("pooler.", "lm_head."),
    ),
    NOMIC,
    Arch(
        name="modernbert",
        gguf="modern-bert",
        hf=("modernbert",),
        layer={
            "attn_norm": "attn_norm",
            "attn_q": "attn.Wqkv",
            "attn_k": "attn.Wqkv",
            "attn_v": "attn.Wqkv",
            "attn_output": "attn.Wo",
            "ffn_norm": "mlp_norm",
            "ffn_gate": "mlp.Wi",
            "ffn_up": "mlp.Wi",
            "ffn_down": "mlp.Wo",
        },
        causal=False,
        first_norm=False,
        norm="layer",
        activation="gelu",
        rope_base=160000.0,
        local_rope_base=10000.0,
        window="period",
        window_in_gguf="period",
        window_period=3,
        window_first_full=True,
        fused_in_gguf={**FUSED_QKV, **FUSED_FFN},
        hf_biases={"attention_bias": ATTENTION, "mlp_bias": FFN},
        hf_norm_eps="norm_eps",
        hf_defaults={
            "max_position_embeddings": 8192,
            "norm_eps": 1e-5,
            "local_attention": 128,
            "hidden_activation": "gelu",
        },
        hf_keys={
            "rope_theta": "global_rope_theta",
            "rope_local_base_freq": "local_rope_theta",
            "sliding_window": "local_attention",
            "sliding_window_pattern": "global_attn_every_n_layers",
        },
        hf_top={
            "token_embd": "embeddings.tok_embeddings",
            "token_embd_norm": "embeddings.norm",
            "output_norm": "final_norm",
            "output": "decoder",
        },
        hf_heads=("head.", "decoder."),
    ),
)
