"""Control vectors: directions that are added to the residual stream behind layers.

A GGUF file has tensors `direction.N`, float32 [hidden], for the layers N from 1 on. Source: llama.cpp,
which also adds direction N behind layer N, counted from 0. (Zou et al. 2023, "Representation
Engineering"; the `repeng` library trains and writes such files.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...quant.errors import DamagedFile
from ...quant.gguf.metadata import quoted
from ...quant.gguf.reader import GGUFFile
from ..config.model_config import ModelConfig
from .stored import AdapterFile

_NAME = re.compile(r"direction\.(\d{1,4})")


@dataclass(frozen=True)
class ControlVector:
    """The directions in a file by layer, float32 [hidden] each; `hint` is the model that the file names."""

    title: str
    hint: str
    paths: tuple[Path, ...]
    directions: dict[int, np.ndarray]


def read_control_vector(path: Path) -> ControlVector:
    """The control vector in a GGUF file. Raises FileNotFoundError, DamagedFile, OSError."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such control vector")
    if path.is_dir():
        raise DamagedFile(f"{path.name}: is a folder, but control vectors are GGUF files")
    file = GGUFFile.open(path)
    kinds = file.metadata.get("general.architecture"), file.metadata.get("general.type")
    if "controlvector" not in [kind for kind in kinds if isinstance(kind, str)]:
        raise DamagedFile(f"{path.name}: is no control vector: its architecture is {quoted(str(kinds[0]))}")
    directions = {}
    for name, tensor in file.tensors.items():
        number = _NAME.fullmatch(name)
        if not number or len(tensor.shape) != 1:
            raise DamagedFile(f"{path.name}: tensor {quoted(name)} {tensor.shape} is no direction of a layer")
        if not int(number[1]):
            raise DamagedFile(f"{path.name}: tensor {quoted(name)}: directions begin at layer 1")
        values = tensor.dequantize()
        if not np.isfinite(values).all():
            raise DamagedFile(f"{path.name}: tensor {quoted(name)} has values that are not finite")
        directions[int(number[1])] = values
    if not directions:
        raise DamagedFile(f"{path.name}: has no directions")
    hint = file.metadata.get("controlvector.model_hint")
    return ControlVector(path.name, hint if isinstance(hint, str) else "", tuple(file.paths), directions)


def summed_directions(
    config: ModelConfig, files: Sequence[AdapterFile], layers: tuple[int, int] | None
) -> tuple[dict[int, np.ndarray], list[tuple[Path, float]]]:
    """The sum of control vectors, by layer, and their files with their scales.

    `layers` are the first and the last layer to which they are applied, None for all. A vector with a scale
    of 0 is only checked. Raises DamagedFile for a vector of another model, and as `read_control_vector` does.
    """
    summed: dict[int, np.ndarray] = {}
    used: list[tuple[Path, float]] = []
    first, last = layers or (0, config.n_layers - 1)
    for file in files:
        vector = read_control_vector(file.path)
        for layer, direction in vector.directions.items():
            name = f"{vector.title}: tensor 'direction.{layer}'"
            if len(direction) != config.hidden:
                raise DamagedFile(
                    f"{name} has {len(direction)} numbers, but the model's width is {config.hidden}"
                )
            if layer >= config.n_layers:
                raise DamagedFile(f"{name} has no place in a model of {config.n_layers} layers")
            if file.scale and first <= layer <= last:
                added = direction * np.float32(file.scale)
                summed[layer] = summed[layer] + added if layer in summed else added
        if file.scale:
            used += [(path, file.scale) for path in vector.paths]
    return summed, used
