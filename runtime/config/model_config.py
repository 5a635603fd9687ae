"""ModelConfig: everything about a model but its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...quant.errors import DamagedFile
from .altup import AltUp
from .latent import Latent
from .layers import Layer
from .moe import Experts
from .per_layer import PerLayer
from .recurrence import Recurrence, Scales


@dataclass(frozen=True)
class ModelConfig:
    """One decoder-only model. Raises DamagedFile for sizes that do not fit together."""

    arch: str  # the row in ARCHS
    from_gguf: bool  # names of tensors: GGUF's, or Hugging Face's
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    context_length: int  # tokens that the model was trained for
    norm_eps: float
    activation: str  # a kind of ops.GatedActivation
    attention_scale: float
    layers: tuple[Layer, ...]
    tied: bool  # the output matrix is the embedding table
    norms: frozenset[str]  # stems of the norms that a layer has: "attn_norm"
    biases: frozenset[str] = frozenset()  # stems of tensors with a bias: "attn_q"
    norm: Literal["rms", "layer"] = "rms"
    # What a norm of queries and keys looks at: a head, with the weights of all or its own, or all at once.
    qk_norm: Literal["head", "each head", "whole"] = "head"
    qk_norm_after_rope: bool = False
    gated: bool = True  # the FFN is down(f(gate) · up), not down(f(up))
    parallel: bool = False  # the FFN reads the stream as it enters the layer, not with the attention added
    learned_positions: bool = False  # a table [context_length, hidden] of them is added to the embeddings
    embed_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and FFN add to the residual stream
    logit_scale: float = 1.0
    norm_offset: float = 0.0  # added to the norm weights of the file
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    experts: Experts | None = None  # of the layers that have some
    recurrence: Recurrence | None = None  # of the layers that have one
    output_gate: bool = False  # attention's output is scaled by a sigmoid of the layer's input
    scales: Scales = field(default_factory=Scales)
    sinks: bool = False  # a learned score for each head that takes part in the softmax, and adds nothing
    extra_layers: int = 0  # behind the others in the file, for predicting several tokens; not used
    # Queries are scaled by 1 + beta · ln(1 + position // length): (beta, length); beta 0: they are not.
    query_growth: tuple[float, int] = (0.0, 1)
    latent: Latent | None = None  # keys and values are made of a latent, which is what is cached
    value_norm: bool = False  # values are normed like keys, without weights
    layer_scales: bool = False  # the stream is scaled behind each layer
    per_layer: PerLayer | None = None  # inputs of each layer besides the stream
    altup: AltUp | None = None  # there are several streams

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def max_context(self) -> int | None:
        """The most tokens that the model can read at all; None: any number."""
        return self.context_length if self.learned_positions else None

    def sizes(self, layer: Layer) -> tuple[int, int, int]:
        """head_dim, n_kv_heads and ffn of a layer."""
        return layer.head_dim or self.head_dim, layer.kv_heads or self.n_kv_heads, layer.ffn or self.ffn

    def __post_init__(self) -> None:
        for layer in self.layers:
            head_dim, kv_heads, _ = self.sizes(layer)
            if self.n_heads % kv_heads:
                raise DamagedFile(f"{self.n_heads} attention heads cannot share {kv_heads} key-value heads")
            dims = layer.rope.dims if layer.rope else 2
            if dims % 2 or not 2 <= dims <= (self.latent.rotated if self.latent else head_dim):
                raise DamagedFile(f"RoPE cannot rotate {dims} dimensions of a head of {head_dim}")
