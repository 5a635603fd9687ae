"""FP8: 8-bit floats with a scale for the tensor, each output, each group of inputs, or each R x C block.

    weight               float8 [(experts,) out, in]   e4m3: s eeee mmm, or e5m2: s eeeee mm
    weight_scale_inv     float []                      per tensor; or
    or weight_scale            [out] or [out, 1]       per output; or
                               [ceil(out / R), ceil(in / C)]   per block of R outputs and C inputs; the
                                                       last blocks may be smaller. Stacked experts have
                                                       a first axis here too

    W[o, i] = weight[o, i] · scale[o // R, i // C]; `weight_scale_inv` is a factor as well, despite its name

No GGUF type has these levels, so weights become floats. The configuration states R and C: where the last
blocks are smaller, they do not follow from the shapes.

Sources: Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; DeepSeek-AI 2024, "DeepSeek-V3"; the
tensors that transformers, compressed-tensors, FBGEMM and ModelOpt write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..lazy_rows import Index, row_numbers
from ..raw_tensors import FLOAT8, FLOATS, RawCheckpoint, RawTensor, check_tensor, float8_values
from .bit_packing import look_up
from .lossless import encode_floats, float_formats_of_products
from .packed_weight import PackedWeight

# see `float_formats_of_products`
EXTREMES = {"F8_E4M3": (2.0**-9, 1.875, 448.0), "F8_E5M2": (2.0**-16, 1.75, 57344.0)}
ENDINGS = ("_scale_inv", "_scale")


def read(raw: RawCheckpoint, block_sizes: Sequence[tuple[int, int]]) -> Iterator[PackedWeight]:
    """All FP8 weights; `block_sizes` are the (R, C) that the configuration states. Raises DamagedFile."""
    for weight in raw:
        if weight.dtype in FLOAT8 and not weight.name.endswith(ENDINGS):
            yield _read_one(raw, weight, block_sizes)


def _read_one(raw: RawCheckpoint, weight: RawTensor, block_sizes: Sequence[tuple[int, int]]) -> PackedWeight:
    raw.take(weight.name, FLOAT8)
    check_tensor(
        len(weight.shape) in (2, 3),
        weight,
        f"has shape {weight.shape}, not two dimensions, or three of experts",
    )
    scale_names = [weight.name + ending for ending in ENDINGS if weight.name + ending in raw]
    check_tensor(scale_names, weight, "has no scales")
    scales = raw.take(scale_names[0], (*FLOATS, "F8_E8M0"))
    rows, width = weight.shape[-2:]
    matrices = math.prod(weight.shape[:-2])
    values, block_rows, block_columns = _block_scales(weight, scales, block_sizes)
    codes = weight.array.reshape(matrices * rows, width)
    table = float8_values(weight.dtype)
    columns = None if values.shape[-1] == 1 else np.arange(width) // block_columns
    last_scale = values.shape[1] - 1

    def encode(index: Index, form: str) -> np.ndarray:
        matrix, row = np.divmod(row_numbers(index), rows)
        row_scales = values[matrix, np.minimum(row // block_rows, last_scale)]  # [n, 1 or blocks a row]
        out = look_up(table, codes[index])
        out *= row_scales if columns is None else row_scales[:, columns]
        return encode_floats(out, form)

    def floats() -> tuple[str, ...]:
        return float_formats_of_products(values, EXTREMES[weight.dtype])

    return PackedWeight(weight.name, weight.shape, (), floats, encode, (weight.data, scales.data))


def _block_scales(
    weight: RawTensor, scales: RawTensor, block_sizes: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, int, int]:
    """Scales as float32 [experts, blocks down, blocks across], and how many rows and columns a block has."""
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
        for tall, wide in (*block_sizes, (1, width)):
            if shape[-2:] == (-(-rows // tall), -(-width // wide)):
                return values, tall, wide
        if shape[-2] == rows and width % shape[-1] == 0:  # groups of inputs
            return values, 1, width // shape[-1]
    stated = " or ".join(f"{tall} x {wide}" for tall, wide in block_sizes) or "no"
    check_tensor(False, scales, f"has shape {shape}, which fits no {weight.shape} weight in {stated} blocks")
    raise AssertionError
