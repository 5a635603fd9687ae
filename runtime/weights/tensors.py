"""Tensors derived from other tensors: views where the layout allows it, else copies."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...quant.block import QTensor
from ...quant.formats import FORMATS


def rows_of(tensor: QTensor, start: int, end: int) -> QTensor:
    """Rows start … end - 1 of a matrix, as a view."""
    return replace(tensor, shape=(end - start, tensor.shape[1]), data=tensor.data[start:end])


def transposed(tensor: QTensor) -> QTensor:
    """A transposed copy of a matrix; block-quantised rows become float32."""
    if not tensor.format.is_float:
        values = np.ascontiguousarray(tensor.dequantize())
        tensor = replace(tensor, format=FORMATS["F32"], data=values.view(np.uint8), factors=())
    n_rows, width = tensor.shape
    values = tensor.data.reshape(n_rows, width, -1).swapaxes(0, 1)
    return replace(tensor, shape=(width, n_rows), data=np.ascontiguousarray(values).reshape(width, -1))


def split_rows(tensor: QTensor, parts: list[tuple[str, tuple[int, ...]]]) -> dict[str, QTensor]:
    """The tensor cut into `parts`, names and shapes: consecutive rows, as views, or values of a vector."""
    if len(parts) == 1:
        return {parts[0][0]: tensor}
    if len(tensor.shape) == 1:
        values = tensor.dequantize()
        data = values.view(np.uint8).reshape(len(values), -1)
        tensor = replace(tensor, format=FORMATS["F32"], data=data, factors=())
    split, start = {}, 0
    for name, shape in parts:
        data = tensor.data[start : start + shape[0]]
        split[name] = replace(tensor, shape=shape, data=data if len(shape) > 1 else data.reshape(1, -1))
        start += shape[0]
    return split


def same_but_ones(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes differ only by dimensions of 1."""
    return [n for n in shape if n != 1] == [n for n in other if n != 1]


def reshaped(tensor: QTensor, shape: tuple[int, ...]) -> QTensor:
    """A view in another shape if that has the same size, else the tensor itself.

    Rows of blocks must stay whole.
    """
    if tensor.shape == shape or math.prod(tensor.shape) != math.prod(shape):
        return tensor
    return replace(tensor, shape=shape, data=tensor.data.reshape(math.prod(shape[:-1]), -1))


def by_projection(tensor: QTensor, groups: int, n_rows: list[int]) -> QTensor:
    """A copy of a fused tensor whose rows are ordered by projection first.

    The tensor has `groups` groups of rows; `n_rows` are the rows of each projection in a group.
    """
    rows = tensor.data.reshape(groups, sum(n_rows), -1)
    parts = np.split(rows, np.cumsum(n_rows)[:-1], axis=1)
    data = np.concatenate([part.reshape(-1, rows.shape[-1]) for part in parts])
    return replace(tensor, data=data.reshape(tensor.data.shape))
