"""LoRA adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them.

The file has the pairs `NAME.lora_a` and `NAME.lora_b` for matrices NAME of the model's GGUF file, and
`adapter.lora.alpha`. Source: llama.cpp's reader of adapters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import DamagedFile, UnsupportedModel
from ...quant.formats import FORMATS
from ...quant.gguf.metadata import quoted
from ...quant.gguf.reader import GGUFFile
from ..archs.others import OTHER_TYPES
from .stored import StoredAdapter, StoredPair

_ENDS = (".lora_a", ".lora_b")
_EMBEDDING = "token_embd.weight"


def read_gguf_lora(path: Path) -> StoredAdapter:
    """The adapter in a GGUF file. Raises DamagedFile, UnsupportedModel (a DamagedFile), OSError."""
    file = GGUFFile.open(path)
    kind = file.metadata.get("general.type")
    if kind != "adapter":
        what = OTHER_TYPES.get(kind, "a model") if isinstance(kind, str) else "a model"
        if file.metadata.get("general.architecture") == "controlvector":
            what = OTHER_TYPES["controlvector"]
        raise DamagedFile(f"{path.name}: is no adapter but {what.partition(',')[0].partition(':')[0]}")
    if (method := file.metadata.get("adapter.type")) != "lora":
        raise UnsupportedModel(
            f"{path.name}: is an adapter of type {quoted(str(method))}; only LoRA is supported"
        )
    if "adapter.alora.invocation_tokens" in file.metadata:
        raise UnsupportedModel(f"{path.name}: activated LoRA (aLoRA) is not supported")
    base = file.metadata.get("general.architecture")
    if not isinstance(base, str):
        raise DamagedFile(f"{path.name}: its metadata has no general.architecture")
    pairs = _pairs(file.tensors, _alpha(file.metadata, path.name), path.name)
    return StoredAdapter(title=path.name, from_gguf=True, base=base, paths=tuple(file.paths), pairs=pairs)


def _alpha(metadata: Mapping[str, Any], name: str) -> float:
    alpha = metadata.get("adapter.lora.alpha", 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise DamagedFile(f"{name}: adapter.lora.alpha is no number")
    return float(alpha)


def _pairs(tensors: Mapping[str, QTensor], alpha: float, name: str) -> dict[str, StoredPair]:
    """The pairs by the names of the matrices that they change."""
    pairs = {}
    for key in tensors:
        matrix, end = key[: -len(_ENDS[0])], key[-len(_ENDS[0]) :]
        if end not in _ENDS:
            raise DamagedFile(f"{name}: tensor {quoted(key)} is of no adapter")
        a, b = (tensors.get(matrix + each) for each in _ENDS)
        if a is None or b is None:
            raise DamagedFile(f"{name}: tensor {quoted(key)} has no other half")
        if matrix == _EMBEDDING and len(a.shape) == 2:
            a = _transposed(a)  # (tokens, rank) in the file
        stacks = len(a.shape) == len(b.shape) and a.shape[:-2] == b.shape[:-2] and len(a.shape) in (2, 3)
        if not stacks or a.shape[-2] != b.shape[-1]:
            raise DamagedFile(
                f"{name}: tensors {quoted(a.name)} {a.shape} and {quoted(b.name)} {b.shape} are no factors "
                "of a matrix"
            )
        rank = b.shape[-1]
        pairs[matrix] = StoredPair(quoted(matrix), a, b, rank, alpha / rank if alpha else 1.0)
    if not pairs:
        raise DamagedFile(f"{name}: has no tensors of LoRA")
    return pairs


def _transposed(tensor: QTensor) -> QTensor:
    values = np.ascontiguousarray(tensor.dequantize().T)
    return QTensor(tensor.name, FORMATS["F32"], values.shape, values.view(np.uint8))
