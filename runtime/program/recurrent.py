"""Recurrent mixers: the gated short convolution, the gated delta rule, and Mamba-2.

Sources: see runtime/config/recurrent.py and the ops in runtime/ops/recurrent.py.
"""

from __future__ import annotations

import numpy as np

from ..config.recurrent import RecurrentConfig
from ..ops import Buffer, CausalConv, DeltaRule, GatedActivation, RMSNorm, StateScan
from .builder import LayerBuilder


def recurrent_mixer(b: LayerBuilder, x: Buffer) -> Buffer:
    """The layer's recurrent mixer, in front of the output projection: [rows, inner]."""
    r = b.config.recurrence
    assert r
    state = len(b.emitted.state_layers)  # the first of this layer's states
    b.emitted.state_layers.extend(r.states)
    match r.kind:
        case "short_conv":
            return short_conv(b, r, x, state)
        case "gated_delta":
            return gated_delta_net(b, r, x, state)
        case "mamba2":
            return mamba2(b, r, x, state)


def short_conv(b: LayerBuilder, r: RecurrentConfig, x: Buffer, state: int) -> Buffer:
    """LFM2: z · conv(mix · y) for three projections mix, y and z of the input."""
    mix, y, z = (b.buffer(name, r.inner) for name in ("mix", "y", "z"))
    b.linear("ssm_mix", x, mix)  # mix [rows, hidden]
    b.linear("ssm_x", x, y)  # y [rows, hidden]
    b.linear("ssm_z", x, z)  # z [rows, hidden]
    weight, bias = _conv_tensors(b)
    b.emit(
        GatedActivation(mix, y, mix, "identity"),
        CausalConv(mix, mix, weight, bias, state),
        GatedActivation(z, mix, y, "identity"),
    )
    return y


def gated_delta_net(b: LayerBuilder, r: RecurrentConfig, x: Buffer, state: int) -> Buffer:
    """Qwen3-Next: norm(delta_rule(conv(q k v), beta, step)) · silu(z)."""
    mix, y, z, step = b.buffer("mix", r.channels), *_inner_buffers(b, r)
    b.linear("ssm_mix", x, mix)  # mix [rows, 2 · groups · state_size + inner]: q, k and v
    b.linear("ssm_z", x, z)  # z [rows, inner]
    b.linear("ssm_step", x, step)  # step [rows, heads]
    beta = b.linear("ssm_beta", x, b.buffer("beta", r.heads))  # beta [rows, heads]
    weight, bias = _conv_tensors(b)
    a, step_bias = _decay_tensors(b)
    sizes = (r.groups, r.heads, r.state_size)
    b.emit(
        CausalConv(mix, mix, weight, bias, state, silu=True),
        DeltaRule(mix, beta, step, y, a, step_bias, *sizes, state + 1, r.tiled),  # y [rows, inner]
    )
    gated_norm(b, r, y, z, groups=r.heads)
    return y


def mamba2(b: LayerBuilder, r: RecurrentConfig, x: Buffer, state: int) -> Buffer:
    """Mamba-2: norm(scan(conv(x B C), step) · silu(z))."""
    mix, y, z, step = b.buffer("mix", r.channels), *_inner_buffers(b, r)
    b.linear("ssm_mix", x, mix)  # mix [rows, inner + 2 · groups · state_size]: x, B and C
    b.linear("ssm_z", x, z)  # z [rows, inner]
    b.linear("ssm_step", x, step)  # step [rows, heads]
    z_scale, *mix_scales, step_scale = r.part_scales
    weight, bias = _conv_tensors(b)
    # To scale the convolution's inputs is to scale its weights.
    grouped = r.groups * r.state_size
    weight = weight * np.repeat(np.array(mix_scales, np.float32), (r.inner, grouped, grouped))[:, None]
    a, step_bias = _decay_tensors(b)
    skip = b.vector("ssm_d")
    sizes = (r.groups, r.heads, r.state_size)
    b.emit(
        CausalConv(mix, mix, weight, bias, state, silu=True),
        StateScan(mix, step, y, a, skip, step_bias, *sizes, state + 1, step_scale),  # y [rows, inner]
    )
    gated_norm(b, r, y, z, groups=r.groups, z_scale=z_scale)
    return y


def gated_norm(
    b: LayerBuilder, r: RecurrentConfig, y: Buffer, z: Buffer, groups: int, z_scale: float = 1.0
) -> None:
    """y = norm(y) · silu(z), or norm(y · silu(z)), in place; some models have no such norm."""
    weight = b.weights.optional(f"{b.tensor('ssm_norm')}.weight")
    gate = GatedActivation(z, y, y, "silu", z_scale)
    if weight is None:
        b.emit(gate)
        return
    norm = RMSNorm(y, y, weight, b.config.norm_eps, groups)
    b.emit(*((norm, gate) if r.norm_first else (gate, norm)))


def _inner_buffers(b: LayerBuilder, r: RecurrentConfig) -> tuple[Buffer, Buffer, Buffer]:
    return b.buffer("y", r.inner), b.buffer("z", r.inner), b.buffer("step", r.heads)


def _conv_tensors(b: LayerBuilder) -> tuple[np.ndarray, np.ndarray | None]:
    """Weight, float32 [channels, taps], and bias of the convolution."""
    name = b.tensor("ssm_conv1d")
    return b.weights.vector(f"{name}.weight"), b.weights.optional(f"{name}.bias")


def _decay_tensors(b: LayerBuilder) -> tuple[np.ndarray, np.ndarray]:
    """The decay rates a and the bias of the time step, float32 [heads]."""
    return b.weights.decay(f"{b.tensor('ssm_a')}.weight"), b.vector("ssm_dt", "bias")
