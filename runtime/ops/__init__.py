"""The instruction set: what a model's forward pass is made of.

A step runs a list of these over *rows*, one row a (token, sequence, position). Buffers are
float32 matrices with one line per row. After `SelectRows` only the rows whose logits are asked for
go on, and buffers marked `logits_rows` have one line for each of those.

`reference.py` is the specification of every op: the NumPy method of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...quant.block import QTensor
from .altup import AltUpCorrect, AltUpPredict, MatchMagnitude, Sparsify
from .buffer import Buffer
from .moe import MoE, Route
from .recurrent import CausalConv, DeltaRule, StateLayer, StateScan


@dataclass(frozen=True, eq=False)
class Embed:
    """out = table[token] * scale. `table` is (tokens, width); a token that it does not have reads row 0."""

    out: Buffer
    table: QTensor
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """out = x / sqrt(mean(x²) + eps) * weight, over each of `groups` equal parts of a row.

    `weight` is float32 [width / groups], for all parts (groups > 1 is the per-head q/k norm), or [width] if
    each has its own. `out` may be `x`, and then parts, as long as a weight for all of them, need not fill the
    row: columns behind the last are left as they are.
    """

    x: Buffer
    out: Buffer
    weight: np.ndarray
    eps: float
    groups: int = 1


@dataclass(frozen=True, eq=False)
class AddPositions:
    """x += table[position]: learned positions. `table` is (positions, width); there are no others."""

    x: Buffer
    table: QTensor


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """out = (x - mean) / sqrt(mean((x - mean)²) + eps) * weight + bias, over each of `groups` parts of a row.

    `weight` and `bias` (or None) are float32 [width]: parts do not share them. `out` may be `x`.
    """

    x: Buffer
    out: Buffer
    weight: np.ndarray
    bias: np.ndarray | None
    eps: float
    groups: int = 1


@dataclass(frozen=True, eq=False)
class MatMul:
    """out = x @ weightᵀ + bias, or out += … with `accumulate` (the residual add).

    `weight` is (outputs, inputs); `bias` float32 [outputs] or None.
    """

    x: Buffer
    out: Buffer
    weight: QTensor
    bias: np.ndarray | None = None
    accumulate: bool = False


@dataclass(frozen=True, eq=False)
class HeadMatMul:
    """out = x @ weightᵀ, head by head: `weights` holds a (outputs, inputs) matrix for each.

    x is [rows, heads · n], of which each head's first `inputs` columns are multiplied; the n - inputs
    behind them follow the product in `out`, [rows, heads · (outputs + n - inputs)], as they are.
    """

    x: Buffer
    out: Buffer
    weights: tuple[QTensor, ...]


@dataclass(frozen=True, eq=False)
class RoPE:
    """Rotate, in place, 2·len(inv_freq) dimensions of each head, from `start` on, by position·inv_freq.

    Pairs are (2i, 2i+1) if `interleaved`, else (i, i + len(inv_freq)), counted from `start`. cos and sin are
    multiplied by `attention_factor`. The angle is the float32 product of the position and `inv_freq`
    (float32).

    `inv_freq` is for sequences of up to `original_context` tokens (0: of any length); the rows of a longer
    one use `long_inv_freq(length)` instead, of the same size; see `Batch.sequence_lengths`.
    """

    x: Buffer
    heads: int
    inv_freq: np.ndarray
    interleaved: bool
    attention_factor: float = 1.0
    original_context: int = 0
    long_inv_freq: Callable[[int], np.ndarray] | None = None
    start: int = 0

    def frequencies(self, lengths: np.ndarray) -> np.ndarray:
        """float32 [n, pairs]: those of rows whose sequences have these lengths, int [n]."""
        rows = np.repeat(self.inv_freq[None], len(lengths), axis=0)
        if self.long_inv_freq:
            for length in np.unique(lengths[lengths > self.original_context]):
                rows[lengths == length] = self.long_inv_freq(int(length))
        return rows


@dataclass(frozen=True, eq=False)
class GrowQueries:
    """q = q · (1 + beta · ln(1 + position // length)), in place, in float32."""

    q: Buffer
    beta: float
    length: int


@dataclass(frozen=True, eq=False)
class Attend:
    """Append k and v of the rows to cache layer `layer`, then causal attention of q over the cache.

    q is [rows, heads·head_dim], k [rows, kv_heads·head_dim], v [rows, kv_heads·value_dim] and out
    [rows, heads·value_dim]; query head h reads kv head h // (heads / kv_heads). If v is k, values are the
    first value_dim dimensions of the keys, and the cache layer keeps nothing else (latent attention).
    Unless `append`, an earlier op of the step has appended the rows, and k and v are not looked at.
    scores = scale · q·k, soft-capped by cap·tanh(s / cap) if `softcap`.
    `window` w: a query at position p sees positions p-w+1 … p; 0 means all. `sinks`, float32 [heads],
    are one more score for each head in the softmax, which goes to nothing.
    """

    q: Buffer
    k: Buffer
    v: Buffer
    out: Buffer
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: np.ndarray | None = None
    append: bool = True

    @property
    def value_dim(self) -> int:
        return self.out.width // self.heads


@dataclass(frozen=True, eq=False)
class GatedActivation:
    """out = f(scale · gate) · up; f is "silu", "gelu_tanh", "gelu", "relu2" (max(x, 0)²) or "identity".

    `out` may be `gate`, or `up` if that is as wide; of a wider one the columns from `up_start` on are taken.
    """

    gate: Buffer
    up: Buffer
    out: Buffer
    kind: str
    scale: float = 1.0
    up_start: int = 0


@dataclass(frozen=True, eq=False)
class SigmoidGate:
    """x = sigmoid(gate) · x, in place. `gate` has the width of x, or 1."""

    gate: Buffer
    x: Buffer


@dataclass(frozen=True, eq=False)
class Activation:
    """out = f(x); f as for GatedActivation, or "tanh". `out` may be `x`."""

    x: Buffer
    out: Buffer
    kind: str


@dataclass(frozen=True, eq=False)
class Add:
    """out = keep · out + scale · x."""

    x: Buffer
    out: Buffer
    scale: float = 1.0
    keep: float = 1.0


@dataclass(frozen=True, eq=False)
class SelectRows:
    """out = x[logits_indices]: from here on only the rows whose logits are asked for."""

    x: Buffer
    out: Buffer


@dataclass(frozen=True, eq=False)
class SoftCap:
    """x = cap · tanh(x / cap), in place."""

    x: Buffer
    cap: float


Op = (
    Embed
    | AddPositions
    | RMSNorm
    | LayerNorm
    | MatMul
    | HeadMatMul
    | RoPE
    | GrowQueries
    | Attend
    | GatedActivation
    | Sparsify
    | SigmoidGate
    | Route
    | MoE
    | Activation
    | Add
    | MatchMagnitude
    | AltUpPredict
    | AltUpCorrect
    | SelectRows
    | SoftCap
    | CausalConv
    | DeltaRule
    | StateScan
)


@dataclass(frozen=True)
class CacheLayer:
    """What one attention layer keeps of each token: `kv_heads` keys of `head_dim`, and as many values of
    `value_dim`; value_dim 0: values are the beginnings of the keys. None: as long as keys."""

    kv_heads: int
    head_dim: int
    value_dim: int | None = None

    @property
    def width(self) -> int:
        """How many numbers that is."""
        values = self.head_dim if self.value_dim is None else self.value_dim
        return self.kv_heads * (self.head_dim + values)


@dataclass(frozen=True)
class Program:
    """A model as data: the ops of one step in order, and what they run on."""

    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...]
    cache_layers: tuple[CacheLayer, ...]
    logits: Buffer  # the buffer that holds the result, [len(logits_indices), vocab]
    state_layers: tuple[StateLayer, ...] = ()  # what recurrent ops keep of a sequence
    layers: tuple[int, ...] = ()  # the first op of each layer, and the first behind the last
    residual: tuple[Buffer, ...] = ()  # what every layer reads and leaves to the next: the residual stream(s)
    boundary_in: tuple[
        Buffer, ...
    ] = ()  # of a part of a split model (engine/split.py): filled by the part before
    boundary_out: tuple[Buffer, ...] = ()  # and what the part after it reads

    @cached_property  # every step asks
    def n_tokens(self) -> int:
        """How many token ids there are; 0: it does not look at them."""
        return next((op.table.shape[0] for op in self.ops if isinstance(op, Embed)), 0)

    @cached_property
    def n_positions(self) -> int:
        """How many positions there are; 0: no end to them."""
        return min((op.table.shape[0] for op in self.ops if isinstance(op, AddPositions)), default=0)

    @property
    def original_context(self) -> int:
        """The length beyond which keys are rotated otherwise (see RoPE), so that those of a shorter sequence
        are no part of a longer one; 0: there is none."""
        return max((op.original_context for op in self.ops if isinstance(op, RoPE)), default=0)
