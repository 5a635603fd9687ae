"""The factors of tensors that are written in NVFP4 (`QTensor.factors`), and the tensors that hold them.

NVFP4's 8-bit scales reach from 2⁻⁹ to 448. A matrix is divided by a factor that makes its largest weight the
largest that blocks can have, so that its scales lie at the upper end of that range, where they are precise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..block import QTensor
from ..formats import FORMATS
from ..formats.nvfp4 import LARGEST_WEIGHT
from ..gguf.tensor_factors import LARGEST_FACTOR, scale_name
from ..gguf.writer import TensorRecord
from .recipes import PlannedTensor


def scale_record(planned: PlannedTensor) -> TensorRecord | None:
    """The record of the tensor with the factors of a planned one; None if it has none."""
    if planned.format is not FORMATS["NVFP4"]:
        return None
    n_matrices = planned.tensor.n_rows // planned.tensor.matrix_rows
    return TensorRecord(scale_name(planned.name), (n_matrices,), FORMATS["F32"])


def factors_of(planned: PlannedTensor, release: Callable[[QTensor], None]) -> np.ndarray:
    """The factor of each matrix of a tensor planned in NVFP4, float32 [matrices]: those it has, if it is in
    NVFP4 already. `release` is called with the rows that have been read."""
    tensor = planned.tensor
    if tensor.format is planned.format and tensor.factors is not None:
        return tensor.factors
    peaks, row = np.zeros(tensor.n_rows // tensor.matrix_rows, np.float32), 0
    for rows in tensor.chunks():
        magnitudes = np.abs(rows.dequantize())
        largest = np.max(magnitudes, where=np.isfinite(magnitudes), initial=0)
        matrix = row // tensor.matrix_rows
        peaks[matrix] = max(peaks[matrix], largest)
        release(rows)
        row += len(rows.data)
    factors = np.minimum(peaks / np.float32(LARGEST_WEIGHT), np.float32(LARGEST_FACTOR))
    return np.where(peaks > 0, factors, np.float32(1))


def without_factor(rows: QTensor, factor: np.float32) -> QTensor:
    """Rows divided by their matrix's factor: in NVFP4 the same blocks, else float32."""
    if rows.format is FORMATS["NVFP4"]:
        return replace(rows, factors=())
    values = rows.dequantize() / factor
    return replace(rows, format=FORMATS["F32"], data=values.view(np.uint8), factors=())
