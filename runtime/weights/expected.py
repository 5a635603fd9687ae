"""The tensors that a model must have, by their GGUF names, and their shapes."""

from __future__ import annotations

from collections.abc import Iterator

from ..archs import ARCHS
from ..config.layers import Layer
from ..config.model_config import ModelConfig
from ..config.moe import MoEConfig

_BIAS_ONLY = frozenset({"exp_probs_b", "ssm_dt"})
KV_STEMS = frozenset({"attn_k", "attn_v", "attn_k_norm"})  # stems that make keys and values


def shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The GGUF name and shape of every tensor of the model, but the matrices of experts and of MLA heads."""
    c = config
    yield "token_embd.weight", (c.vocab_size, c.hidden)
    if c.learned_positions:
        yield "position_embd.weight", (c.position_offset + c.context_length, c.hidden)
    if c.token_types:
        yield "token_types.weight", (c.token_types, c.hidden)
    if c.embedding_norm:
        yield "token_embd_norm.weight", (c.hidden,)
    if "token_embd_norm" in c.biases:
        yield "token_embd_norm.bias", (c.hidden,)
    if c.per_layer_input:
        width = c.n_layers * c.per_layer_input.width
        yield "per_layer_token_embd.weight", (c.per_layer_input.vocab_size, width)
        yield "per_layer_model_proj.weight", (width, c.hidden)
        yield "per_layer_proj_norm.weight", (c.per_layer_input.width,)
    for j in range(c.altup.streams - 1 if c.altup else 0):
        yield f"altup_proj.{j}.weight", (c.hidden, c.hidden)
        yield f"altup_unembd_proj.{j}.weight", (c.hidden, c.hidden)
    for i, layer in enumerate(c.layers):
        layer_shapes = _shapes_of_layer(c, layer)
        for stem in _stems(c, layer):
            shape = layer_shapes.get(stem, (c.hidden,))
            if stem not in _BIAS_ONLY:
                yield f"blk.{i}.{stem}.weight", shape
            if stem in c.biases or stem in _BIAS_ONLY:
                yield f"blk.{i}.{stem}.bias", shape[:1]
    if c.output_norm:
        yield "output_norm.weight", (c.hidden,)
    if "output_norm" in c.biases:
        yield "output_norm.bias", (c.hidden,)
    if not (c.tied or c.no_text):
        yield "output.weight", (c.vocab_size, c.hidden)
    if "output" in c.biases and not c.no_text:
        yield "output.bias", (c.vocab_size,)


def _shapes_of_layer(config: ModelConfig, layer: Layer) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's tensors by stem, (outputs, inputs) for a matrix; all others are [hidden]."""
    c, ffn = config, config.sizes(layer)[2]
    shapes: dict[str, tuple[int, ...]] = {
        "ffn_gate": (ffn, c.hidden),
        "ffn_up": (ffn, c.hidden),
        "ffn_down": (c.hidden, ffn),
        "layer_output_scale": (1,),
    }
    shapes |= _attention_shapes(c, layer)
    if c.moe:
        shapes |= _moe_shapes(c.moe, c.hidden)
    if c.recurrence:
        shapes |= c.recurrence.shapes(c.hidden)
    if c.per_layer_input:
        width = c.per_layer_input.width
        shapes |= {"inp_gate": (width, c.hidden), "proj": (c.hidden, width)}
    if c.altup:
        n, rank = c.altup.streams, c.altup.laurel_rank
        shapes |= {
            "altup_router": (n, c.hidden),
            "altup_predict_coef": (n * n, n),
            "altup_correct_coef": (n, n),
            "laurel_l": (rank, c.hidden),
            "laurel_r": (c.hidden, rank),
        }
    return shapes


def _attention_shapes(c: ModelConfig, layer: Layer) -> dict[str, tuple[int, ...]]:
    head_dim, kv_heads, _ = c.sizes(layer)
    queries, keys = c.n_heads * head_dim, kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (queries, c.hidden),
        "attn_q_gate": (queries, c.hidden),
        "attn_k": (keys, c.hidden),
        "attn_v": (keys, c.hidden),
        "attn_output": (c.hidden, queries),
        "attn_sinks": (c.n_heads,),
        "attn_q_norm": (head_dim,),
        "attn_k_norm": (head_dim,),
    }
    if c.qk_norm == "whole":
        shapes |= {"attn_q_norm": (queries,), "attn_k_norm": (keys,)}
    elif c.qk_norm == "each head":
        shapes |= {"attn_q_norm": (c.n_heads, head_dim), "attn_k_norm": (kv_heads, head_dim)}
    if c.mla:
        shapes |= {
            "attn_q_a": (c.mla.q_rank, c.hidden),
            "attn_q_a_norm": (c.mla.q_rank,),
            "attn_q_b": (queries, c.mla.q_rank),
            "attn_kv_a_mqa": (c.mla.cache_width, c.hidden),
            "attn_kv_a_norm": (c.mla.kv_rank,),
            "attn_output": (c.hidden, c.n_heads * c.mla.value_dim),
        }
    return shapes


def _moe_shapes(moe: MoEConfig, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        "ffn_gate_inp": (moe.n_experts, hidden),
        "ffn_gate_inp_shexp": (1, hidden),
        "ffn_gate_shexp": (moe.shared_width, hidden),
        "ffn_up_shexp": (moe.shared_width, hidden),
        "ffn_down_shexp": (hidden, moe.shared_width),
        "ffn_latent_down": (moe.latent_width, hidden),
        "ffn_latent_up": (hidden, moe.latent_width),
        "ffn_down_exps_scale": (moe.n_experts,),
        "exp_probs_b": (moe.n_experts,),
    }


_MOE_ONLY = frozenset(
    {
        "ffn_gate_inp",
        "ffn_gate_inp_scale",
        "ffn_down_exps_scale",
        "pre_ffw_norm_2",
        "post_ffw_norm_1",
        "post_ffw_norm_2",
    }
)


def _stems(config: ModelConfig, layer: Layer) -> Iterator[str]:
    """The stems of a layer's tensors, but the matrices of experts and of MLA heads."""
    c, arch = config, ARCHS[config.arch]
    experts = c.moe if layer.is_moe else None
    absent = {"attn_k_b", "attn_v_b"} | (arch.norms - c.norms)
    if not experts or not experts.correction_bias:
        absent.add("exp_probs_b")
    if not experts or not experts.latent_width:
        absent |= {"ffn_latent_down", "ffn_latent_up"}
    if not experts:
        absent |= _MOE_ONLY
    elif not experts.parallel_dense:
        absent |= {"ffn_gate", "ffn_up", "ffn_down"}
    if layer.kv_from is not None:
        absent |= KV_STEMS
    if layer.values_are_keys:
        absent.add("attn_v")
    if c.mla:
        absent |= {"attn_q"} if c.mla.q_rank else {"attn_q_a", "attn_q_b"}
    if not c.per_layer_input:
        absent |= {"inp_gate", "proj"}
    for stem in arch.layer:
        shared = stem.endswith("_shexp")
        if stem in absent or stem.endswith("_exps") or not _in_layer(stem, layer):
            continue
        if not shared or (experts and experts.shared_width):
            yield stem


def _in_layer(stem: str, layer: Layer) -> bool:
    """Whether `layer` has the block that the tensor belongs to."""
    if stem == "attn_norm":  # in front of the first block, of any kind
        return layer.has_attn_norm
    if stem == "ffn_norm" and not (layer.has_attention or layer.has_recurrence):
        return False
    block = stem.partition("_")[0]
    return {"attn": layer.has_attention, "ssm": layer.has_recurrence, "ffn": layer.has_ffn}.get(block, True)
