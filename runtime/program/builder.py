"""Builder: emits the ops of a forward pass, and knows the model whose tensors they read."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np

from ..config.layers import Layer
from ..config.model_config import ModelConfig
from ..config.rope import Rope
from ..ops import Add, Buffer, CacheLayer, LayerNorm, MatMul, Op, RMSNorm, RoPE, SelectRows, StateLayer
from ..weights.binding import Weights


@dataclass(frozen=True)
class Emitted:
    """What all Builders of one program append to: its ops, and the layers of its KV cache and states."""

    ops: list[Op] = field(default_factory=list)
    cache_layers: list[CacheLayer] = field(default_factory=list)
    state_layers: list[StateLayer] = field(default_factory=list)
    cache_index: dict[int, int] = field(default_factory=dict)  # layer of the model → its cache layer


@dataclass(frozen=True)
class Builder:
    """Emits ops outside of the layers. Shapes in comments: `rows` are the rows of a step.

    With `logits_rows` the builder's buffers have only the rows whose logits are asked for.
    With `all_rows` no row is dropped in the last layer.
    `inv_freqs` are the frequencies of each RoPE for sequences up to its original context.
    """

    config: ModelConfig
    weights: Weights
    inv_freqs: dict[Rope, np.ndarray]
    emitted: Emitted = field(default_factory=Emitted)
    logits_rows: bool = False
    all_rows: bool = False

    def emit(self, *ops: Op) -> None:
        """Append ops to the program."""
        self.emitted.ops.extend(ops)

    def buffer(self, name: str, width: int) -> Buffer:
        """The buffer of this name, [rows, width], or of the rows whose logits are asked for."""
        return Buffer(f"last {name}" if self.logits_rows else name, width, self.logits_rows)

    @property
    def x(self) -> Buffer:
        """The residual stream, [rows, hidden]; with AltUp a copy of the active stream."""
        return self.buffer("x", self.config.hidden)

    @property
    def h(self) -> Buffer:
        """The input of a block, and then its output, [rows, hidden]."""
        return self.buffer("h", self.config.hidden)

    @property
    def ffn_input(self) -> Buffer:
        """The input of an FFN, [rows, hidden]; `h` unless that is still in use."""
        c = self.config
        return self.buffer("ffn input", c.hidden) if c.parallel or c.moe else self.h

    @property
    def streams(self) -> tuple[Buffer, ...]:
        """The residual streams of AltUp, [rows, hidden] each; empty without AltUp."""
        n = self.config.altup.streams if self.config.altup else 0
        return tuple(self.buffer(f"stream {j}", self.config.hidden) for j in range(n))

    @property
    def per_layer_inputs(self) -> Buffer:
        """The per-layer inputs of all layers side by side, [rows, layers · width]."""
        p = self.config.per_layer_input
        return self.buffer("per-layer inputs", self.config.n_layers * p.width if p else 0)

    def tensor(self, stem: str) -> str:
        """The name of a tensor, without ".weight" or ".bias"."""
        return stem

    def vector(self, stem: str, ending: str = "weight") -> np.ndarray:
        """A vector of weights or biases, in float32."""
        return self.weights.vector(f"{self.tensor(stem)}.{ending}")

    def bias(self, stem: str) -> np.ndarray | None:
        """The bias of a matrix or norm, float32 [outputs]; None in a model without it."""
        return self.vector(stem, "bias") if stem in self.config.biases else None

    def norm(
        self, stem: str, x: Buffer, out: Buffer, groups: int = 1, scale: float = 1.0, eps: float | None = None
    ) -> Buffer:
        """out = norm(x) · weight · scale, with the model's kind of norm. Returns `out`."""
        eps = self.config.norm_eps if eps is None else eps
        weight = self.weights.norm(f"{self.tensor(stem)}.weight") * np.float32(scale)
        if self.config.norm == "rms":
            self.emit(RMSNorm(x, out, weight, eps, groups))
            return out
        bias = self.bias(stem)
        bias = None if bias is None else bias * np.float32(scale)
        self.emit(LayerNorm(x, out, weight.reshape(-1), bias, eps, groups))
        return out


@dataclass(frozen=True, kw_only=True)
class LayerBuilder(Builder):
    """Emits the ops of one layer, whose tensors are called by their stems: "attn_q"."""

    index: int
    layer: Layer

    @classmethod
    def of(cls, builder: Builder, index: int) -> LayerBuilder:
        """A builder of layer `index` that appends to the same program."""
        shared = {f.name: getattr(builder, f.name) for f in fields(Builder)}
        return cls(**shared, index=index, layer=builder.config.layers[index])

    @property
    def is_last(self) -> bool:
        """Whether nothing follows but logits."""
        return self.index + 1 == self.config.n_layers and not self.all_rows

    @property
    def single_norm(self) -> bool:
        """Whether mixer and FFN run in parallel and read the output of one norm."""
        return self.config.parallel and "ffn_norm" not in self.config.norms

    def sized(self, name: str, width: int, first: int) -> Buffer:
        """A buffer [rows, width]; layers share it if they are as wide as the first layer, `first`."""
        return self.buffer(name if width == first else f"{name} {width}", width)

    def tensor(self, stem: str) -> str:
        """The name of a tensor of this layer, without ".weight" or ".bias"."""
        return f"blk.{self.index}.{stem}"

    def pre_norm(self, stem: str, out: Buffer, scale: float = 1.0) -> Buffer:
        """The input of a block: out = norm(x), or x itself in a model without this norm."""
        has_norm = stem in self.config.norms and (stem != "attn_norm" or self.layer.has_attn_norm)
        return self.norm(stem, self.x, out, scale=scale) if has_norm else self.x

    def linear(self, stem: str, x: Buffer, out: Buffer, accumulate: bool = False) -> Buffer:
        """out = x @ weightᵀ + bias, or out += with `accumulate`. Returns `out`."""
        weight = self.weights.matrix(f"{self.tensor(stem)}.weight")
        self.emit(MatMul(x, out, weight, self.bias(stem), accumulate))
        return out

    def add_h(self, post_norm: str, scale: float = 1.0) -> None:
        """x += h · residual_scale · scale, behind a norm of h if the model has `post_norm`."""
        if post_norm in self.config.norms:
            self.norm(post_norm, self.h, self.h)
        self.emit(Add(self.h, self.x, self.config.residual_scale * scale))

    def residual(self, stem: str, source: Buffer, post_norm: str, scale: float = 1.0) -> None:
        """x += source @ weightᵀ · residual_scale · scale, with a norm in front of the sum if there is one."""
        if post_norm not in self.config.norms and self.config.residual_scale * scale == 1.0:
            self.linear(stem, source, self.x, accumulate=True)
            return
        self.linear(stem, source, self.h)
        self.add_h(post_norm, scale)

    def stream_norm(self, stem: str) -> None:
        """x = norm(x), of the residual stream itself, in a model that has this norm."""
        if stem in self.config.norms:
            self.norm(stem, self.x, self.x)

    def rope(self, x: Buffer, heads: int, start: int = 0) -> None:
        """Rotate each head of x, from dimension `start` on, if the layer has rotary embeddings."""
        if rope := self.layer.rope:
            self.emit(
                RoPE(
                    x,
                    heads,
                    self.inv_freqs[rope],
                    rope.interleaved,
                    rope.attention_factor,
                    rope.original_context,
                    rope.inv_freq if rope.original_context else None,
                    start=start,
                )
            )

    def add_cache_layer(self, cache_layer: CacheLayer) -> int:
        """Give this layer a part of the KV cache. Returns its index."""
        self.emitted.cache_index[self.index] = len(self.emitted.cache_layers)
        self.emitted.cache_layers.append(cache_layer)
        return self.emitted.cache_index[self.index]

    def select_rows(self, buffers: list[Buffer]) -> LayerBuilder:
        """Go on with only the rows whose logits are asked for; `buffers` are what is still read.

        Returns the builder of the rest of the program.
        """
        selected = replace(self, logits_rows=True)
        self.emit(*(SelectRows(b, selected.buffer(b.name, b.width)) for b in buffers))
        return selected
