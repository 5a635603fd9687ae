"""The forward pass: a ModelConfig and its Weights as a list of ops."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from .config import Layer, ModelConfig
from .experts import PROJECTIONS, Experts
from .mixers import Mixer
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
from .ops_recurrent import StateLayer
from .rope import Rope
from .weights import Weights


@dataclass(frozen=True)
class Stream:
    """The residual stream, and what a layer makes of it after attention."""

    x: Buffer  # the stream
    h: Buffer  # normed, and then what is to be added
    f: Buffer  # what the FFN reads
    a: Buffer  # what attention gives
    y: Buffer  # what recurrence gives
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
            y=Mixer.of(c.recurrence).y,
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
    q_gate = Buffer("q gate", c.n_heads * c.head_dim if c.output_gate else 0)
    mixer = Mixer.of(c.recurrence)
    caches, states = list[CacheLayer](), list[StateLayer]()
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

    def pre_norm(i: int, stem: str, out: Buffer, scale: float = 1.0) -> tuple[list[Op], Buffer]:
        """The norm of the stream in front of a part, and what that part reads."""
        return ([norm(f"blk.{i}.{stem}", s.x, out, 1, scale)], out) if stem in c.norms else ([], s.x)

    def linear(i: int, stem: str, x: Buffer, out: Buffer, accumulate: bool = False) -> Op:
        bias = w.vector(f"blk.{i}.{stem}.bias") if stem in c.biases else None
        return MatMul(x, out, w.matrix(f"blk.{i}.{stem}.weight"), bias, accumulate)

    def add(i: int, post_norm: str, scale: float = 1.0) -> list[Op]:
        """x += h, with a norm or a scale in between if the model has one."""
        norms = [norm(f"blk.{i}.{post_norm}", s.h, s.h)] if post_norm in c.norms else []
        return [*norms, Add(s.h, s.x, c.residual_scale * scale)]

    def residual(i: int, stem: str, source: Buffer, post_norm: str, scale: float = 1.0) -> list[Op]:
        """x += source @ weightᵀ, with a norm or a scale in between if the model has one."""
        if post_norm not in c.norms and c.residual_scale * scale == 1.0:
            return [linear(i, stem, source, s.x, accumulate=True)]
        return [linear(i, stem, source, s.h), *add(i, post_norm, scale)]

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

    def attention(i: int, layer: Layer, n: Buffer) -> list[Op]:
        """a = what attention makes of n; its cache layer is the next one."""
        caches.append(CacheLayer(c.n_kv_heads, c.head_dim))
        ops: list[Op] = [
            linear(i, "attn_q", n, q),  # q [rows, heads * head_dim]
            linear(i, "attn_k", n, k),  # k [rows, kv_heads * head_dim]
            linear(i, "attn_v", n, v),  # v [rows, kv_heads * head_dim]
            *positioned(i, layer.rope),
            Attend(
                *(q, k, v, s.a),  # a [rows, heads * head_dim]
                layer=len(caches) - 1,
                heads=c.n_heads,
                kv_heads=c.n_kv_heads,
                head_dim=c.head_dim,
                scale=c.attention_scale,
                window=layer.window,
                softcap=c.attention_softcap,
                sinks=w.vector(f"blk.{i}.attn_sinks.weight") if c.sinks else None,
            ),
        ]
        if c.output_gate:
            ops += [linear(i, "attn_q_gate", n, q_gate), SigmoidGate(q_gate, s.a)]
        return ops

    def feed_forward(i: int, n: Buffer) -> list[Op]:
        """x += down(f(gate n) · up n), or without a gate."""
        if not c.gated:
            ops = [linear(i, "ffn_up", n, s.up), Activation(s.up, s.up, c.activation)]  # up [rows, ffn]
            return [*ops, *residual(i, "ffn_down", s.up, "post_ffw_norm", c.scales.down)]
        return [
            linear(i, "ffn_gate", n, s.gate),  # gate [rows, ffn]
            linear(i, "ffn_up", n, s.up),  # up [rows, ffn]
            GatedActivation(s.gate, s.up, s.gate, c.activation, c.scales.gate),  # gate [rows, ffn]
            *residual(i, "ffn_down", s.gate, "post_ffw_norm", c.scales.down),
        ]

    def mixture(i: int, n: Buffer, e: Experts) -> list[Op]:
        """x += what the experts chosen for each row of `n` make of it, and the one that all rows pass."""
        held = w.experts(i)
        gate, up, down = (held.matrices.get(stem, ()) for stem in PROJECTIONS)
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
            inner = s.shared_gate if c.gated else s.shared_up
            if c.gated:
                ops += [
                    linear(i, "ffn_gate_shexp", n, s.shared_gate),  # shared_gate [rows, shared]
                    linear(i, "ffn_up_shexp", n, s.shared_up),  # shared_up [rows, shared]
                    GatedActivation(s.shared_gate, s.shared_up, inner, c.activation),
                ]
            else:
                ops.append(linear(i, "ffn_up_shexp", n, s.shared_up))  # shared_up [rows, shared]
                ops.append(Activation(s.shared_up, inner, c.activation))
            if e.shared_gate:
                ops.append(linear(i, "ffn_gate_inp_shexp", n, s.share))  # share [rows, 1]
                ops.append(SigmoidGate(s.share, inner))
            ops.append(linear(i, "ffn_down_shexp", inner, s.h, accumulate=True))  # h [rows, hidden]
        return [*ops, *add(i, "post_ffw_norm")]

    ops: list[Op] = [Embed(s.x, w.matrix("token_embd.weight"), c.embed_scale)]  # x [rows, hidden]
    if c.learned_positions:
        ops.append(AddPositions(s.x, w.matrix("position_embd.weight")))
    for i, layer in enumerate(c.layers):
        mixed = list[tuple[str, Buffer, float]]()  # what is added to the stream, by which matrix, scaled
        if layer.recurs and c.recurrence:
            norms, n = pre_norm(i, "attn_norm", s.h, c.scales.recurrent_in)
            product = partial(linear, i)
            ops += [*norms, *mixer.ops(c.recurrence, i, n, w, product, len(states), c.norm_eps)]
            states += c.recurrence.states
            mixed.append(("ssm_out", s.y, c.scales.recurrent_out))
        if layer.attends:
            norms, n = pre_norm(i, "attn_norm", s.f if one_norm else s.h, c.scales.attention_in)
            ops += [*norms, *attention(i, layer, n)]  # n [rows, hidden]
            mixed.append(("attn_output", s.a, c.scales.attention_out))
        if i + 1 == c.n_layers:
            lasts = {s.a: last.a, s.y: last.y}
            ops += [SelectRows(b, lasts[b]) for _, b, _ in mixed]  # [wanted, …] from here on
            ops.append(SelectRows(s.x, last.x))
            ops += [SelectRows(s.f, last.f)] if one_norm else []
            mixed = [(stem, lasts[b], scale) for stem, b, scale in mixed]
            s = last
        added = [op for stem, b, scale in mixed for op in residual(i, stem, b, "post_attention_norm", scale)]
        ffn_norm = "ffn_norm" if mixed else "attn_norm"  # the one norm of a layer that is nothing else
        norms, n = ([], s.f) if one_norm or not layer.feeds else pre_norm(i, ffn_norm, s.f)
        ops += [*norms, *added] if c.parallel else [*added, *norms]  # n [rows, hidden]
        if layer.experts and c.experts:
            ops += mixture(i, n, c.experts)
        elif layer.feeds:
            ops += feed_forward(i, n)
    head = "token_embd.weight" if c.tied else "output.weight"
    head_bias = w.vector("output.bias") if "output" in c.biases else None
    ops += [
        norm("output_norm", s.x, s.x, scale=c.logit_scale),  # x [wanted, hidden]
        MatMul(s.x, logits, w.matrix(head), head_bias),  # logits [wanted, vocab]
    ]
    if c.logit_softcap:
        ops.append(SoftCap(logits, c.logit_softcap))

    mine = [q, k, v, q_gate, logits, *mixer.buffers()]
    named = {b.name: b for b in [*all_rows.buffers(), *last.buffers(), *mine] if b.width}
    return Program(tuple(ops), tuple(named.values()), tuple(caches), logits, tuple(states))


def _frequencies(rope: Rope) -> np.ndarray:
    """Those of short sequences; of long ones it is only made sure that there are any."""
    rope.inv_freq(rope.same_up_to + 1)
    return rope.inv_freq()
