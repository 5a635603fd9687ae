"""Tensors made of others: views of rows where the layout allows it, else copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...quant.block import QTensor
from ...quant.formats import FORMATS


def rows_of(tensor: QTensor, start: int, end: int) -> QTensor:
    """Rows start … end - 1 of a matrix, as a view."""
    return replace(tensor, shape=(end - start, tensor.shape[1]), data=tensor.data[start:end])


def turned(tensor: QTensor) -> QTensor:
    """A copy of a matrix with inputs and outputs exchanged; quantised rows become float32."""
    if not tensor.format.is_float:
        values = np.ascontiguousarray(tensor.dequantize())
        tensor = replace(tensor, format=FORMATS["F32"], data=values.view(np.uint8))
    n_rows, width = tensor.shape
    values = tensor.data.reshape(n_rows, width, -1).swapaxes(0, 1)
    return replace(tensor, shape=(width, n_rows), data=np.ascontiguousarray(values).reshape(width, -1))
