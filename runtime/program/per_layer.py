"""Per-layer inputs, as in Gemma 3n and 4: a small embedding of each token for every layer."""

from __future__ import annotations

import numpy as np

from ..ops import Add, Buffer, Embed, GatedActivation, MatMul, RMSNorm
from .builder import Builder, LayerBuilder


def embed_per_layer(b: Builder, x: Buffer) -> None:
    """inputs = (table[token] · √width + norm(projection of x / √hidden)) / √2, the norm layer by layer.

    `x` is the embedding, [rows, hidden].
    """
    w, inputs = b.weights, b.per_layer_inputs
    table, projection = (w.matrix(f"per_layer_{stem}.weight") for stem in ("token_embd", "model_proj"))
    weight = w.norm("per_layer_proj_norm.weight")
    width, half = len(weight), np.float32(0.5**0.5)
    projected = b.buffer("projected", inputs.width)
    b.emit(
        Embed(inputs, table, (width / 2) ** 0.5),  # inputs [rows, layers · width]
        MatMul(x, projected, projection),  # projected [rows, layers · width]
        # The factor 1/√hidden in front of the norm only matters for its epsilon.
        RMSNorm(projected, projected, weight * half, b.config.norm_eps * x.width, inputs.width // width),
        Add(projected, inputs),
    )


def add_per_layer_input(b: LayerBuilder, scale: float) -> None:
    """x = (x + norm(proj(f(gate x) · input))) · scale; with AltUp all streams but the first += norm(…)."""
    c = b.config
    assert c.per_layer_input
    gate = b.buffer("input gate", c.per_layer_input.width)
    b.linear("inp_gate", b.x, gate)  # gate [rows, width]
    b.emit(GatedActivation(gate, b.per_layer_inputs, gate, c.activation, up_start=b.index * gate.width))
    b.linear("proj", gate, b.h)  # h [rows, hidden]
    b.norm("post_norm", b.h, b.h)
    if c.altup:
        b.emit(*(Add(b.h, stream) for stream in b.streams[1:]))
    else:
        b.emit(Add(b.h, b.x, scale, scale))
