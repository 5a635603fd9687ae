"""Mixture of experts: a router, the experts that it selects, and a shared expert.

Shazeer et al. 2017, "Outrageously Large Neural Networks"; DeepSeek-AI 2024, "DeepSeekMoE" (shared experts).
"""

from __future__ import annotations

import numpy as np

from ..config.moe import MoEConfig
from ..ops import Activation, Add, Buffer, GatedActivation, MoE, RMSNorm, Route, SigmoidGate
from ..weights.experts import PROJECTIONS
from .builder import LayerBuilder
from .ffn import ffn_inner


def mixture_of_experts(b: LayerBuilder, x: Buffer) -> None:
    """residual stream += experts(x) + shared_expert(x)."""
    moe = b.config.moe
    assert moe
    if moe.latent_width:  # LatentMoE of Nemotron 3: experts read and write a projection of x
        latent = _moe_out(b, moe)
        b.linear("ffn_latent_down", x, latent)  # latent [rows, latent_width]
        experts(b, moe, router_input=x, x=latent, out=latent)
        b.linear("ffn_latent_up", latent, b.h)  # h [rows, hidden]
    else:
        experts(b, moe, router_input=x, x=x, out=b.h)  # h [rows, hidden]
    if moe.shared_width:
        shared_expert(b, moe, x)
    b.add_h("post_ffw_norm")


def experts(b: LayerBuilder, moe: MoEConfig, router_input: Buffer, x: Buffer, out: Buffer) -> None:
    """out = Σ routing weight · expert(x) over the top k experts of each row."""
    c, tensors = b.config, b.weights.experts(b.index)
    scores = b.buffer("scores", moe.n_experts)
    selected, routing_weights = b.buffer("experts", moe.top_k), b.buffer("routing weights", moe.top_k)
    b.linear("ffn_gate_inp", router_input, scores)  # scores [rows, n_experts]
    b.emit(
        Route(
            *(scores, selected, routing_weights),  # selected, routing_weights [rows, top_k]
            scoring=moe.scoring,
            bias=b.vector("exp_probs_b", "bias") if moe.correction_bias else None,
            normalised=moe.normalised,
            scale=moe.scale,
            groups=moe.groups,
            top_groups=moe.top_groups,
            group_best=moe.group_best,
            expert_scales=(b.vector("ffn_down_exps_scale") if moe.parallel_dense else None),
        )
    )
    gate, up, down = (tensors.matrices.get(stem, ()) for stem in PROJECTIONS)
    gate_bias, up_bias, down_bias = (tensors.biases.get(stem) for stem in PROJECTIONS)
    if gate:
        gate_bias, up_bias = _both_or_none(gate_bias, up_bias)
    b.emit(
        MoE(
            *(x, selected, routing_weights, out),  # out [rows, hidden]
            *(gate, up, down),
            c.activation,
            *(gate_bias, up_bias, down_bias),
            limit=moe.limit,
            alpha=moe.alpha,
        )
    )


def _both_or_none(
    gate: np.ndarray | None, up: np.ndarray | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The biases of two products that a kernel computes together, zeros for one that a file lacks."""
    if gate is None and up is not None:
        gate = np.zeros_like(up)
    if up is None and gate is not None:
        up = np.zeros_like(gate)
    return gate, up


def shared_expert(b: LayerBuilder, moe: MoEConfig, x: Buffer) -> None:
    """h += an FFN of x that every token passes, scaled by a sigmoid gate if the model has one."""
    c = b.config
    gate, up = b.buffer("shared gate", moe.shared_width), b.buffer("shared up", moe.shared_width)
    inner = gate if c.gated else up
    if c.gated:
        b.linear("ffn_gate_shexp", x, gate)  # gate [rows, shared_width]
        b.linear("ffn_up_shexp", x, up)  # up [rows, shared_width]
        b.emit(GatedActivation(gate, up, inner, c.activation))
    else:
        b.linear("ffn_up_shexp", x, up)  # up [rows, shared_width]
        b.emit(Activation(up, inner, c.activation))
    if moe.shared_gate:
        score = b.linear("ffn_gate_inp_shexp", x, b.buffer("shared score", 1))  # score [rows, 1]
        b.emit(SigmoidGate(score, inner))
    b.linear("ffn_down_shexp", inner, b.h, accumulate=True)  # h [rows, hidden]


def experts_beside_ffn(b: LayerBuilder, x: Buffer) -> None:
    """residual stream += norm(ffn(x)) + norm(experts(norm(residual stream))), as in Gemma 4."""
    c, moe = b.config, b.config.moe
    assert moe
    inner = ffn_inner(b, x)
    b.linear("ffn_down", inner, b.h)  # h [rows, hidden]
    b.norm("post_ffw_norm_1", b.h, b.h)
    # The router reads the stream behind a norm whose weight is a learned scale over √hidden.
    scale = b.vector("ffn_gate_inp_scale") * np.float32(c.hidden**-0.5)
    router_input, out = b.ffn_input, _moe_out(b, moe)
    b.emit(RMSNorm(b.x, router_input, scale, c.norm_eps))
    b.norm("pre_ffw_norm_2", b.x, out)
    experts(b, moe, router_input, x=out, out=out)  # out [rows, hidden]
    b.norm("post_ffw_norm_2", out, out)
    b.emit(Add(out, b.h))
    b.add_h("post_ffw_norm")


def _moe_out(b: LayerBuilder, moe: MoEConfig) -> Buffer:
    """The experts' input and output where that is not `h`: [rows, latent_width or hidden]."""
    return b.buffer("moe", moe.latent_width or b.config.hidden)
