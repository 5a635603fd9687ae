"""AWQ in its GEMM layout: 4-bit integers packed along the outputs, interleaved within each word.

    qweight   int32 [in, out / 8]       word c:
                                        bits   31…28   27…24   23…20   19…16   15…12   11…8   7…4    3…0
                                        output 8c+7    8c+5    8c+3    8c+1    8c+6    8c+4   8c+2   8c
    qzeros    int32 [groups, out / 8]   zero points, packed in the same order
    scales    float [groups, out]

    W[o, i] = scales[g, o] · (q[i, o] - zero[g, o]),  g = i // group size

Sources: Lin et al. 2023, "AWQ"; the tensors that AutoAWQ and transformers write.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import UnsupportedModel
from ..lazy_rows import Index, row_numbers
from ..raw_tensors import FLOATS, RawCheckpoint, RawTensor, as_floats, check_tensor
from ..settings import Settings
from .groupwise import GroupwiseCodes, regular_groups, with_zero_points
from .packed_weight import PackedWeight

SHIFTS = np.array([0, 16, 4, 20, 8, 24, 12, 28], np.uint32)  # of outputs 8c … 8c + 7 in word c


def read(raw: RawCheckpoint, settings: Settings) -> Iterator[PackedWeight]:
    """All weights packed by AWQ. Raises DamagedFile, UnsupportedModel."""
    bits = settings.integer("bits", settings.integer("w_bit", 4))
    if bits != 4:
        raise UnsupportedModel(f"AWQ with {bits} bits is not supported; supported are 4")
    settings.one_of("version", "gemm", ("gemm",), "AWQ")
    size = settings.integer("group_size", settings.integer("q_group_size", 128, low=-1), low=-1)
    for qweight in raw.ending(".qweight"):
        yield _read_one(raw, qweight, size)


def _read_one(raw: RawCheckpoint, qweight: RawTensor, size: int) -> PackedWeight:
    base = qweight.name.removesuffix("qweight")
    raw.take(qweight.name, ("I32", "U32"))
    check_tensor(len(qweight.shape) == 2, qweight, f"has shape {qweight.shape}, not two dimensions")
    width, rows = qweight.shape[0], 8 * qweight.shape[1]
    size = width if size == -1 else size
    check_tensor(size > 0, qweight, "is in groups of 0 inputs")
    n_groups = -(-width // size)
    scales = raw.take(f"{base}scales", FLOATS, (n_groups, rows))
    qzeros = raw.take(f"{base}qzeros", ("I32", "U32"), (n_groups, rows // 8))
    words, zeros, scale = qweight.array, qzeros.array, scales.array
    weight = GroupwiseCodes(
        f"{base}weight",
        (rows, width),
        4,
        regular_groups(width, n_groups, size),
        lambda index: unpack_outputs(words, index),
        lambda index: as_floats(scale[:, index].T, scales.dtype),
        (qweight.data, qzeros.data, scales.data),
    )
    return with_zero_points(weight, lambda index: unpack_outputs(zeros, index))


def unpack_outputs(words: np.ndarray, index: Index) -> np.ndarray:
    """Unpack the codes of the outputs at `index`: 32-bit words [k, out / 8] → uint8 [n, k]."""
    if isinstance(index, slice) and index.step == 1:  # reads each word once
        first, last = index.start // 8, -(-index.stop // 8)
        columns = np.ascontiguousarray(words[:, first:last].T).view(np.uint32)
        codes = np.empty((len(columns), 8, columns.shape[1]), np.uint8)
        for output, shift in enumerate(SHIFTS):
            codes[:, output] = columns >> shift & np.uint32(15)
        return codes.reshape(-1, columns.shape[1])[index.start - 8 * first :][: index.stop - index.start]
    numbers = row_numbers(index)
    columns = words[:, numbers // 8].T.view(np.uint32)
    return (columns >> SHIFTS[numbers % 8][:, None] & np.uint32(15)).astype(np.uint8)
