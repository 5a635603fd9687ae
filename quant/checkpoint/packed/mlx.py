"""MLX: integers packed along the inputs, with a scale and an offset for each group.

    weight   uint32 [(experts,) out, in · b / 32]     codes one after the other, low first; those of 3, 5 or
                                                      6 bits lie across words
    scales   float [(experts,) out, in / group size]  of either sign
    biases   float [(experts,) out, in / group size]

    W[o, i] = scales[o, g] · q[o, i] + biases[o, g],  g = i // group size

Bits and group size are those of `quantization` in config.json, which may have others for single modules by
name, or false. Embeddings and output matrices are packed as well. In the mode "mxfp4", `scales` is uint8, an
exponent more by 127 for each 32 inputs, the codes are e2m1 floats, and there are no biases.

Source: the `quantize` operation of MLX, and the files that mlx-lm writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..raw_tensors import FLOATS, RawTensor, RawTensors, as_floats, need
from ..settings import Settings
from .bit_packing import unpack_row_words
from .fp4 import MXFP4_GROUP, mxfp4
from .groupwise import AffineGrid, regular_groups
from .packed_weight import Found

BITS = (2, 3, 4, 5, 6, 8)
MODES = ("affine", "mxfp4")


def read(raw: RawTensors, settings: Settings) -> Iterator[Found]:
    """Every weight that is packed so. DamagedFile, UnsupportedModel."""
    for weight in raw.ending(".weight"):
        if weight.dtype != "U32":
            continue
        own = settings.values.get(weight.name.removesuffix(".weight"))
        part = settings
        if isinstance(own, dict):
            part = Settings({**settings.values, **own}, f"{settings.source}: {weight.name}")
        yield _read_one(raw, weight, part)


def _read_one(raw: RawTensors, found: RawTensor, settings: Settings) -> Found:
    base = found.name.removesuffix("weight")
    mode = settings.one_of("mode", "affine", MODES, "MLX")
    bits = settings.integer("bits", 4)
    size = settings.integer("group_size", 64 if mode == "affine" else MXFP4_GROUP)
    if bits not in BITS:
        raise settings.fail("bits", f"one of {', '.join(map(str, BITS))}")
    weight = raw.take(found.name, ("U32",))
    need(len(weight.shape) in (2, 3), weight, f"has shape {weight.shape}, not two or three dimensions")
    width, odd = divmod(32 * weight.shape[-1], bits)
    need(not odd and width % size == 0, weight, f"has no groups of {size} inputs of {bits} bits in a row")
    rows, n_groups = math.prod(weight.shape[:-1]), width // size
    shape, of_scales = (*weight.shape[:-1], width), (*weight.shape[:-1], n_groups)
    words = weight.array.reshape(rows, -1)
    if mode == "mxfp4":
        exponents = raw.take(f"{base}scales", ("U8",), of_scales)
        need(bits == 4 and size == MXFP4_GROUP, weight, f"is MXFP4 with {bits} bits and groups of {size}")
        packed = weight.data.reshape(rows, -1)
        return mxfp4(
            found.name, shape, packed, exponents.array.reshape(rows, -1), (weight.data, exponents.data)
        )
    scales = raw.take(f"{base}scales", FLOATS, of_scales)
    biases = raw.take(f"{base}biases", FLOATS, of_scales)
    scale, bias = scales.array.reshape(rows, -1), biases.array.reshape(rows, -1)
    return AffineGrid(
        found.name,
        shape,
        bits,
        regular_groups(width, n_groups, size),
        lambda index: np.ascontiguousarray(unpack_row_words(words[index], bits)),
        lambda index: as_floats(scale[index], scales.dtype),
        lambda index: as_floats(bias[index], biases.dtype),
        (weight.data, scales.data, biases.data),
    ).found()
