"""Per-layer inputs: a small embedding of each token for every layer, added behind its FFN.

As in Gemma 3n and 4. One table has the embeddings of all layers side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...quant.block import QTensor
from ..archs import Arch
from .metadata import Metadata


@dataclass(frozen=True)
class PerLayerInputConfig:
    """The sizes of per-layer inputs."""

    width: int  # of the input of one layer
    vocab_size: int  # rows of the table; a token id beyond them reads row 0


def per_layer_from_hf(keys: Metadata, arch: Arch) -> PerLayerInputConfig | None:
    """The sizes in config.json; None for a model without per-layer inputs. Raises DamagedFile."""
    width = keys.integer("hidden_size_per_layer_input", 0, low=0) if "inp_gate" in arch.layer else 0
    return PerLayerInputConfig(width, keys.integer("vocab_size_per_layer_input")) if width else None


def per_layer_from_gguf(
    keys: Metadata, arch: Arch, tensors: Mapping[str, QTensor]
) -> PerLayerInputConfig | None:
    """The sizes in GGUF metadata and tensors; None for a model without per-layer inputs.

    Raises DamagedFile.
    """
    width = keys.integer("embedding_length_per_layer_input", 0, low=0) if "inp_gate" in arch.layer else 0
    table = tensors.get("per_layer_token_embd.weight")
    if not width:
        return None
    return PerLayerInputConfig(width, table.shape[0] if table else keys.integer("vocab_size"))
