"""8-bit floats with scales: one for a tensor, for each output, for groups of inputs, or for rectangles.

    weight               float8 [(experts,) out, in]   e4m3: s eeee mmm, or e5m2: s eeeee mm
    weight_scale_inv     float []                      one for all; or
    or weight_scale            [out] or [out, 1]       one for each output; or
                               [ceil(out / R), ceil(in / C)]   one for each rectangle of R outputs and C
                                                       inputs, the last ones maybe smaller; with experts, each
                                                       its own

    W[o, i] = weight[o, i] · scale[o // R, i // C]; a factor, whatever its name

No GGUF type holds such a grid, so weights become floats. R and C are those that the configuration states; the
sizes of scales and weight alone do not tell them where the last ones are smaller.

Sources: Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; DeepSeek-AI 2024, "DeepSeek-V3"; the
tensors that transformers, compressed-tensors, FBGEMM and ModelOpt write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..lazy_rows import Index, numbers_of
from ..raw_tensors import FLOAT8, FLOATS, RawTensor, RawTensors, float8_values, need
from .bit_packing import look_up
from .lossless import encode_floats, formats_of_products
from .packed_weight import Found

# Least distance, most significant bits and largest magnitude of the values.
WITNESSES = {"F8_E4M3": (2.0**-9, 1.875, 448.0), "F8_E5M2": (2.0**-16, 1.75, 57344.0)}
ENDINGS = ("_scale_inv", "_scale")


def read(raw: RawTensors, rectangles: Sequence[tuple[int, int]]) -> Iterator[Found]:
    """Every weight that is packed so; `rectangles` are the sizes (R, C) that the configuration states."""
    for weight in raw:
        if weight.dtype in FLOAT8 and not weight.name.endswith(ENDINGS):
            yield _read_one(raw, weight, rectangles)


def _read_one(raw: RawTensors, found: RawTensor, rectangles: Sequence[tuple[int, int]]) -> Found:
    weight = raw.take(found.name, FLOAT8)
    need(
        len(weight.shape) in (2, 3),
        weight,
        f"has shape {weight.shape}, not two dimensions, or three of experts",
    )
    given = [weight.name + ending for ending in ENDINGS if weight.name + ending in raw]
    need(given, weight, "has no scales")
    scales = raw.take(given[0], (*FLOATS, "F8_E8M0"))
    rows, width = weight.shape[-2:]
    matrices = math.prod(weight.shape[:-2])
    values, tall, wide = _by_rectangle(weight, scales, rectangles)
    codes = weight.array.reshape(matrices * rows, width)
    table = float8_values(weight.dtype)
    columns = None if values.shape[-1] == 1 else np.arange(width) // wide
    scales_high = values.shape[1]

    def encode(index: Index, form: str) -> np.ndarray:
        matrix, row = np.divmod(numbers_of(index), rows)
        factors = values[matrix, np.minimum(row // tall, scales_high - 1)]  # [n, across]
        out = look_up(table, codes[index])
        out *= factors if columns is None else factors[:, columns]
        return encode_floats(out, form)

    def floats() -> tuple[str, ...]:
        return formats_of_products(values, WITNESSES[weight.dtype])

    return Found(weight.name, weight.shape, (), floats, encode, (weight.data, scales.data))


def _by_rectangle(
    weight: RawTensor, scales: RawTensor, rectangles: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, int, int]:
    """Scales as float32 [experts, down, across], and the sizes of what each is for."""
    rows, width = weight.shape[-2:]
    matrices = math.prod(weight.shape[:-2])
    values, shape = scales.floats(), scales.shape
    if values.size == 1:
        return np.broadcast_to(values.reshape(1, 1, 1), (matrices, 1, 1)), rows, width
    stacked = len(weight.shape) == 3
    if stacked and shape in ((matrices,), (matrices, 1), (matrices, 1, 1)):
        return values.reshape(matrices, 1, 1), rows, width
    if not stacked and shape in ((rows,), (rows, 1)):
        return values.reshape(1, rows, 1), 1, width
    if len(shape) == len(weight.shape) and shape[:-2] == weight.shape[:-2]:
        values = values.reshape(matrices, *shape[-2:])
        for tall, wide in (*rectangles, (1, width)):
            if shape[-2:] == (-(-rows // tall), -(-width // wide)):
                return values, tall, wide
        if shape[-2] == rows and width % shape[-1] == 0:  # groups of inputs
            return values, 1, width // shape[-1]
    stated = " or ".join(f"{tall} x {wide}" for tall, wide in rectangles) or "no"
    need(False, scales, f"has shape {shape}, which fits no {weight.shape} weight in {stated} blocks")
    raise AssertionError
