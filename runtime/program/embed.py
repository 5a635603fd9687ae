"""The beginning of the forward pass: embeddings of tokens and positions."""

from __future__ import annotations

from ..ops import Add, AddPositions, Embed
from ..weights.tensors import rows_of
from .altup import expand_streams
from .builder import Builder
from .per_layer import embed_per_layer


def embed(b: Builder) -> None:
    """x = norm(table[token] · embed_scale + positions + types); per-layer inputs; the streams of AltUp."""
    c, w = b.config, b.weights
    x = b.streams[0] if c.altup else b.x
    b.emit(Embed(x, w.matrix("token_embd.weight"), c.embed_scale))  # x [rows, hidden]
    if c.learned_positions:
        table = w.matrix("position_embd.weight")
        b.emit(AddPositions(x, rows_of(table, c.position_offset, table.shape[0])))
    if c.token_types:
        b.emit(Embed(b.h, w.matrix("token_types.weight"), by_type=True), Add(b.h, x))
    if c.embedding_norm:
        b.norm("token_embd_norm", x, x)
    if c.per_layer_input:
        embed_per_layer(b, x)
    if c.altup:
        expand_streams(b)
