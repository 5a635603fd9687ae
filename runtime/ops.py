"""The instruction set: what a model's forward pass is made of.

A step runs a list of these over *rows*, one row a (token, sequence, position). Buffers are
float32 matrices with one line per row. After `SelectRows` only the rows whose logits are wanted
go on, and buffers marked `wanted` have one line for each of those.

`reference.py` is the specification of every op: the NumPy method of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..quant.block import QTensor
from .buffer import Buffer
from .ops_recurrent import CausalConv, DeltaRule, StateLayer, StateScan


@dataclass(frozen=True, eq=False)
class Embed:
    """out = table[token] * scale. `table` is (vocab, width)."""

    out: Buffer
    table: QTensor
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """out = x / sqrt(mean(x²) + eps) * weight, over each of `groups` equal parts of a row.

    `weight` is float32 [width / groups], for all parts (groups > 1 is the per-head q/k norm), or [width] if
    each has its own. `out` may be `x`.
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
class RoPE:
    """Rotate, in place, the first 2·len(inv_freq) dimensions of each head by position·inv_freq.

    Pairs are (2i, 2i+1) if `interleaved`, else (i, i + len(inv_freq)). cos and sin are multiplied by
    `attention_factor`. The angle is the float32 product of the position and `inv_freq` (float32).

    `inv_freq` is for sequences of up to `same_up_to` tokens (0: of any length); the rows of a longer
    one use `longer(length)` instead, of the same size; see `Batch.sequence_lengths`.
    """

    x: Buffer
    heads: int
    inv_freq: np.ndarray
    interleaved: bool
    attention_factor: float = 1.0
    same_up_to: int = 0
    longer: Callable[[int], np.ndarray] | None = None

    def frequencies(self, lengths: np.ndarray) -> np.ndarray:
        """float32 [n, pairs]: those of rows whose sequences have these lengths, int [n]."""
        rows = np.repeat(self.inv_freq[None], len(lengths), axis=0)
        if self.longer:
            for length in np.unique(lengths[lengths > self.same_up_to]):
                rows[lengths == length] = self.longer(int(length))
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

    q is [rows, heads·head_dim], k and v [rows, kv_heads·head_dim]; query head h reads kv head
    h // (heads / kv_heads). scores = scale · q·k, soft-capped by cap·tanh(s / cap) if `softcap`.
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


@dataclass(frozen=True, eq=False)
class GatedActivation:
    """out = f(scale · gate) · up; f is "silu", "gelu_tanh", "gelu", "relu2" (max(x, 0)²) or "identity".

    `out` may be `gate` or `up`.
    """

    gate: Buffer
    up: Buffer
    out: Buffer
    kind: str
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class SigmoidGate:
    """x = sigmoid(gate) · x, in place. `gate` has the width of x, or 1."""

    gate: Buffer
    x: Buffer


@dataclass(frozen=True, eq=False)
class Route:
    """Choose experts for each row: the numbers of the best into `experts`, their shares into `shares`.

    The scores, [rows, n], become probabilities by "softmax" or each by its "sigmoid". The best are those
    with the highest probability + `bias` (float32 [n], or None), lower numbers first among equals; with
    `groups` > 1 only of the `top_groups` groups of neighbours whose two best add up to most. Shares are
    probabilities, without the bias, divided by their sum if `normalised`, times `scale`. `experts` and
    `shares` have one column for each choice; numbers are whole float32.
    """

    scores: Buffer
    experts: Buffer
    shares: Buffer
    scoring: str
    bias: np.ndarray | None = None
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1


@dataclass(frozen=True, eq=False)
class MoE:
    """out = Σ share · act(x @ gate_eᵀ, x @ up_eᵀ) @ down_eᵀ, over the experts e that `Route` chose for a row.

    act(g, u) is f(g) · u as for GatedActivation; with a `limit` it is, for g at most `limit` and u clipped
    to ±limit, g · sigmoid(alpha · g) · (u + 1). `gate` and `up` hold a (width, inputs) and `down` a
    (outputs, width) matrix for each expert, of which only the chosen are read; biases are float32
    [experts, …] or None, and added to the products. Without matrices for the `gate`, act is f(u).
    """

    x: Buffer
    experts: Buffer
    shares: Buffer
    out: Buffer
    gate: tuple[QTensor, ...]
    up: tuple[QTensor, ...]
    down: tuple[QTensor, ...]
    kind: str
    gate_bias: np.ndarray | None = None
    up_bias: np.ndarray | None = None
    down_bias: np.ndarray | None = None
    limit: float = 0.0
    alpha: float = 1.702


@dataclass(frozen=True, eq=False)
class Activation:
    """out = f(x); f as for GatedActivation. `out` may be `x`."""

    x: Buffer
    out: Buffer
    kind: str


@dataclass(frozen=True, eq=False)
class Add:
    """out += scale · x."""

    x: Buffer
    out: Buffer
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class SelectRows:
    """out = x[wanted]: from here on only the rows whose logits are wanted."""

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
    | RoPE
    | GrowQueries
    | Attend
    | GatedActivation
    | SigmoidGate
    | Route
    | MoE
    | Activation
    | Add
    | SelectRows
    | SoftCap
    | CausalConv
    | DeltaRule
    | StateScan
)


@dataclass(frozen=True)
class CacheLayer:
    """What one attention layer keeps of each token: `kv_heads` keys and values of `head_dim`."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Program:
    """A model as data: the ops of one step in order, and what they run on."""

    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...]
    cache_layers: tuple[CacheLayer, ...]
    logits: Buffer  # the buffer that holds the result, [wanted rows, vocab]
    state_layers: tuple[StateLayer, ...] = ()  # what recurrent ops keep of a sequence

    @property
    def n_positions(self) -> int:
        """How many positions there are; 0: no end to them."""
        return min((op.table.shape[0] for op in self.ops if isinstance(op, AddPositions)), default=0)

    @property
    def same_up_to(self) -> int:
        """The length beyond which keys are rotated otherwise (see RoPE), so that those of a shorter sequence
        are no part of a longer one; 0: there is none."""
        return max((op.same_up_to for op in self.ops if isinstance(op, RoPE)), default=0)
