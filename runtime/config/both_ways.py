"""Models whose tokens see the whole text, in both directions: encoders, and decoders turned into embedders.

Devlin et al. 2018, "BERT"; Warner et al. 2024, "ModernBERT".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...quant.block import QTensor
from ..archs import Arch
from ..archs.others import ENCODER
from .layers import Layer
from .metadata import Metadata
from .tensor_names import TensorNames

BOTH_WAYS = "a model that reads its text in both directions: it makes vectors of a text, and writes none"


def is_causal(keys: Metadata, arch: Arch) -> bool:
    """Whether tokens only see what is in front of them."""
    both = keys.values.get("use_bidirectional_attention") is True  # "vision" is about images only
    return arch.causal and not both and keys.flag("attention.causal", True)


def why_no_text(causal: bool, arch: Arch) -> str:
    """Why a model that is not causal writes no text; "" for one that is."""
    if causal:
        return ""
    return f"{arch.name} is {BOTH_WAYS if arch.causal else ENCODER}"


def seen_both_ways(layers: tuple[Layer, ...], causal: bool) -> tuple[Layer, ...]:
    """`layers` with windows as `ops.Attend` has them.

    A file states how many tokens a window has in all; half of them are on each side.
    """
    if causal:
        return layers
    return tuple(replace(layer, window=layer.window // 2 + 1 if layer.window else 0) for layer in layers)


def embedding_fields(
    keys: Metadata, arch: Arch, tensors: Mapping[str, QTensor], names: TensorNames
) -> dict[str, Any]:
    """The fields of a ModelConfig about token types and the norms at both ends of the model."""
    types = tensors.get(names("token_types.weight")) if "token_types" in arch.hf_top else None
    return {
        "token_types": types.shape[0] if types else 0,
        "embedding_norm": "token_embd_norm" in arch.hf_top,
        "output_norm": "output_norm" in arch.hf_top,
    }


def position_offset(keys: Metadata, arch: Arch) -> int:
    """Rows of the table of positions in front of that of the first token: up to that of padding."""
    return keys.integer("pad_token_id", 1, low=0) + 1 if arch.padded_positions else 0
