"""ModelConfig: everything about a model but its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...quant.errors import DamagedFile
from .altup import AltUpConfig
from .layers import Layer
from .mla import MLAConfig
from .moe import MoEConfig
from .per_layer import PerLayerInputConfig
from .recurrent import Multipliers, RecurrentConfig


@dataclass(frozen=True, repr=False)
class ModelConfig:
    """One model. Raises DamagedFile for sizes that do not fit together."""

    arch: str  # the row in ARCHS
    from_gguf: bool  # tensors have GGUF's names, not Hugging Face's
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    context_length: int  # in tokens, that the model was trained for
    norm_eps: float
    activation: str  # a kind of ops.GatedActivation
    attention_scale: float
    layers: tuple[Layer, ...]
    tied: bool  # the output matrix is the embedding table
    norms: frozenset[str]  # stems of the norms in a layer: "attn_norm"
    biases: frozenset[str] = frozenset()  # stems of tensors with a bias: "attn_q"
    norm: Literal["rms", "layer"] = "rms"
    # The q/k norm is over each head, with weights for all heads or for each, or over the whole row.
    qk_norm: Literal["head", "each head", "whole"] = "head"
    qk_norm_after_rope: bool = False
    gated: bool = True  # the FFN is down(f(gate) · up), not down(f(up))
    parallel: bool = False  # the FFN reads the residual stream without this layer's attention
    learned_positions: bool = False  # a table [context_length, hidden] is added to the embeddings
    embed_scale: float = 1.0
    residual_scale: float = 1.0  # of the outputs of attention and FFN
    logit_scale: float = 1.0
    norm_offset: float = 0.0  # added to the norm weights of the file
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    moe: MoEConfig | None = None  # of layers with a mixture of experts
    recurrence: RecurrentConfig | None = None  # of layers with a recurrent mixer
    output_gate: bool = False  # the attention output is scaled by a sigmoid gate
    multipliers: Multipliers = field(default_factory=Multipliers)
    sinks: bool = False  # attention sinks: a learned score for each head in the softmax
    mtp_layers: int = 0  # layers behind the others in the file, for multi-token prediction (weights/mtp.py)
    # Queries are scaled by 1 + beta · ln(1 + position // length): (beta, length); not with a beta of 0.
    attention_temperature: tuple[float, int] = (0.0, 1)
    mla: MLAConfig | None = None  # multi-head latent attention
    value_norm: bool = False  # values have an RMS norm without weights
    layer_scales: bool = False  # the residual stream is scaled behind each layer
    per_layer_input: PerLayerInputConfig | None = None
    altup: AltUpConfig | None = None  # there are several residual streams
    causal: bool = True  # tokens see only what is in front of them; else the whole text
    embedding_norm: bool = False  # a norm behind the embeddings
    output_norm: bool = True  # a norm behind the last layer
    token_types: int = 0  # rows of a table that is added to the embeddings by the type of each token
    position_offset: int = 0  # rows of the table of positions in front of that of the first token
    no_text: str = ""  # why it writes no text, since it has no output matrix; "": it writes some

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def max_context(self) -> int | None:
        """The longest sequence in tokens that the model can read at all; None: there is no limit."""
        return self.context_length if self.learned_positions else None

    def sizes(self, layer: Layer) -> tuple[int, int, int]:
        """head_dim, n_kv_heads and ffn of a layer."""
        return layer.head_dim or self.head_dim, layer.kv_heads or self.n_kv_heads, layer.ffn or self.ffn

    def __repr__(self) -> str:
        """The sizes on one line, without the layers, of which there may be a hundred."""
        names = ("arch", "n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "ffn", "vocab_size")
        sizes = [f"{name}={getattr(self, name)!r}" for name in (*names, "context_length")]
        return f"ModelConfig({', '.join(sizes)}, …)"

    def __post_init__(self) -> None:
        for layer in self.layers:
            head_dim, kv_heads, _ = self.sizes(layer)
            if self.n_heads % kv_heads:
                raise DamagedFile(f"{self.n_heads} attention heads cannot share {kv_heads} key-value heads")
            dims = layer.rope.dims if layer.rope else 2
            if dims % 2 or not 2 <= dims <= (self.mla.rope_dim if self.mla else head_dim):
                raise DamagedFile(f"RoPE cannot rotate {dims} dimensions of a head of {head_dim}")
