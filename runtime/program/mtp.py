"""The program of a layer for multi-token prediction: it drafts the token behind the next one.

A row has the id of the next token, and the model's hidden state of the token before it:
x = projection(norm(embedding) ‖ norm(hidden)); a decoder layer; logits. Its own hidden state takes the
model's place for a further row. (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2.)
"""

from __future__ import annotations

from dataclasses import replace

from ..ops import Buffer, MatMul, Program, RMSNorm
from ..ops.buffer import buffers_of
from ..weights.binding import Weights
from ..weights.mtp import MtpModel
from .build import rope_frequencies
from .builder import Builder, LayerBuilder
from .embed import embed
from .layer import decoder_layer

HIDDEN = "hidden"


def build_mtp_program(mtp: MtpModel) -> Program:
    """The program of an MTP layer.

    `boundary_in` is the hidden state that each row reads, `boundary_out` the one that a row hands on, of the
    rows whose logits are asked for.
    """
    c = mtp.config
    weights = Weights(c, mtp.tensors)
    b = Builder(c, weights, rope_frequencies(c))
    hidden = Buffer(HIDDEN, c.hidden)
    embed(b)  # x [rows, hidden]
    left, right = mtp.projection
    b.emit(
        RMSNorm(b.x, b.h, mtp.embedding_norm, c.norm_eps),
        MatMul(b.h, b.x, left),
        RMSNorm(hidden, b.h, mtp.hidden_norm, c.norm_eps),
        MatMul(b.h, b.x, right, accumulate=True),  # x [rows, hidden]
    )
    decoder_layer(LayerBuilder.of(b, 0))
    last = replace(b, logits_rows=True)  # from here on [logits rows, …]
    normed = last.norm("output_norm", last.x, last.buffer("normed", c.hidden))
    head = weights.matrix("token_embd.weight" if c.tied else "output.weight")
    logits = Buffer("logits", c.vocab_size, logits_rows=True)
    b.emit(MatMul(normed, logits, head, b.bias("output")))
    ops = b.emitted.ops
    return Program(
        ops=tuple(ops),
        buffers=buffers_of(ops),
        cache_layers=tuple(b.emitted.cache_layers),
        logits=logits,
        layers=(0, len(ops)),
        residual=(b.x,),
        boundary_in=(hidden,),
        boundary_out=(normed if mtp.reads_normed else last.x,),
    )
