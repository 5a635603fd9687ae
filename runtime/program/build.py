"""The forward pass: a ModelConfig and its Weights as a list of ops."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..config.altup import Streams
from ..config.from_files import Layer, ModelConfig
from ..config.latent import NORM_EPS, Latent, attend_latent
from ..config.moe import PROJECTIONS, Experts
from ..config.per_layer import embed_per_layer, enter_layer
from ..config.rope import Rope
from ..ops import (
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
    Sparsify,
)
from ..ops.buffer import buffers_of
from ..ops.recurrent import StateLayer
from ..weights.binding import Weights
from .buffers import Stream, wanted
from .mixers import Mixer


def build_program(config: ModelConfig, weights: Weights) -> Program:
    """The program of a model; `x` is the residual stream. Raises DamagedFile for unusable RoPE."""
    c, w = config, weights
    s = Stream.of(c, c.layers[0])
    mixer = Mixer.of(c.recurrence)
    caches, states = list[CacheLayer](), list[StateLayer]()
    cached: dict[int, int] = {}  # layer → which of the caches
    logits = Buffer("logits", c.vocab_size, logits_rows=True)
    inv_freqs = {rope: _frequencies(rope) for layer in c.layers if (rope := layer.rope)}
    one_norm = c.parallel and "ffn_norm" not in c.norms  # for attention and FFN

    def norm(
        name: str, x: Buffer, out: Buffer, groups: int = 1, scale: float = 1.0, eps: float = c.norm_eps
    ) -> Op:
        weight = w.norm(f"{name}.weight") * np.float32(scale)
        if c.norm == "rms":
            return RMSNorm(x, out, weight, eps, groups)
        has_bias = name.rpartition(".")[2] in c.biases
        bias = w.vector(f"{name}.bias") * np.float32(scale) if has_bias else None
        return LayerNorm(x, out, weight.reshape(-1), bias, eps, groups)

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

    def turn(rope: Rope, b: Buffer, heads: int, start: int = 0) -> Op:
        longer = rope.inv_freq if rope.original_context else None
        how = (rope.interleaved, rope.attention_factor, rope.original_context, longer)
        return RoPE(b, heads, inv_freqs[rope], *how, start=start)

    def positioned(i: int, layer: Layer) -> list[Op]:
        """Norms, rotation and growth of queries and keys."""
        norms, turns, growth = list[Op](), list[Op](), list[Op]()
        both = (("attn_q_norm", s.q, c.n_heads), ("attn_k_norm", s.k, c.sizes(layer)[1]))
        for stem, b, heads in both if layer.kv_from is None else both[:1]:
            if stem in c.norms:
                norms.append(norm(f"blk.{i}.{stem}", b, b, 1 if c.qk_norm == "whole" else heads))
            if layer.rope:
                turns.append(turn(layer.rope, b, heads))
        if c.query_growth[0]:
            growth.append(GrowQueries(s.q, *c.query_growth))
        return [*turns, *norms, *growth] if c.qk_norm_after_rope else [*norms, *turns, *growth]

    def attention(i: int, layer: Layer, n: Buffer) -> list[Op]:
        """a = attention of `n`, over what is cached and itself."""
        head_dim, kv_heads, _ = c.sizes(layer)
        ops = [linear(i, "attn_q", n, s.q)]  # q [rows, heads * head_dim]
        if layer.kv_from is None:
            cached[i] = len(caches)
            caches.append(CacheLayer(kv_heads, head_dim))
            values = "attn_k" if layer.values_are_keys else "attn_v"
            ops.append(linear(i, "attn_k", n, s.k))  # k [rows, kv_heads * head_dim]
            ops.append(linear(i, values, n, s.v))  # v [rows, kv_heads * head_dim]
            if c.value_norm:
                ops.append(RMSNorm(s.v, s.v, np.ones(head_dim, np.float32), c.norm_eps, kv_heads))
        attend = Attend(
            *(s.q, s.k, s.v, s.a),  # a [rows, heads * head_dim]
            layer=cached[i if layer.kv_from is None else layer.kv_from],
            heads=c.n_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=c.attention_scale,
            window=layer.window,
            softcap=c.attention_softcap,
            sinks=w.vector(f"blk.{i}.attn_sinks.weight") if c.sinks else None,
            append=layer.kv_from is None,
        )
        ops += [*positioned(i, layer), attend]
        if c.output_gate:
            ops += [linear(i, "attn_q_gate", n, s.q_gate), SigmoidGate(s.q_gate, s.a)]
        return ops

    def latent_attention(i: int, layer: Layer, n: Buffer, latent: Latent) -> list[Op]:
        """The same with a latent that keys and values are made of."""
        ops = list[Op]()
        if latent.query_rank:
            low = Buffer("latent query", latent.query_rank)
            ops.append(linear(i, "attn_q_a", n, low))  # low [rows, query_rank]
            ops.append(norm(f"blk.{i}.attn_q_a_norm", low, low, eps=NORM_EPS))
            ops.append(linear(i, "attn_q_b", low, s.q))  # q [rows, heads * (plain + rotated)]
        else:
            ops.append(linear(i, "attn_q", n, s.q))
        ops.append(linear(i, "attn_kv_a_mqa", n, s.k))  # k [rows, rank + rotated]
        ops.append(norm(f"blk.{i}.attn_kv_a_norm", s.k, s.k, eps=NORM_EPS))  # of the latent
        if layer.rope:
            ops.append(turn(layer.rope, s.q, c.n_heads, start=latent.plain))
            ops.append(turn(layer.rope, s.k, 1, start=latent.rank))
        caches.append(CacheLayer(1, latent.cached, value_dim=0))
        attend = attend_latent(latent, w.heads(i), s.q, s.k, s.a, len(caches) - 1, c.attention_scale)
        return [*ops, *attend]  # a [rows, heads * value]

    def feed_forward(i: int, layer: Layer, n: Buffer) -> tuple[list[Op], Buffer]:
        """f(gate n) · up n, or without a gate, and where it is."""
        if not c.gated:
            return [linear(i, "ffn_up", n, s.up), Activation(s.up, s.up, c.activation)], s.up
        sparse = [] if layer.deviations is None else [Sparsify(s.gate, layer.deviations)]
        return [
            linear(i, "ffn_gate", n, s.gate),  # gate [rows, ffn]
            *sparse,
            linear(i, "ffn_up", n, s.up),  # up [rows, ffn]
            GatedActivation(s.gate, s.up, s.gate, c.activation, c.scales.gate),  # gate [rows, ffn]
        ], s.gate

    def experts(i: int, seen: Buffer, n: Buffer, out: Buffer, e: Experts) -> list[Op]:
        """out = what the experts chosen for each row of `seen` make of `n`."""
        held = w.experts(i)
        gate, up, down = (held.matrices.get(stem, ()) for stem in PROJECTIONS)
        gate_bias, up_bias, down_bias = (held.biases.get(stem) for stem in PROJECTIONS)
        bias = w.vector(f"blk.{i}.exp_probs_b.bias") if e.choice_bias else None
        scales = w.vector(f"blk.{i}.ffn_down_exps_scale.weight") if e.beside_dense else None
        how = (e.scoring, bias, e.normalised, e.scale, e.groups, e.top_groups, e.group_best, scales)
        return [
            linear(i, "ffn_gate_inp", seen, s.scores),  # scores [rows, experts]
            Route(s.scores, s.chosen, s.routing_weights, *how),  # chosen, routing_weights [rows, top]
            MoE(
                *(n, s.chosen, s.routing_weights, out),  # out [rows, hidden]
                *(gate, up, down),
                c.activation,
                *(gate_bias, up_bias, down_bias),
                limit=e.limit,
                alpha=e.alpha,
            ),
        ]

    def mixture(i: int, n: Buffer, e: Experts) -> list[Op]:
        """x += what the experts chosen for each row of `n` make of it, and the one that all rows pass."""
        if e.latent:
            ops = [
                linear(i, "ffn_latent_down", n, s.mixed),  # mixed [rows, latent]
                *experts(i, n, s.mixed, s.mixed, e),
                linear(i, "ffn_latent_up", s.mixed, s.h),  # h [rows, hidden]
            ]
        else:
            ops = experts(i, n, n, s.h, e)  # h [rows, hidden]
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

    def mixture_beside(i: int, layer: Layer, n: Buffer, e: Experts) -> list[Op]:
        """x += what a usual FFN makes of `n`, and experts of x, each with norms of its own."""
        ops, inner = feed_forward(i, layer, n)
        # The router reads the stream itself, normed, with a scale for each dimension instead of a weight.
        scale = w.vector(f"blk.{i}.ffn_gate_inp_scale.weight") * np.float32(c.hidden**-0.5)
        return [
            *ops,
            linear(i, "ffn_down", inner, s.h),  # h [rows, hidden]
            norm(f"blk.{i}.post_ffw_norm_1", s.h, s.h),
            RMSNorm(s.x, s.f, scale, c.norm_eps),
            norm(f"blk.{i}.pre_ffw_norm_2", s.x, s.mixed),
            *experts(i, s.f, s.mixed, s.mixed, e),  # mixed [rows, hidden]
            norm(f"blk.{i}.post_ffw_norm_2", s.mixed, s.mixed),
            Add(s.mixed, s.h),
            *add(i, "post_ffw_norm"),
        ]

    def beside_stream(i: int) -> list[Op]:
        """What layers add behind their FFN: inputs of their own, to x or to the streams but the first."""
        ops, scaled = list[Op](), 1.0
        if c.layer_scales:
            scaled = float(w.vector(f"blk.{i}.layer_output_scale.weight")[0])
        if c.altup:
            ops += streams().correct(i, w.vector(f"blk.{i}.altup_correct_scale.weight"))
        if c.per_layer:
            ops += enter_layer(i, s.inputs, s.x, s.input_gate, s.h, c.activation, linear)  # h [rows, hidden]
            ops.append(norm(f"blk.{i}.post_norm", s.h, s.h))
            if c.altup:
                ops += [Add(s.h, stream) for stream in s.streams[1:]]
            else:
                ops.append(Add(s.h, s.x, scaled, scaled))
        elif scaled != 1.0:
            ops.append(Add(s.x, s.x, scaled, 0.0))
        return ops

    def laurel(i: int, n: Buffer) -> list[Op]:
        """laurel = n + norm(right(left n)), a path around attention."""
        return [
            linear(i, "laurel_l", n, s.laurel_low),  # laurel_low [rows, rank]
            linear(i, "laurel_r", s.laurel_low, s.laurel),  # laurel [rows, hidden]
            norm(f"blk.{i}.laurel_post_norm", s.laurel, s.laurel),
            Add(n, s.laurel),
        ]

    def streams() -> Streams:
        assert c.altup
        parts = (s.streams, s.x, s.h, s.seen, s.coefficients, s.correction)
        return Streams(c.altup, *parts, norm=norm, linear=linear)

    embedding = s.streams[0] if c.altup else s.x
    ops: list[Op] = [Embed(embedding, w.matrix("token_embd.weight"), c.embed_scale)]  # x [rows, hidden]
    if c.learned_positions:
        ops.append(AddPositions(s.x, w.matrix("position_embd.weight")))
    if c.per_layer:
        table, projection = (w.matrix(f"per_layer_{stem}.weight") for stem in ("token_embd", "model_proj"))
        projected, weight = Buffer("projected", s.inputs.width), w.norm("per_layer_proj_norm.weight")
        ops += embed_per_layer(embedding, projected, s.inputs, table, projection, weight, c.norm_eps)
    carried = (*(s.streams if c.altup else (s.x,)), *([s.inputs] if c.per_layer else []))
    if c.altup:
        ops += streams().split(w.matrix)
    starts = list[int]()
    for i, layer in enumerate(c.layers):
        starts.append(len(ops))
        s = Stream.of(c, layer)
        if c.altup:
            ops += streams().predict(i)  # x [rows, hidden]
        mixed = list[tuple[str, Buffer, float]]()  # what is added to the stream, by which matrix, scaled
        if layer.recurs and c.recurrence:
            norms, n = pre_norm(i, "attn_norm", s.h, c.scales.recurrent_in)
            product = partial(linear, i)
            ops += [*norms, *mixer.ops(c.recurrence, i, n, w, product, len(states), c.norm_eps)]
            states += c.recurrence.states
            mixed.append(("ssm_out", s.y, c.scales.recurrent_out))
        if layer.attends:
            norms, n = pre_norm(i, "attn_norm", s.f if one_norm else s.h, c.scales.attention_in)
            ops += [*norms, *(laurel(i, n) if c.altup else [])]  # n [rows, hidden]
            ops += latent_attention(i, layer, n, c.latent) if c.latent else attention(i, layer, n)
            mixed.append(("attn_output", s.a, c.scales.attention_out))
        if i + 1 == c.n_layers:
            # From here on the rows whose logits are wanted are enough: the others have left their mark.
            alive = [*(b for _, b, _ in mixed), s.x, *([s.f] if one_norm else [])]
            alive += [s.inputs] if c.per_layer else []
            alive += [s.laurel, *s.streams] if c.altup else []
            ops += [SelectRows(b, wanted(b)) for b in alive]  # [wanted, …]
            mixed = [(stem, wanted(b), scale) for stem, b, scale in mixed]
            s = wanted(s)
        added = [op for stem, b, scale in mixed for op in residual(i, stem, b, "post_attention_norm", scale)]
        if c.altup:
            added.append(Add(s.laurel, s.x, 0.5**0.5, 0.5**0.5))
        ffn_norm = "ffn_norm" if mixed else "attn_norm"  # the one norm of a layer that is nothing else
        norms, n = ([], s.f) if one_norm or not layer.feeds else pre_norm(i, ffn_norm, s.f)
        ops += [*norms, *added] if c.parallel else [*added, *norms]  # n [rows, hidden]
        if layer.experts and c.experts and c.experts.beside_dense:
            ops += mixture_beside(i, layer, n, c.experts)
        elif layer.experts and c.experts:
            ops += mixture(i, n, c.experts)
        elif layer.feeds:
            inner, b = feed_forward(i, layer, n)
            ops += [*inner, *residual(i, "ffn_down", b, "post_ffw_norm", c.scales.down)]
        ops += beside_stream(i)
    starts.append(len(ops))
    if c.altup:
        ops += streams().join(w.matrix)
    head = "token_embd.weight" if c.tied else "output.weight"
    head_bias = w.vector("output.bias") if "output" in c.biases else None
    ops += [
        norm("output_norm", s.x, s.x, scale=c.logit_scale),  # x [wanted, hidden]
        MatMul(s.x, logits, w.matrix(head), head_bias),  # logits [wanted, vocab]
    ]
    if c.logit_softcap:
        ops.append(SoftCap(logits, c.logit_softcap))
    return Program(tuple(ops), buffers_of(ops), tuple(caches), logits, tuple(states), tuple(starts), carried)


def _frequencies(rope: Rope) -> np.ndarray:
    """Those of short sequences; of long ones it is only made sure that there are any."""
    rope.inv_freq(rope.original_context + 1)
    return rope.inv_freq()
