"""The forward pass: a ModelConfig and its Weights as a list of ops."""

from __future__ import annotations

import numpy as np

from .config import ModelConfig
from .ops import (
    Activation,
    Add,
    AddPositions,
    Attend,
    Buffer,
    CacheLayer,
    Embed,
    GatedActivation,
    GrowQueries,
    LayerNorm,
    MatMul,
    Op,
    Program,
    RMSNorm,
    RoPE,
    SelectRows,
    SoftCap,
)
from .rope import Rope
from .weights import Weights


def build_program(config: ModelConfig, weights: Weights) -> Program:
    """The program of a model; `x` is the residual stream. Raises DamagedFile for unusable RoPE."""
    c, w = config, weights
    x = Buffer("x", c.hidden)
    h = Buffer("h", c.hidden)
    f = Buffer("f", c.hidden) if c.parallel else h  # what the FFN reads
    q = Buffer("q", c.n_heads * c.head_dim)
    k = Buffer("k", c.n_kv_heads * c.head_dim)
    v = Buffer("v", c.n_kv_heads * c.head_dim)
    a = Buffer("a", c.n_heads * c.head_dim)
    gate = Buffer("gate", c.ffn)
    up = Buffer("up", c.ffn)
    # The last layer goes on with the rows whose logits are wanted as soon as the others have left their mark.
    last = {b: Buffer(f"last {b.name}", b.width, wanted=True) for b in (x, h, f, a, gate, up)}
    logits = Buffer("logits", c.vocab_size, wanted=True)
    inv_freqs = {rope: _frequencies(rope) for layer in c.layers if (rope := layer.rope)}
    one_norm = c.parallel and "ffn_norm" not in c.norms  # for attention and FFN

    def norm(name: str, x: Buffer, out: Buffer, groups: int = 1, scale: float = 1.0) -> Op:
        weight = w.norm(f"{name}.weight") * np.float32(scale)
        if c.norm == "rms":
            return RMSNorm(x, out, weight, c.norm_eps, groups)
        has_bias = name.rpartition(".")[2] in c.biases
        bias = w.vector(f"{name}.bias") * np.float32(scale) if has_bias else None
        return LayerNorm(x, out, weight.reshape(-1), bias, c.norm_eps, groups)

    def pre_norm(i: int, stem: str, out: Buffer) -> tuple[list[Op], Buffer]:
        """The norm of the stream in front of a part, and what that part reads."""
        return ([norm(f"blk.{i}.{stem}", x, out)], out) if stem in c.norms else ([], x)

    def linear(i: int, stem: str, x: Buffer, out: Buffer, accumulate: bool = False) -> Op:
        bias = w.vector(f"blk.{i}.{stem}.bias") if stem in c.biases else None
        return MatMul(x, out, w.matrix(f"blk.{i}.{stem}.weight"), bias, accumulate)

    def residual(i: int, stem: str, source: Buffer, post_norm: str) -> list[Op]:
        """x += source @ weightᵀ, with a norm or a scale in between if the model has one."""
        if post_norm in c.norms:
            return [
                linear(i, stem, source, h),
                norm(f"blk.{i}.{post_norm}", h, h),
                Add(h, x, c.residual_scale),
            ]
        if c.residual_scale != 1.0:
            return [linear(i, stem, source, h), Add(h, x, c.residual_scale)]
        return [linear(i, stem, source, x, accumulate=True)]

    def positioned(i: int, rope: Rope | None) -> list[Op]:
        """Norms, rotation and growth of queries and keys."""
        norms, turns, growth = list[Op](), list[Op](), list[Op]()
        for stem, b, heads in (("attn_q_norm", q, c.n_heads), ("attn_k_norm", k, c.n_kv_heads)):
            if stem in c.norms:
                norms.append(norm(f"blk.{i}.{stem}", b, b, 1 if c.qk_norm == "whole" else heads))
            if rope:
                longer = rope.inv_freq if rope.same_up_to else None
                how = (rope.interleaved, rope.attention_factor, rope.same_up_to, longer)
                turns.append(RoPE(b, heads, inv_freqs[rope], *how))
        if c.query_growth[0]:
            growth.append(GrowQueries(q, *c.query_growth))
        return [*turns, *norms, *growth] if c.qk_norm_after_rope else [*norms, *turns, *growth]

    ops: list[Op] = [Embed(x, w.matrix("token_embd.weight"), c.embed_scale)]  # x [rows, hidden]
    if c.learned_positions:
        ops.append(AddPositions(x, w.matrix("position_embd.weight")))
    for i, layer in enumerate(c.layers):
        norms, n = pre_norm(i, "attn_norm", f if one_norm else h)
        ops += [
            *norms,  # n [rows, hidden]
            linear(i, "attn_q", n, q),  # q [rows, heads * head_dim]
            linear(i, "attn_k", n, k),  # k [rows, kv_heads * head_dim]
            linear(i, "attn_v", n, v),  # v [rows, kv_heads * head_dim]
            *positioned(i, layer.rope),
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
            ops += [SelectRows(b, last[b]) for b in ((a, x, f) if one_norm else (a, x))]
            x, h, f, a, gate, up = (last[b] for b in (x, h, f, a, gate, up))  # [wanted, …] from here on
        attended = residual(i, "attn_output", a, "post_attention_norm")  # x [rows, hidden]
        norms, n = ([], f) if one_norm else pre_norm(i, "ffn_norm", f)
        ops += [*norms, *attended] if c.parallel else [*attended, *norms]  # n [rows, hidden]
        if c.gated:
            ops += [
                linear(i, "ffn_gate", n, gate),  # gate [rows, ffn]
                linear(i, "ffn_up", n, up),  # up [rows, ffn]
                GatedActivation(gate, up, gate, c.activation),  # gate [rows, ffn]
            ]
        else:
            ops += [linear(i, "ffn_up", n, up), Activation(up, up, c.activation)]  # up [rows, ffn]
        ops += residual(i, "ffn_down", gate if c.gated else up, "post_ffw_norm")  # x [rows, hidden]
    ops += [
        norm("output_norm", x, x, scale=c.logit_scale),  # x [wanted, hidden]
        MatMul(x, logits, w.matrix("token_embd.weight" if c.tied else "output.weight")),  # [wanted, vocab]
    ]
    if c.logit_softcap:
        ops.append(SoftCap(logits, c.logit_softcap))

    cache = (CacheLayer(c.n_kv_heads, c.head_dim),) * c.n_layers
    buffers = tuple({b.name: b for b in [*last, *last.values(), q, k, v, logits]}.values())
    return Program(tuple(ops), buffers, cache, logits)


def _frequencies(rope: Rope) -> np.ndarray:
    """Those of short sequences; of long ones it is only made sure that there are any."""
    rope.inv_freq(rope.same_up_to + 1)
    return rope.inv_freq()
