"""The tensors that a model needs, by their GGUF names, and their shapes."""

from __future__ import annotations

from collections.abc import Iterator

from ..archs import ARCHS
from ..config.layers import Layer
from ..config.model_config import ModelConfig

_BIAS_ONLY = frozenset({"exp_probs_b", "ssm_dt"})
OF_KEYS = frozenset({"attn_k", "attn_v", "attn_k_norm"})  # and values


def shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that the model needs, by its GGUF name, with its shape."""
    c = config
    yield "token_embd.weight", (c.vocab_size, c.hidden)
    if c.learned_positions:
        yield "position_embd.weight", (c.context_length, c.hidden)
    if c.per_layer:
        width = c.n_layers * c.per_layer.width
        yield "per_layer_token_embd.weight", (c.per_layer.vocab_size, width)
        yield "per_layer_model_proj.weight", (width, c.hidden)
        yield "per_layer_proj_norm.weight", (c.per_layer.width,)
    for j in range(c.altup.streams - 1 if c.altup else 0):
        yield f"altup_proj.{j}.weight", (c.hidden, c.hidden)
        yield f"altup_unembd_proj.{j}.weight", (c.hidden, c.hidden)
    for i, layer in enumerate(c.layers):
        known = _shapes_of_layer(c, layer)
        for stem in _stems(c, layer):
            shape = known.get(stem, (c.hidden,))
            if stem not in _BIAS_ONLY:
                yield f"blk.{i}.{stem}.weight", shape
            if stem in c.biases or stem in _BIAS_ONLY:
                yield f"blk.{i}.{stem}.bias", shape[:1]
    yield "output_norm.weight", (c.hidden,)
    if "output_norm" in c.biases:
        yield "output_norm.bias", (c.hidden,)
    if not c.tied:
        yield "output.weight", (c.vocab_size, c.hidden)
    if "output" in c.biases:
        yield "output.bias", (c.vocab_size,)


def _shapes_of_layer(config: ModelConfig, layer: Layer) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's tensors, by stem, but for those of [hidden]. Matrices: (outputs, inputs)."""
    c = config
    head_dim, kv_heads, ffn = c.sizes(layer)
    queries, keys = c.n_heads * head_dim, kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (queries, c.hidden),
        "attn_q_gate": (queries, c.hidden),
        "attn_k": (keys, c.hidden),
        "attn_v": (keys, c.hidden),
        "attn_output": (c.hidden, queries),
        "attn_sinks": (c.n_heads,),
        "ffn_gate": (ffn, c.hidden),
        "ffn_up": (ffn, c.hidden),
        "ffn_down": (c.hidden, ffn),
        "attn_q_norm": (head_dim,),
        "attn_k_norm": (head_dim,),
        "layer_output_scale": (1,),
    }
    if c.qk_norm == "whole":
        shapes |= {"attn_q_norm": (queries,), "attn_k_norm": (keys,)}
    elif c.qk_norm == "each head":
        shapes |= {"attn_q_norm": (c.n_heads, head_dim), "attn_k_norm": (kv_heads, head_dim)}
    if c.experts:
        shared = c.experts.shared_width
        shapes |= {
            "ffn_gate_inp": (c.experts.count, c.hidden),
            "ffn_gate_inp_shexp": (1, c.hidden),
            "ffn_gate_shexp": (shared, c.hidden),
            "ffn_up_shexp": (shared, c.hidden),
            "ffn_down_shexp": (c.hidden, shared),
            "ffn_latent_down": (c.experts.latent, c.hidden),
            "ffn_latent_up": (c.hidden, c.experts.latent),
            "ffn_down_exps_scale": (c.experts.count,),
            "exp_probs_b": (c.experts.count,),
        }
    if c.recurrence:
        shapes |= c.recurrence.shapes(c.hidden)
    if c.latent:
        shapes |= {
            "attn_q_a": (c.latent.query_rank, c.hidden),
            "attn_q_a_norm": (c.latent.query_rank,),
            "attn_q_b": (queries, c.latent.query_rank),
            "attn_kv_a_mqa": (c.latent.cached, c.hidden),
            "attn_kv_a_norm": (c.latent.rank,),
            "attn_output": (c.hidden, c.n_heads * c.latent.value),
        }
    if c.per_layer:
        shapes |= {"inp_gate": (c.per_layer.width, c.hidden), "proj": (c.hidden, c.per_layer.width)}
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


_OF_EXPERTS = frozenset(
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
    """What a layer has, but for the matrices of experts and of latent heads."""
    c, arch = config, ARCHS[config.arch]
    experts = c.experts if layer.experts else None
    absent = {"attn_k_b", "attn_v_b"} | (arch.norms - c.norms)
    if not experts or not experts.choice_bias:
        absent.add("exp_probs_b")
    if not experts or not experts.latent:
        absent |= {"ffn_latent_down", "ffn_latent_up"}
    if not experts:
        absent |= _OF_EXPERTS
    elif not experts.beside_dense:
        absent |= {"ffn_gate", "ffn_up", "ffn_down"}
    if layer.kv_from is not None:
        absent |= OF_KEYS
    if layer.values_are_keys:
        absent.add("attn_v")
    if c.latent:
        absent |= {"attn_q"} if c.latent.query_rank else {"attn_q_a", "attn_q_b"}
    if not c.per_layer:
        absent |= {"inp_gate", "proj"}
    for stem in arch.layer:
        shared = stem.endswith("_shexp")
        if stem in absent or stem.endswith("_exps") or not _in_layer(stem, layer):
            continue
        if not shared or (experts and experts.shared_width):
            yield stem


def _in_layer(stem: str, layer: Layer) -> bool:
    """Whether the part of a layer that a tensor belongs to is one that `layer` has."""
    if stem == "attn_norm":  # in front of whatever comes first
        return True
    if stem == "ffn_norm" and not (layer.attends or layer.recurs):
        return False
    part = stem.partition("_")[0]
    return {"attn": layer.attends, "ssm": layer.recurs, "ffn": layer.feeds}.get(part, True)
