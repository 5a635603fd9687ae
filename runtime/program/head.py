"""The end of the forward pass: the output norm, and the logits of a model that writes text."""

from __future__ import annotations

from dataclasses import replace

from ..ops import Buffer, MatMul, SelectRows, SoftCap
from .altup import merge_streams
from .builder import Builder, LayerBuilder


def head(b: Builder) -> Buffer:
    """logits = norm(x) @ outputᵀ, [logits rows, vocab]."""
    if b.config.altup:
        merge_streams(b)
    b.norm("output_norm", b.x, b.x, scale=b.config.logit_scale)  # x [logits rows, hidden]
    return _output(b)


def head_of_all_rows(b: Builder, normed: bool) -> tuple[Buffer, Buffer]:
    """Logits, [logits rows, vocab], and the hidden states of all rows, [rows, hidden]: the residual stream,
    or what the output norm makes of it (`normed`)."""
    last = replace(b, logits_rows=True)
    hidden = b.norm("output_norm", b.x, b.buffer("hidden", b.config.hidden)) if normed else b.x
    b.emit(SelectRows(hidden, last.x))
    if not normed:
        last.norm("output_norm", last.x, last.x)
    return _output(last), hidden


def _output(b: Builder) -> Buffer:
    """logits = x @ outputᵀ, [logits rows, vocab]."""
    c, w = b.config, b.weights
    weight = w.matrix("token_embd.weight" if c.tied else "output.weight")
    logits = Buffer("logits", c.vocab_size, logits_rows=True)
    b.emit(MatMul(b.x, logits, weight, b.bias("output")))  # logits [logits rows, vocab]
    if c.logit_softcap:
        b.emit(SoftCap(logits, c.logit_softcap))
    return logits


def vector_head(b: Builder) -> Buffer:
    """vectors = norm(x), [logits rows, hidden]: the hidden states of which embeddings are pooled."""
    if b.config.altup:
        merge_streams(b)
    vectors = Buffer("vectors", b.config.hidden, logits_rows=True)
    if b.config.output_norm:
        return b.norm("output_norm", b.x, vectors)
    return LayerBuilder.of(b, b.config.n_layers - 1).norm("layer_output_norm", b.x, vectors)
