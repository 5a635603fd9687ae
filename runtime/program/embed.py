"""The beginning of the forward pass: embeddings of tokens and positions."""

from __future__ import annotations

from ..ops import AddPositions, Embed
from .altup import expand_streams
from .builder import Builder
from .per_layer import embed_per_layer


def embed(b: Builder) -> None:
    """x = table[token] · embed_scale + positions; the per-layer inputs; the streams of AltUp."""
    c, w = b.config, b.weights
    x = b.streams[0] if c.altup else b.x
    b.emit(Embed(x, w.matrix("token_embd.weight"), c.embed_scale))  # x [rows, hidden]
    if c.learned_positions:
        b.emit(AddPositions(x, w.matrix("position_embd.weight")))
    if c.per_layer_input:
        embed_per_layer(b, x)
    if c.altup:
        expand_streams(b)
