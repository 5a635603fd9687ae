"""Multi-head latent attention. DeepSeek-AI 2024, "DeepSeek-V2", section 2.1 and appendix C.

The up-projection of keys is absorbed into the queries, and that of values into the output. Attention then has
one key-value head: its keys are the latent and the shared rotary part, its values the latent.
"""

from __future__ import annotations

from ..ops import Attend, Buffer, CacheLayer, HeadMatMul
from ..weights.mla_heads import HeadTensors
from .builder import LayerBuilder

NORM_EPS = 1e-6  # of the norms of latents, whatever the epsilon of the model's other norms


def latent_attention(b: LayerBuilder, x: Buffer) -> Buffer:
    """Attention over cached latents, in front of the output projection: [rows, heads · value_dim]."""
    c, mla = b.config, b.config.mla
    assert mla
    q = b.buffer("q", c.n_heads * mla.head_dim)
    kv = b.buffer("k", mla.cache_width)
    if mla.q_rank:
        q_latent = b.buffer("latent query", mla.q_rank)
        b.linear("attn_q_a", x, q_latent)  # q_latent [rows, q_rank]
        b.norm("attn_q_a_norm", q_latent, q_latent, eps=NORM_EPS)
        b.linear("attn_q_b", q_latent, q)  # q [rows, heads · (nope_dim + rope_dim)]
    else:
        b.linear("attn_q", x, q)  # q [rows, heads · (nope_dim + rope_dim)]
    b.linear("attn_kv_a_mqa", x, kv)  # kv [rows, kv_rank + rope_dim]
    b.norm("attn_kv_a_norm", kv, kv, eps=NORM_EPS)  # the first kv_rank columns
    b.rope(q, c.n_heads, start=mla.nope_dim)
    b.rope(kv, 1, start=mla.kv_rank)

    out = b.buffer("a", c.n_heads * mla.value_dim)
    cache_layer = b.add_cache_layer(CacheLayer(1, mla.cache_width, value_dim=0))
    b.emit(*absorbed_attention(b.weights.heads(b.index), q, kv, out, cache_layer, c.attention_scale))
    return out  # [rows, heads · value_dim]


def absorbed_attention(
    heads: HeadTensors, q: Buffer, kv: Buffer, out: Buffer, cache_layer: int, scale: float
) -> list[HeadMatMul | Attend]:
    """Attention of q over the cache and `kv`, both with rotated parts.

    q is [rows, heads · head_dim], kv [rows, kv_rank + rope_dim], and out [rows, heads · value_dim].
    """
    n, kv_rank = len(heads.keys), heads.keys[0].shape[0]
    absorbed = Buffer("latent q", n * kv.width)
    attended = Buffer("latent a", n * kv_rank)
    attend = Attend(
        *(absorbed, kv, kv, attended),  # attended [rows, heads · kv_rank]
        layer=cache_layer,
        heads=n,
        kv_heads=1,
        head_dim=kv.width,
        scale=scale,
    )
    return [
        HeadMatMul(q, absorbed, heads.keys),  # absorbed [rows, heads · (kv_rank + rope_dim)]
        attend,
        HeadMatMul(attended, out, heads.values),  # out [rows, heads · value_dim]
    ]
