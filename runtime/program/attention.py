"""Multi-head attention with grouped keys and values.

Vaswani et al. 2017, "Attention Is All You Need"; Ainslie et al. 2023, "GQA".
"""

from __future__ import annotations

import numpy as np

from ..ops import Attend, Buffer, CacheLayer, RMSNorm, ScaleQueries, SigmoidGate
from .builder import LayerBuilder


def attention(b: LayerBuilder, x: Buffer) -> Buffer:
    """softmax(q kᵀ · scale) v, in front of the output projection: [rows, heads · head_dim]."""
    c, layer = b.config, b.layer
    (head_dim, kv_heads, _), (first_dim, first_kv_heads, _) = c.sizes(layer), c.sizes(c.layers[0])
    q = b.sized("q", c.n_heads * head_dim, c.n_heads * first_dim)
    k = b.sized("k", kv_heads * head_dim, first_kv_heads * first_dim)
    v = b.sized("v", kv_heads * head_dim, first_kv_heads * first_dim)
    out = b.sized("a", c.n_heads * head_dim, c.n_heads * first_dim)

    b.linear("attn_q", x, q)  # q [rows, heads · head_dim]
    if layer.kv_from is None:
        cache_layer = b.add_cache_layer(CacheLayer(kv_heads, head_dim))
        b.linear("attn_k", x, k)  # k [rows, kv_heads · head_dim]
        b.linear("attn_k" if layer.values_are_keys else "attn_v", x, v)  # v [rows, kv_heads · head_dim]
        if c.value_norm:
            b.emit(RMSNorm(v, v, np.ones(head_dim, np.float32), c.norm_eps, kv_heads))
    else:
        cache_layer = b.emitted.cache_index[layer.kv_from]
    prepare_qk(b, q, k)
    b.emit(
        Attend(
            *(q, k, v, out),  # out [rows, heads · head_dim]
            layer=cache_layer,
            heads=c.n_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=c.attention_scale,
            window=layer.window,
            softcap=c.attention_softcap,
            sinks=b.vector("attn_sinks") if c.sinks else None,
            append=layer.kv_from is None,
            causal=c.causal,
        )
    )
    if c.output_gate:
        gate = b.linear("attn_q_gate", x, b.buffer("q gate", q.width))  # gate [rows, heads · head_dim]
        b.emit(SigmoidGate(gate, out))
    return out


def prepare_qk(b: LayerBuilder, q: Buffer, k: Buffer) -> None:
    """q/k norms, rotary embeddings and the attention temperature, in place.

    k is left alone in a layer that shares the keys and values of another.
    """
    c = b.config
    heads = [("attn_q_norm", q, c.n_heads)]
    if b.layer.kv_from is None:
        heads.append(("attn_k_norm", k, c.sizes(b.layer)[1]))
    if not c.qk_norm_after_rope:
        _norm_heads(b, heads)
    for _, x, n in heads:
        b.rope(x, n)
    if c.qk_norm_after_rope:
        _norm_heads(b, heads)
    if c.attention_temperature[0]:
        b.emit(ScaleQueries(q, *c.attention_temperature))


def _norm_heads(b: LayerBuilder, heads: list[tuple[str, Buffer, int]]) -> None:
    """The norms of queries and keys, over each head or over the whole row; `heads`: stem, buffer, heads."""
    for stem, x, n in heads:
        if stem in b.config.norms:
            b.norm(stem, x, x, groups=1 if b.config.qk_norm == "whole" else n)
