"""The forward pass: a ModelConfig and its Weights as a list of ops."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from .config import ModelConfig
from .experts import PROJECTIONS, Experts
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
    MoE,
    Op,
    Program,
    RMSNorm,
    RoPE,
    Route,
    SelectRows,
    SigmoidGate,
    SoftCap,
)
from .rope import Rope
from .weights import Weights


@dataclass(frozen=True)
class Stream:
    """The residual stream, and what a layer makes of it after attention."""

    x: Buffer  # the stream
    h: Buffer  # normed, and then what is to be added
    f: Buffer  # what the FFN reads
    a: Buffer  # what attention gives
    gate: Buffer
    up: Buffer
    scores: Buffer  # of experts
    chosen: Buffer
    shares: Buffer
    shared_gate: Buffer  # of the FFN beside the experts
    shared_up: Buffer
    share: Buffer

    @classmethod
    def of(cls, c: ModelConfig) -> Stream:
        e = c.experts or Experts(count=0, top=0, width=0)
        h = Buffer("h", c.hidden)
        return cls(
            x=Buffer("x", c.hidden),
            h=h,
            f=Buffer("f", c.hidden) if c.parallel or c.experts else h,
            a=Buffer("a", c.n_heads * c.head_dim),
            gate=Buffer("gate", c.ffn),
            up=Buffer("up", c.ffn),
            scores=Buffer("scores", e.count),
            chosen=Buffer("chosen", e.top),
            shares=Buffer("shares", e.top),
            shared_gate=Buffer("shared gate", e.shared_width),
            shared_up=Buffer("shared up", e.shared_width),
            share=Buffer("share", int(e.shared_gate)),
        )

    def wanted(self) -> Stream:
        """The same for the rows whose logits are wanted."""
        last = {b.name: Buffer(f"last {b.name}", b.width, wanted=True) for b in self.buffers()}
        return Stream(**{field.name: last[getattr(self, field.name).name] for field in fields(self)})

    def buffers(self) -> list[Buffer]:
        return [getattr(self, field.name) for field in fields(self)]


def build_program(config: ModelConfig, weights: Weights) -> Program:
    """The program of a model; `x` is the residual stream. Raises DamagedFile for unusable RoPE."""
    c, w = config, weights
    all_rows = s = Stream.of(c)
    # The last layer goes on with the rows whose logits are wanted as soon as the others have left their mark.
    last = s.wanted()
    q = Buffer("q", c.n_heads * c.head_dim)
    k = Buffer("k", c.n_kv_heads * c.head_dim)
    v = Buffer("v", c.n_kv_heads * c.head_dim)
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
        return ([norm(f"blk.{i}.{stem}", s.x, out)], out) if stem in c.norms else ([], s.x)

    def linear(i: int, stem: str, x: Buffer, out: Buffer, accumulate: bool = False) -> Op:
        bias = w.vector(f"blk.{i}.{stem}.bias") if stem in c.biases else None
        return MatMul(x, out, w.matrix(f"blk.{i}.{stem}.weight"), bias, accumulate)

    def add(i: int, post_norm: str) -> list[Op]:
        """x += h, with a norm or a scale in between if the model has one."""
        norms = [norm(f"blk.{i}.{post_norm}", s.h, s.h)] if post_norm in c.norms else []
        return [*norms, Add(s.h, s.x, c.residual_scale)]

    def residual(i: int, stem: str, source: Buffer, post_norm: str) -> list[Op]:
        """x += source @ weightᵀ, with a norm or a scale in between if the model has one."""
        if post_norm not in c.norms and c.residual_scale == 1.0:
            return [linear(i, stem, source, s.x, accumulate=True)]
        return [linear(i, stem, source, s.h), *add(i, post_norm)]

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

    def feed_forward(i: int, n: Buffer) -> list[Op]:
        """x += down(f(gate n) · up n), or without a gate."""
        if not c.gated:
            ops = [linear(i, "ffn_up", n, s.up), Activation(s.up, s.up, c.activation)]  # up [rows, ffn]
            return [*ops, *residual(i, "ffn_down", s.up, "post_ffw_norm")]
        return [
            linear(i, "ffn_gate", n, s.gate),  # gate [rows, ffn]
            linear(i, "ffn_up", n, s.up),  # up [rows, ffn]
            GatedActivation(s.gate, s.up, s.gate, c.activation),  # gate [rows, ffn]
            *residual(i, "ffn_down", s.gate, "post_ffw_norm"),
        ]

    def mixture(i: int, n: Buffer, e: Experts) -> list[Op]:
        """x += what the experts chosen for each row of `n` make of it, and the one that all rows pass."""
        held = w.experts(i)
        gate, up, down = (held.matrices[stem] for stem in PROJECTIONS)
        gate_bias, up_bias, down_bias = (held.biases.get(stem) for stem in PROJECTIONS)
        bias = w.vector(f"blk.{i}.exp_probs_b.bias") if e.choice_bias else None
        how = (e.scoring, bias, e.normalised, e.scale, e.groups, e.top_groups)
        ops: list[Op] = [
            linear(i, "ffn_gate_inp", n, s.scores),  # scores [rows, experts]
            Route(s.scores, s.chosen, s.shares, *how),  # chosen, shares [rows, top]
            MoE(
                *(n, s.chosen, s.shares, s.h),  # h [rows, hidden]
                *(gate, up, down),
                c.activation,
                *(gate_bias, up_bias, down_bias),
                limit=e.limit,
                alpha=e.alpha,
            ),
        ]
        if e.shared_width:
            ops += [
                linear(i, "ffn_gate_shexp", n, s.shared_gate),  # shared_gate [rows, shared]
                linear(i, "ffn_up_shexp", n, s.shared_up),  # shared_up [rows, shared]
                GatedActivation(s.shared_gate, s.shared_up, s.shared_gate, c.activation),
            ]
            if e.shared_gate:
                ops.append(linear(i, "ffn_gate_inp_shexp", n, s.share))  # share [rows, 1]
                ops.append(SigmoidGate(s.share, s.shared_gate))
            ops.append(linear(i, "ffn_down_shexp", s.shared_gate, s.h, accumulate=True))  # h [rows, hidden]
        return [*ops, *add(i, "post_ffw_norm")]

    ops: list[Op] = [Embed(s.x, w.matrix("token_embd.weight"), c.embed_scale)]  # x [rows, hidden]
    if c.learned_positions:
        ops.append(AddPositions(s.x, w.matrix("position_embd.weight")))
    for i, layer in enumerate(c.layers):
        norms, n = pre_norm(i, "attn_norm", s.f if one_norm else s.h)
        ops += [
            *norms,  # n [rows, hidden]
            linear(i, "attn_q", n, q),  # q [rows, heads * head_dim]
            linear(i, "attn_k", n, k),  # k [rows, kv_heads * head_dim]
            linear(i, "attn_v", n, v),  # v [rows, kv_heads * head_dim]
            *positioned(i, layer.rope),
            Attend(
                *(q, k, v, s.a),  # a [rows, heads * head_dim]
                layer=i,
                heads=c.n_heads,
                kv_heads=c.n_kv_heads,
                head_dim=c.head_dim,
                scale=c.attention_scale,
                window=layer.window,
                softcap=c.attention_softcap,
                sinks=w.vector(f"blk.{i}.attn_sinks.weight") if c.sinks else None,
            ),
        ]
        if i + 1 == c.n_layers:
            ops += [SelectRows(s.a, last.a), SelectRows(s.x, last.x)]  # [wanted, …] from here on
            ops += [SelectRows(s.f, last.f)] if one_norm else []
            s = last
        attended = residual(i, "attn_output", s.a, "post_attention_norm")  # x [rows, hidden]
        norms, n = ([], s.f) if one_norm else pre_norm(i, "ffn_norm", s.f)
        ops += [*norms, *attended] if c.parallel else [*attended, *norms]  # n [rows, hidden]
        ops += mixture(i, n, c.experts) if layer.experts and c.experts else feed_forward(i, n)
    head = "token_embd.weight" if c.tied else "output.weight"
    head_bias = w.vector("output.bias") if "output" in c.biases else None
    ops += [
        norm("output_norm", s.x, s.x, scale=c.logit_scale),  # x [wanted, hidden]
        MatMul(s.x, logits, w.matrix(head), head_bias),  # logits [wanted, vocab]
    ]
    if c.logit_softcap:
        ops.append(SoftCap(logits, c.logit_softcap))

    cache = (CacheLayer(c.n_kv_heads, c.head_dim),) * c.n_layers
    named = {b.name: b for b in [*all_rows.buffers(), *last.buffers(), q, k, v, logits] if b.width}
    return Program(tuple(ops), tuple(named.values()), cache, logits)


def _frequencies(rope: Rope) -> np.ndarray:
    """Those of short sequences; of long ones it is only made sure that there are any."""
    rope.inv_freq(rope.same_up_to + 1)
    return rope.inv_freq()
