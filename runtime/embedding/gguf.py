"""The embedding settings of a GGUF file, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import DamagedFile, UnsupportedModel
from ..config.metadata import Metadata, show
from .settings import EmbeddingSettings
from .stages import Dense, Normalize, Stage

RANK = 4  # a pooling type of GGUF: a head makes scores
_POOLING: dict[int, tuple[str, ...]] = {1: ("mean",), 2: ("cls",), 3: ("lasttoken",)}
_DENSE = ("dense_2", "dense_3")  # of EmbeddingGemma, in order


def settings_of_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, QTensor]) -> EmbeddingSettings | None:
    """The settings that a file states; None for a file that states no pooling, or one for scores.

    Raises DamagedFile or UnsupportedModel.
    """
    name = metadata.get("general.architecture")
    keys = Metadata(metadata, "GGUF metadata", prefix=f"{name}.")
    if "pooling_type" not in keys:
        return None
    kind = keys.integer("pooling_type", low=0)
    if kind in (0, RANK):
        return None
    if kind not in _POOLING:
        raise UnsupportedModel(f"pooling type {show(kind)} is not supported")
    stages: list[Stage] = [Dense(_values(tensors, f"{d}.weight")) for d in _DENSE if f"{d}.weight" in tensors]
    return EmbeddingSettings(pooling=_POOLING[kind], stages=(*stages, Normalize()))


def dense_tensors(tensors: Mapping[str, QTensor]) -> set[str]:
    """The names of tensors that are read with the settings."""
    return {f"{name}.weight" for name in _DENSE} & set(tensors)


def _values(tensors: Mapping[str, QTensor], name: str) -> np.ndarray:
    if len(tensors[name].shape) != 2:
        raise DamagedFile(f"tensor {name} is no matrix")
    values: np.ndarray = tensors[name].dequantize()
    return values
