"""GPTQ: integers packed along the inputs, with a zero point for each group and output.

    qweight   int32 [in · b / 32, out]       b-bit codes of 32 / b inputs a word, low first:
                                             4 bits   31…28 27…24       …   7…4   3…0
                                                      q_8r+7 q_8r+6     …   q_8r+1 q_8r    of word r
    qzeros    int32 [groups, out · b / 32]   zero points, packed along the outputs; one is subtracted
                                             from each in the format "gptq", not in "gptq_v2"
    scales    float [groups, out]
    g_idx     int32 [in]                     the group of each input (act-order); if it is absent or
                                             all 0, groups are neighbouring inputs

    W[o, i] = scales[g, o] · (q[i, o] - zero[g, o]),  g = g_idx[i]

In the format "gptq" a stored zero point of 2^b - 1 means 2^b, as in the kernels of ExLlama and vLLM.

Sources: Frantar et al. 2022, "GPTQ"; the tensors that AutoGPTQ, GPTQModel and transformers write.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import UnsupportedModel
from ..lazy_rows import Index
from ..raw_tensors import FLOATS, RawCheckpoint, RawTensor, as_floats, check_tensor
from ..settings import Settings
from .bit_packing import unpack_columns, unpack_rows
from .groupwise import Groups, GroupwiseCodes, regular_groups, with_zero_points
from .packed_weight import PackedWeight

BITS = (4, 8)
WORDS = ("I32", "U32")


def read(raw: RawCheckpoint, settings: Settings) -> Iterator[PackedWeight]:
    """All weights packed by GPTQ. Raises DamagedFile, UnsupportedModel."""
    bits = settings.integer("bits", 4)
    if bits not in BITS:
        raise UnsupportedModel(f"GPTQ with {bits} bits is not supported; supported are 4 and 8")
    if settings.flag("is_marlin_format"):
        raise UnsupportedModel("GPTQ in the Marlin format is not supported; supported are gptq, gptq_v2")
    form = settings.one_of("checkpoint_format", "gptq", ("gptq", "gptq_v2"), "GPTQ")
    size = settings.integer("group_size", -1, low=-1)
    for qweight in raw.ending(".qweight"):
        yield _read_one(raw, qweight, bits, size, subtracted=form == "gptq")


def _read_one(raw: RawCheckpoint, qweight: RawTensor, bits: int, size: int, subtracted: bool) -> PackedWeight:
    """`subtracted`: whether stored zero points are smaller by one than the real ones."""
    base, per_word = qweight.name.removesuffix("qweight"), 32 // bits
    raw.take(qweight.name, WORDS)
    check_tensor(len(qweight.shape) == 2, qweight, f"has shape {qweight.shape}, not two dimensions")
    width, rows = qweight.shape[0] * per_word, qweight.shape[1]
    scales = raw.take(f"{base}scales", FLOATS)
    check_tensor(
        len(scales.shape) == 2 and scales.shape[1] == rows,
        scales,
        f"has shape {scales.shape}, not of {rows} outputs",
    )
    n_groups = scales.shape[0]
    qzeros = raw.take(f"{base}qzeros", WORDS, (n_groups, -(-rows // per_word)))
    groups = _groups(raw, f"{base}g_idx", width, n_groups, size, scales)
    words, zeros, scale = qweight.array, qzeros.array, scales.array

    def codes(index: Index) -> np.ndarray:
        return unpack_rows(words[:, index].T, bits)

    def zero_points(index: Index) -> np.ndarray:
        stored = unpack_columns(zeros, index, bits)
        return stored.astype(np.uint16) + np.uint16(1) if subtracted else stored

    weight = GroupwiseCodes(
        f"{base}weight",
        (rows, width),
        bits,
        groups,
        codes,
        lambda index: as_floats(scale[:, index].T, scales.dtype),
        (qweight.data, qzeros.data, scales.data),
    )
    return with_zero_points(weight, zero_points)


def _groups(raw: RawCheckpoint, name: str, width: int, n_groups: int, size: int, scales: RawTensor) -> Groups:
    """The groups that the tensor `name` (g_idx) states, or neighbouring inputs."""
    size = width if size == -1 else size
    regular = size > 0 and n_groups == -(-width // size)
    if name in raw:
        of_input = raw.take(name, ("I32", "I64"), (width,))
        numbers = of_input.array
        low, high = int(numbers.min()), int(numbers.max())
        check_tensor(
            low >= 0 and high < n_groups, of_input, f"names group {low if low < 0 else high} of {n_groups}"
        )
        if high > 0 or not regular:
            return Groups(np.ascontiguousarray(numbers, np.int64))
    check_tensor(regular, scales, f"has {n_groups} groups, which are not those of {size} of {width} inputs")
    return regular_groups(width, n_groups, size)
