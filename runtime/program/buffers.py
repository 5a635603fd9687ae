"""The buffers that a model's layers work on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..config.from_files import Layer, ModelConfig
from ..config.moe import Experts
from ..ops import Buffer
from .mixers import Mixer


@dataclass(frozen=True)
class Stream:
    """The residual stream, and what a layer makes of it."""

    x: Buffer  # the stream
    h: Buffer  # normed, and then what is to be added
    f: Buffer  # what the FFN reads
    q: Buffer
    k: Buffer
    v: Buffer
    q_gate: Buffer
    a: Buffer  # what attention gives
    y: Buffer  # what recurrence gives
    gate: Buffer
    up: Buffer
    scores: Buffer  # of experts
    chosen: Buffer
    routing_weights: Buffer
    shared_gate: Buffer  # of the FFN beside the experts
    shared_up: Buffer
    share: Buffer
    mixed: Buffer  # of the experts, where a usual FFN is beside them, or projections around
    inputs: Buffer  # of all layers, besides the stream
    input_gate: Buffer
    streams: tuple[Buffer, ...]  # x is the active one of these, if there are any
    seen: Buffer
    coefficients: Buffer
    correction: Buffer
    laurel: Buffer  # the low-rank path around attention
    laurel_low: Buffer

    @classmethod
    def of(cls, c: ModelConfig, layer: Layer) -> Stream:
        e = c.experts or Experts(count=0, top=0, width=0)
        head_dim, kv_heads, ffn = c.sizes(layer)
        per_layer, n = c.per_layer.width if c.per_layer else 0, c.altup.streams if c.altup else 0
        keys, values, given = kv_heads * head_dim, kv_heads * head_dim, c.n_heads * head_dim
        if c.latent:
            keys, values, given = c.latent.cached, 0, c.n_heads * c.latent.value

        def sized(name: str, width: int, usual: int) -> Buffer:
            """Layers of other sizes than the first have buffers of their own."""
            return Buffer(name if width == usual else f"{name} {width}", width)

        first_dim, first_heads, first_ffn = c.sizes(c.layers[0])
        h = Buffer("h", c.hidden)
        return cls(
            x=Buffer("x", c.hidden),
            h=h,
            f=Buffer("f", c.hidden) if c.parallel or c.experts else h,
            q=sized("q", c.n_heads * head_dim, c.n_heads * first_dim),
            k=Buffer("k", keys) if c.latent else sized("k", keys, first_heads * first_dim),
            v=sized("v", values, first_heads * first_dim),
            a=Buffer("a", given) if c.latent else sized("a", given, c.n_heads * first_dim),
            q_gate=Buffer("q gate", c.n_heads * head_dim if c.output_gate else 0),
            y=Mixer.of(c.recurrence).y,
            gate=sized("gate", ffn, first_ffn),
            up=sized("up", ffn, first_ffn),
            scores=Buffer("scores", e.count),
            chosen=Buffer("chosen", e.top),
            routing_weights=Buffer("routing_weights", e.top),
            shared_gate=Buffer("shared gate", e.shared_width),
            shared_up=Buffer("shared up", e.shared_width),
            share=Buffer("share", int(e.shared_gate)),
            mixed=Buffer("mixed", e.latent or c.hidden),
            inputs=Buffer("inputs", c.n_layers * per_layer),
            input_gate=Buffer("input gate", per_layer),
            streams=tuple(Buffer(f"stream {i}", c.hidden) for i in range(n)),
            seen=Buffer("seen", n),
            coefficients=Buffer("coefficients", n * n),
            correction=Buffer("correction", n),
            laurel=Buffer("laurel", c.hidden),
            laurel_low=Buffer("laurel low", c.altup.laurel_rank if c.altup else 0),
        )


def wanted(buffer: Any) -> Any:
    """A buffer, a tuple or a Stream of them for the rows whose logits are wanted."""
    if isinstance(buffer, Stream):
        return Stream(**{field.name: wanted(getattr(buffer, field.name)) for field in fields(buffer)})
    if isinstance(buffer, tuple):
        return tuple(wanted(b) for b in buffer)
    return Buffer(f"last {buffer.name}", buffer.width, logits_rows=True)
