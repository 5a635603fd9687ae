"""Embedding tables and matrix products. `reference/dense.py` is the specification."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...quant.block import QTensor
from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class Embed:
    """out = table[token] * scale. `table` is (tokens, width); a token id beyond the table reads row 0.

    With `by_type` the table has a row for each type of a token (`Batch.types`) instead.
    """

    out: Buffer
    table: QTensor
    scale: float = 1.0
    by_type: bool = False


@dataclass(frozen=True, eq=False)
class AddPositions:
    """x += table[position]: learned positions.

    `table` is (positions, width) and has a row for every position.
    """

    x: Buffer
    table: QTensor


@dataclass(frozen=True, eq=False)
class MatMul:
    """out = x @ weightᵀ + bias, or with `accumulate` out += x @ weightᵀ + bias (the residual add).

    `weight` is (outputs, inputs); `bias` float32 [outputs] or None.
    """

    x: Buffer
    out: Buffer
    weight: QTensor
    bias: np.ndarray | None = None
    accumulate: bool = False


@dataclass(frozen=True, eq=False)
class HeadMatMul:
    """out = x @ weightᵀ for every head by itself: `weights` has an (outputs, inputs) matrix a head.

    x is [rows, heads · n]. The first `inputs` columns of each head are multiplied; its other n - inputs
    columns are copied behind the product. out is [rows, heads · (outputs + n - inputs)].
    """

    x: Buffer
    out: Buffer
    weights: tuple[QTensor, ...]
