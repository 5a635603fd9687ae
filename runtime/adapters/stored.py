"""What the file of an adapter holds, and how a user names such a file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import DamagedFile

MAX_RANK = 1 << 12  # of one adapter; usual ones have 4 to 256
_SCALE = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class AdapterFile:
    """An adapter as the user names it: a file or folder, and the factor of its effect."""

    path: Path
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise ValueError(f"the scale of an adapter must be a finite number, not {self.scale}")

    @classmethod
    def parse(cls, text: str) -> AdapterFile:
        """The adapter that "FILE" or "FILE:SCALE" names; a file whose whole name is `text` comes first."""
        name, colon, scale = text.rpartition(":")
        if colon and name and _SCALE.fullmatch(scale) and not Path(text).expanduser().exists():
            return cls(Path(name).expanduser(), float(scale))
        return cls(Path(text).expanduser())


@dataclass(frozen=True)
class Adapters:
    """What is added to a model when it is loaded: LoRA adapters and control vectors, whose effects add up.

    Control vectors act behind the layers `control_layers`, first and last counted from 0; None: all.
    """

    lora: tuple[AdapterFile, ...] = ()
    control_vectors: tuple[AdapterFile, ...] = ()
    control_layers: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        layers = self.control_layers
        if layers and not 0 <= layers[0] <= layers[1]:
            raise ValueError(f"control vectors cannot act from layer {layers[0]} to layer {layers[1]}")

    def __bool__(self) -> bool:
        return bool(self.lora or self.control_vectors)

    @property
    def described(self) -> str:
        """The names of the files with their scales, "" for none."""
        files = (*self.lora, *self.control_vectors)
        return ", ".join(f.path.name + (f":{f.scale:g}" if f.scale != 1 else "") for f in files)


NO_ADAPTERS = Adapters()


def adapter_files(
    named: Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]],
) -> tuple[AdapterFile, ...]:
    """Adapters as callers in Python name them: a path, "PATH:SCALE", or (path, scale)."""
    if isinstance(named, str | os.PathLike):
        raise TypeError("adapters are a list of paths, not one path")
    files = []
    for each in named:
        if isinstance(each, tuple):
            path, scale = each
            files.append(AdapterFile(Path(path).expanduser(), float(scale)))
        elif isinstance(each, str):
            files.append(AdapterFile.parse(each))
        else:
            files.append(AdapterFile(Path(each)))
    return tuple(files)


@dataclass(frozen=True)
class StoredPair:
    """The two factors of a change of one matrix: ΔW = scale · up @ down.

    `down` is (rank, inputs) and `up` (outputs, rank), both as they lie in the file; those of all experts of a
    layer have a first dimension more. `bias`, float32 [outputs] or None, is added to the product. `name` is
    what messages call the pair. Of an embedding `down` is (rank, tokens).
    """

    name: str
    down: QTensor
    up: QTensor
    rank: int
    scale: float
    bias: QTensor | None = None

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """down, and up times the scale, in float32. Raises DamagedFile for values that are not finite."""
        with np.errstate(all="ignore"):
            down, up = self.down.dequantize(), self.up.dequantize() * np.float32(self.scale)
        for tensor, values in ((self.down, down), (self.up, up)):
            if not np.isfinite(values).all():
                raise DamagedFile(f"tensor {tensor.name} has values that are not finite")
        return down, up


@dataclass(frozen=True)
class StoredAdapter:
    """The contents of an adapter's file: factors by the name of the matrix that they change.

    `from_gguf` says whose names these are: GGUF's, with ".weight", or those of Hugging Face's modules.
    `base` is what the file says about the model that it is for, and `paths` are its files. `replaced` are
    whole tensors that take the place of the model's, by the same names.
    """

    title: str  # what messages call it
    from_gguf: bool
    base: str
    paths: tuple[Path, ...]
    pairs: dict[str, StoredPair]
    replaced: dict[str, QTensor] = field(default_factory=dict)

    @property
    def n_weights(self) -> int:
        pairs = (math.prod(p.down.shape) + math.prod(p.up.shape) for p in self.pairs.values())
        return sum(pairs) + sum(math.prod(tensor.shape) for tensor in self.replaced.values())

    @property
    def ranks(self) -> list[int]:
        """The ranks of its pairs, each once, in ascending order."""
        return sorted({pair.rank for pair in self.pairs.values()})
