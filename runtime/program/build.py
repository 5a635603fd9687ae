"""The forward pass: a ModelConfig and its Weights as a Program."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from ..config.model_config import ModelConfig
from ..config.rope import Rope
from ..ops import Buffer, Program
from ..ops.buffer import buffers_of
from ..weights.binding import Weights
from .builder import Builder, LayerBuilder
from .embed import embed
from .head import head, head_of_all_rows, vector_head
from .layer import decoder_layer


def build_program(
    config: ModelConfig,
    weights: Weights,
    vectors: bool = False,
    hidden: Literal["", "normed", "residual"] = "",
) -> Program:
    """The program of a model: embed; layers; head. Raises DamagedFile for unusable RoPE.

    In the last layer only the rows whose logits are asked for go on behind the mixer. With `vectors` the
    program ends with the hidden states behind the output norm, which take the place of logits. With `hidden`
    all rows go on, and `boundary_out` has their hidden states for a layer for multi-token prediction: the
    residual stream, or what the output norm makes of it.
    """
    b = Builder(config, weights, rope_frequencies(config), all_rows=bool(hidden))
    ops, starts = b.emitted.ops, list[int]()

    embed(b)  # x [rows, hidden]
    for i in range(config.n_layers):
        starts.append(len(ops))
        decoder_layer(LayerBuilder.of(b, i))  # x [rows, hidden]
    starts.append(len(ops))
    boundary_out: tuple[Buffer, ...] = ()
    if hidden:
        logits, read = head_of_all_rows(b, hidden == "normed")
        boundary_out = (read,)
    else:
        end = vector_head if vectors else head
        logits = end(replace(b, logits_rows=True))  # logits [logits rows, vocab or hidden]

    residual = b.streams or (b.x,)
    return Program(
        ops=tuple(ops),
        buffers=buffers_of(ops),
        cache_layers=tuple(b.emitted.cache_layers),
        logits=logits,
        state_layers=tuple(b.emitted.state_layers),
        layers=tuple(starts),
        vectors=vectors,
        boundary_out=boundary_out,
        residual=(*residual, b.per_layer_inputs) if config.per_layer_input else residual,
    )


def rope_frequencies(config: ModelConfig) -> dict[Rope, np.ndarray]:
    """The frequencies of each RoPE of a model's layers."""
    return {rope: _inv_freq(rope) for layer in config.layers if (rope := layer.rope)}


def _inv_freq(rope: Rope) -> np.ndarray:
    """The frequencies of sequences up to the original context; those of longer ones are checked only."""
    rope.inv_freq(rope.original_context + 1)
    return rope.inv_freq()
