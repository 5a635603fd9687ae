"""Per-layer inputs: a small embedding of each token for every layer, which comes in behind its FFN.

As in Gemma 3n and 4. All layers' lie side by side in one table; a projection of the usual embedding is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...quant.block import QTensor
from ..archs import Arch
from ..ops import Add, Buffer, Embed, GatedActivation, MatMul, Op, RMSNorm
from .fields import Fields


@dataclass(frozen=True)
class PerLayer:
    """The sizes of per-layer inputs."""

    width: int  # of one layer's
    vocab_size: int  # tokens that have some; the others have those of token 0


def per_layer_from_hf(keys: Fields, arch: Arch) -> PerLayer | None:
    """None for a model without. Raises DamagedFile."""
    width = keys.integer("hidden_size_per_layer_input", 0, low=0) if "inp_gate" in arch.layer else 0
    return PerLayer(width, keys.integer("vocab_size_per_layer_input")) if width else None


def per_layer_from_gguf(keys: Fields, arch: Arch, held: Mapping[str, QTensor]) -> PerLayer | None:
    """None for a model without. Raises DamagedFile."""
    width = keys.integer("embedding_length_per_layer_input", 0, low=0) if "inp_gate" in arch.layer else 0
    table = held.get("per_layer_token_embd.weight")
    return PerLayer(width, table.shape[0] if table else keys.integer("vocab_size")) if width else None


def embed_per_layer(
    x: Buffer,
    projected: Buffer,
    out: Buffer,
    table: QTensor,
    projection: QTensor,
    weight: np.ndarray,
    eps: float,
) -> list[Op]:
    """out = (table[token] · √width + norm(projection of x / √hidden)) / √2, the norm layer by layer.

    `x` is the embedding, [rows, hidden]; `weight`, float32 [width], that of the norm. `projected` and `out`
    are [rows, layers · width].
    """
    width, half = len(weight), np.float32(0.5**0.5)
    return [
        Embed(out, table, (width / 2) ** 0.5),
        MatMul(x, projected, projection),
        # A norm does not see what its input is divided by, but for its epsilon.
        RMSNorm(projected, projected, weight * half, eps * x.width, out.width // width),
        Add(projected, out),
    ]


def enter_layer(
    i: int, inputs: Buffer, x: Buffer, gate: Buffer, h: Buffer, kind: str, linear: Callable[..., Op]
) -> list[Op]:
    """h = projection(f(gate of x) · the layer's inputs), of which `inputs` has all layers', side by side."""
    return [
        linear(i, "inp_gate", x, gate),  # gate [rows, width]
        GatedActivation(gate, inputs, gate, kind, up_start=i * gate.width),
        linear(i, "proj", gate, h),  # h [rows, hidden]
    ]
