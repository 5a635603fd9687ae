"""How a model's layers rotate queries and keys: the frequencies of each rotary embedding, as plain data."""

from __future__ import annotations

from typing import Any

from ..config.model_config import ModelConfig
from ..config.rope import Rope


def rope_data(config: ModelConfig) -> list[dict[str, Any]]:
    """A dict for each rotary embedding that layers of the model have, in order of the first such layer.

    `inv_freq` are the radians that each pair of dimensions turns by from one token to the next, for sequences
    up to the original context.
    """
    layers: dict[Rope, list[int]] = {}
    for index, layer in enumerate(config.layers):
        if layer.rope is not None and layer.has_attention:
            layers.setdefault(layer.rope, []).append(index)
    return [
        {
            "layers": where,
            "base": rope.base,
            "interleaved": rope.interleaved,
            "factor": rope.factor,
            "scaling": type(rope.scaling).__name__.lower() if rope.scaling else "",
            "original_context": rope.original_context,
            "inv_freq": [float(f"{value:.7g}") for value in rope.inv_freq()],
        }
        for rope, where in layers.items()
    ]
