"""The dense feed-forward network: SwiGLU and its relatives, or two matrices with an activation in between.

Shazeer 2020, "GLU Variants Improve Transformer".
"""

from __future__ import annotations

from ..ops import Activation, Buffer, GatedActivation, GaussianTopK
from .builder import LayerBuilder


def feed_forward(b: LayerBuilder, x: Buffer) -> None:
    """residual stream += down(f(gate x) · up x), or down(f(up x)) in a model without gate."""
    inner = ffn_inner(b, x)
    b.residual("ffn_down", inner, "post_ffw_norm", b.config.multipliers.down)


def ffn_inner(b: LayerBuilder, x: Buffer) -> Buffer:
    """The FFN in front of its down projection: [rows, ffn]."""
    c = b.config
    ffn, first_ffn = c.sizes(b.layer)[2], c.sizes(c.layers[0])[2]
    gate, up = b.sized("gate", ffn, first_ffn), b.sized("up", ffn, first_ffn)
    if not c.gated:
        b.linear("ffn_up", x, up)  # up [rows, ffn]
        b.emit(Activation(up, up, c.activation))
        return up
    b.linear("ffn_gate", x, gate)  # gate [rows, ffn]
    if b.layer.std_multiplier is not None:
        b.emit(GaussianTopK(gate, b.layer.std_multiplier))
    b.linear("ffn_up", x, up)  # up [rows, ffn]
    b.emit(GatedActivation(gate, up, gate, c.activation, c.multipliers.gate))  # gate [rows, ffn]
    return gate
