"""The forward pass: a ModelConfig and its Weights as a list of ops."""

from __future__ import annotations

from .config import ModelConfig
from .ops import (
    Add,
    Attend,
    Buffer,
    CacheLayer,
    Embed,
    GatedActivation,
    MatMul,
    Op,
    Program,
    RMSNorm,
    RoPE,
    SelectRows,
    SoftCap,
)
from .weights import Weights


def build_program(config: ModelConfig, weights: Weights) -> Program:
    """The program of a model; `x` is the residual stream. Raises DamagedFile for unusable RoPE."""
    c, w = config, weights
    x = Buffer("x", c.hidden)
    h = Buffer("h", c.hidden)
    q = Buffer("q", c.n_heads * c.head_dim)
    k = Buffer("k", c.n_kv_heads * c.head_dim)
    v = Buffer("v", c.n_kv_heads * c.head_dim)
    a = Buffer("a", c.n_heads * c.head_dim)
    gate = Buffer("gate", c.ffn)
    up = Buffer("up", c.ffn)
    # The last layer goes on with the rows whose logits are wanted as soon as the others have left their mark.
    last = {b: Buffer(f"last {b.name}", b.width, wanted=True) for b in (x, h, a, gate, up)}
    logits = Buffer("logits", c.vocab_size, wanted=True)

    divisors = w.vector("rope_freqs.weight") if c.rope_divisors else None
    inv_freqs = {rope: rope.inv_freq(divisors) for rope in {layer.rope for layer in c.layers}}

    def norm(name: str, x: Buffer, out: Buffer, groups: int = 1) -> Op:
        return RMSNorm(x, out, w.norm(f"{name}.weight"), c.norm_eps, groups)

    def linear(i: int, stem: str, x: Buffer, out: Buffer, accumulate: bool = False) -> Op:
        bias = w.vector(f"blk.{i}.{stem}.bias") if stem in c.biases else None
        return MatMul(x, out, w.matrix(f"blk.{i}.{stem}.weight"), bias, accumulate)

    def residual(i: int, stem: str, source: Buffer, h: Buffer, x: Buffer, post_norm: str) -> list[Op]:
        """x += source @ weightᵀ, with a norm in between if the model has one."""
        if not c.post_norms:
            return [linear(i, stem, source, x, accumulate=True)]
        return [linear(i, stem, source, h), norm(f"blk.{i}.{post_norm}", h, h), Add(h, x)]

    ops: list[Op] = [Embed(x, w.matrix("token_embd.weight"), c.embed_scale)]  # x [rows, hidden]
    for i, layer in enumerate(c.layers):
        ops += [
            norm(f"blk.{i}.attn_norm", x, h),  # h [rows, hidden]
            linear(i, "attn_q", h, q),  # q [rows, heads * head_dim]
            linear(i, "attn_k", h, k),  # k [rows, kv_heads * head_dim]
            linear(i, "attn_v", h, v),  # v [rows, kv_heads * head_dim]
        ]
        if c.qk_norm:
            ops += [
                norm(f"blk.{i}.attn_q_norm", q, q, c.n_heads),
                norm(f"blk.{i}.attn_k_norm", k, k, c.n_kv_heads),
            ]
        inv_freq = inv_freqs[layer.rope]
        ops += [
            RoPE(q, c.n_heads, inv_freq, layer.rope.interleaved),
            RoPE(k, c.n_kv_heads, inv_freq, layer.rope.interleaved),
            Attend(
                *(q, k, v, a),  # a [rows, heads * head_dim]
                layer=i,
                heads=c.n_heads,
                kv_heads=c.n_kv_heads,
                head_dim=c.head_dim,
                scale=c.attention_scale,
                window=layer.window,
                softcap=c.attention_softcap,
            ),
        ]
        if i + 1 == c.n_layers:
            ops += [SelectRows(a, last[a]), SelectRows(x, last[x])]  # [wanted, …] from here on
            x, h, a, gate, up = last[x], last[h], last[a], last[gate], last[up]
        ops += [
            *residual(i, "attn_output", a, h, x, "post_attention_norm"),  # x [rows, hidden]
            norm(f"blk.{i}.ffn_norm", x, h),  # h [rows, hidden]
            linear(i, "ffn_gate", h, gate),  # gate [rows, ffn]
            linear(i, "ffn_up", h, up),  # up [rows, ffn]
            GatedActivation(gate, up, gate, c.activation),  # gate [rows, ffn]
            *residual(i, "ffn_down", gate, h, x, "post_ffw_norm"),  # x [rows, hidden]
        ]
    ops += [
        norm("output_norm", x, x),  # x [wanted, hidden]
        MatMul(x, logits, w.matrix("token_embd.weight" if c.tied else "output.weight")),  # [wanted, vocab]
    ]
    if c.logit_softcap:
        ops.append(SoftCap(logits, c.logit_softcap))

    cache = (CacheLayer(c.n_kv_heads, c.head_dim),) * c.n_layers
    buffers = tuple({b.name: b for b in [*last, *last.values(), q, k, v, logits]}.values())
    return Program(tuple(ops), buffers, cache, logits)
