"""AWQ in its GEMM layout: 4-bit integers packed along the outputs, in an order of their own.

    qweight   int32 [in, out / 8]       word c:
                                        bits   31…28   27…24   23…20   19…16   15…12   11…8   7…4    3…0
                                        output 8c+7    8c+5    8c+3    8c+1    8c+6    8c+4   8c+2   8c
    qzeros    int32 [groups, out / 8]   zero points, as they are, in the same order
    scales    float [groups, out]

    W[o, i] = scales[g, o] · (q[i, o] - zero[g, o]),  g = i // group size

Sources: Lin et al. 2023, "AWQ"; the tensors that AutoAWQ and transformers write.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import UnsupportedModel
from ..lazy_rows import Index, numbers_of
from ..raw_tensors import FLOATS, RawTensor, RawTensors, as_floats, need
from ..settings import Settings
from .groupwise import IntegerGrid, regular_groups
from .packed_weight import Found

SHIFTS = np.array([0, 16, 4, 20, 8, 24, 12, 28], np.uint32)  # of outputs 8c … 8c + 7


def read(raw: RawTensors, settings: Settings) -> Iterator[Found]:
    """Every weight that is packed so. DamagedFile, UnsupportedModel."""
    bits = settings.integer("bits", settings.integer("w_bit", 4))
    if bits != 4:
        raise UnsupportedModel(f"AWQ with {bits} bits is not supported; supported are 4")
    settings.one_of("version", "gemm", ("gemm",), "AWQ")
    size = settings.integer("group_size", settings.integer("q_group_size", 128, low=-1), low=-1)
    for qweight in raw.ending(".qweight"):
        yield _read_one(raw, qweight, size).found()


def _read_one(raw: RawTensors, found: RawTensor, size: int) -> IntegerGrid:
    base = found.name.removesuffix("qweight")
    qweight = raw.take(found.name, ("I32", "U32"))
    need(len(qweight.shape) == 2, qweight, f"has shape {qweight.shape}, not two dimensions")
    width, rows = qweight.shape[0], 8 * qweight.shape[1]
    size = width if size == -1 else size
    need(size > 0, qweight, "is in groups of 0 inputs")
    n_groups = -(-width // size)
    scales = raw.take(f"{base}scales", FLOATS, (n_groups, rows))
    qzeros = raw.take(f"{base}qzeros", ("I32", "U32"), (n_groups, rows // 8))
    words, zeros, scale = qweight.array, qzeros.array, scales.array
    return IntegerGrid(
        f"{base}weight",
        (rows, width),
        4,
        regular_groups(width, n_groups, size),
        lambda index: outputs_of(words, index),
        lambda index: as_floats(scale[:, index].T, scales.dtype),
        lambda index: outputs_of(zeros, index),
        (qweight.data, qzeros.data, scales.data),
    )


def outputs_of(words: np.ndarray, index: Index) -> np.ndarray:
    """32-bit [k, out / 8] → the codes of the outputs at `index`, uint8 [n, k]."""
    if isinstance(index, slice) and index.step == 1:  # each word once
        first, last = index.start // 8, -(-index.stop // 8)
        columns = np.ascontiguousarray(words[:, first:last].T).view(np.uint32)
        codes = np.empty((len(columns), 8, columns.shape[1]), np.uint8)
        for output, shift in enumerate(SHIFTS):
            codes[:, output] = columns >> shift & np.uint32(15)
        return codes.reshape(-1, columns.shape[1])[index.start - 8 * first :][: index.stop - index.start]
    numbers = numbers_of(index)
    columns = words[:, numbers // 8].T.view(np.uint32)
    return (columns >> SHIFTS[numbers % 8][:, None] & np.uint32(15)).astype(np.uint8)
