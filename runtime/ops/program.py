"""Program: the ops of one step, and the memory that they work in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .activations import Activation, GatedActivation, GaussianTopK, SigmoidGate
from .altup import AltUpCorrect, AltUpPredict, MatchMagnitude
from .attention import Attend, RoPE, ScaleQueries
from .buffer import Buffer
from .dense import AddPositions, Embed, HeadMatMul, MatMul
from .moe import MoE, Route
from .norm import LayerNorm, RMSNorm
from .parallel import AllReduce
from .pointwise import Add, SelectRows, SoftCap
from .recurrent import CausalConv, DeltaRule, StateLayer, StateScan

Op = (
    Embed
    | AddPositions
    | RMSNorm
    | LayerNorm
    | MatMul
    | HeadMatMul
    | RoPE
    | ScaleQueries
    | Attend
    | GatedActivation
    | GaussianTopK
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
    | AllReduce
)


@dataclass(frozen=True)
class CacheLayer:
    """The shape of one attention layer's part of the KV cache.

    For each token it has `kv_heads` keys of `head_dim` numbers and as many values of `value_dim` numbers
    (None: `head_dim`). With a `value_dim` of 0 it has no values: the first dimensions of the keys serve as
    values (multi-head latent attention).
    """

    kv_heads: int
    head_dim: int
    value_dim: int | None = None

    @property
    def key_width(self) -> int:
        """How many numbers of keys the layer caches for each token."""
        return self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """How many numbers of values the layer caches for each token."""
        return self.kv_heads * (self.head_dim if self.value_dim is None else self.value_dim)

    @property
    def width(self) -> int:
        """How many numbers the layer caches for each token."""
        return self.key_width + self.value_width


@dataclass(frozen=True)
class Program:
    """A model as data: the ops of one step in order, their buffers, and the shapes of cache and states.

    `logits` is the buffer of the result, [len(logits_indices), vocab]; in a program for `vectors` it has
    hidden states, [len(logits_indices), hidden]. `layers` are the index of the first op
    of each layer, and at the end that of the first op behind the last layer. `residual` are the buffers that
    a layer reads and updates for the next one: the residual stream, and per-layer inputs. In a part of a
    split model (engine/split.py) the part before fills `boundary_in`, and the part after reads
    `boundary_out`.
    """

    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...]
    cache_layers: tuple[CacheLayer, ...]
    logits: Buffer
    state_layers: tuple[StateLayer, ...] = ()
    layers: tuple[int, ...] = ()
    residual: tuple[Buffer, ...] = ()
    boundary_in: tuple[Buffer, ...] = ()
    boundary_out: tuple[Buffer, ...] = ()
    vectors: bool = False

    @cached_property  # every step asks
    def n_tokens(self) -> int:
        """The number of token ids of the embedding table; 0 for a program that embeds no tokens."""
        return next((op.table.shape[0] for op in self.ops if isinstance(op, Embed)), 0)

    @cached_property
    def n_positions(self) -> int:
        """The number of learned positions; 0 if positions are not limited."""
        return min((op.table.shape[0] for op in self.ops if isinstance(op, AddPositions)), default=0)

    @cached_property
    def both_ways(self) -> bool:
        """Whether attention reads in both directions, so that all rows of a sequence are in one step."""
        return any(not op.causal for op in self.ops if isinstance(op, Attend))

    @property
    def original_context(self) -> int:
        """The sequence length in tokens above which `RoPE` uses other frequencies; 0 if there is none.

        Cached keys of a shorter sequence are not valid for a sequence longer than this.
        """
        return max((op.original_context for op in self.ops if isinstance(op, RoPE)), default=0)
