"""The matrices of the heads of multi-head latent attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ...quant.block import QTensor
from ...quant.errors import DamagedFile
from ..config.mla import MLAConfig
from ..config.tensor_names import TensorNames
from .tensors import rows_of, transposed


class HeadTensors:
    """The absorbed matrices of one layer's heads, (outputs, inputs) each.

    `keys`, (kv_rank, nope_dim) a head, project queries to the latent; `values`, (value_dim, kv_rank) a head,
    project the attention output from the latent. `used` are the names of their tensors in the file.

    A file has either two tensors, of two or three dimensions, with the matrices of all heads one after the
    other, or one matrix (kv_b) with (nope_dim + value_dim) rows for each head. In the latter case the
    matrices of keys are transposed copies in float32. Raises DamagedFile.
    """

    def __init__(
        self, layer: int, mla: MLAConfig, heads: int, names: TensorNames, tensors: Mapping[str, QTensor]
    ) -> None:
        key_name, value_name = (names(f"blk.{layer}.{stem}.weight") for stem in ("attn_k_b", "attn_v_b"))
        self.used = {key_name, value_name}
        if key_name != value_name:
            self.keys = _by_head(tensors, key_name, (heads, mla.kv_rank, mla.nope_dim))
            self.values = _by_head(tensors, value_name, (heads, mla.value_dim, mla.kv_rank))
            return
        rows = mla.nope_dim + mla.value_dim
        both = _by_head(tensors, key_name, (heads * rows, mla.kv_rank), heads)
        self.keys = tuple(transposed(rows_of(tensor, 0, mla.nope_dim)) for tensor in both)
        self.values = tuple(rows_of(tensor, mla.nope_dim, rows) for tensor in both)


def _by_head(
    tensors: Mapping[str, QTensor], name: str, shape: tuple[int, ...], heads: int | None = None
) -> tuple[QTensor, ...]:
    """The tensor `name` cut into a matrix for each head, `heads` or as many as its first dimension."""
    if name not in tensors:
        raise DamagedFile(f"tensor {name} is missing")
    tensor = tensors[name]
    if tensor.shape not in (shape, (math.prod(shape[:-1]), shape[-1])):
        raise DamagedFile(f"tensor {name} has shape {tensor.shape}, but the model needs {shape}")
    heads = heads or shape[0]
    n_rows = math.prod(shape[:-1]) // heads
    parts = [tensor.data[h * n_rows : (h + 1) * n_rows] for h in range(heads)]
    return tuple(replace(tensor, shape=(n_rows, shape[-1]), data=part) for part in parts)
