"""MLX: integer codes packed along the inputs, with a scale and an offset ("bias") for each group.

    weight   uint32 [(experts,) out, in · b / 32]     codes one after the other, low first; codes of 3, 5
                                                      or 6 bits may straddle words
    scales   float [(experts,) out, in / group size]  of either sign
    biases   float [(experts,) out, in / group size]

    W[o, i] = scales[o, g] · q[o, i] + biases[o, g],  g = i // group size

`quantization` in config.json gives bits and group size; for single modules, by name, it may give others, or
false. Embeddings and output matrices are packed as well. In the mode "mxfp4", the codes are e2m1 floats,
`scales` are uint8 exponents with bias 127, one for 32 inputs, and there are no `biases`.

Source: the `quantize` operation of MLX, and the files that mlx-lm writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..raw_tensors import FLOATS, RawCheckpoint, RawTensor, as_floats, check_tensor
from ..settings import Settings
from .bit_packing import unpack_rows
from .fp4 import MXFP4_GROUP, mxfp4
from .groupwise import GroupwiseCodes, regular_groups, with_offsets
from .packed_weight import PackedWeight

BITS = (2, 3, 4, 5, 6, 8)
MODES = ("affine", "mxfp4")


def read(raw: RawCheckpoint, settings: Settings) -> Iterator[PackedWeight]:
    """All weights packed by MLX. Raises DamagedFile, UnsupportedModel."""
    for weight in raw.ending(".weight"):
        if weight.dtype != "U32":
            continue
        of_module = settings.values.get(weight.name.removesuffix(".weight"))
        merged = settings
        if isinstance(of_module, dict):
            merged = Settings({**settings.values, **of_module}, f"{settings.source}: {weight.name}")
        yield _read_one(raw, weight, merged)


def _read_one(raw: RawCheckpoint, weight: RawTensor, settings: Settings) -> PackedWeight:
    base = weight.name.removesuffix("weight")
    mode = settings.one_of("mode", "affine", MODES, "MLX")
    bits = settings.integer("bits", 4)
    size = settings.integer("group_size", 64 if mode == "affine" else MXFP4_GROUP)
    if bits not in BITS:
        raise settings.fail("bits", f"one of {', '.join(map(str, BITS))}")
    raw.take(weight.name, ("U32",))
    check_tensor(
        len(weight.shape) in (2, 3), weight, f"has shape {weight.shape}, not two or three dimensions"
    )
    width, odd = divmod(32 * weight.shape[-1], bits)
    check_tensor(
        not odd and width % size == 0, weight, f"has no groups of {size} inputs of {bits} bits in a row"
    )
    rows, n_groups = math.prod(weight.shape[:-1]), width // size
    shape, of_scales = (*weight.shape[:-1], width), (*weight.shape[:-1], n_groups)
    words = weight.array.reshape(rows, -1)
    if mode == "mxfp4":
        exponents = raw.take(f"{base}scales", ("U8",), of_scales)
        check_tensor(
            bits == 4 and size == MXFP4_GROUP, weight, f"is MXFP4 with {bits} bits and groups of {size}"
        )
        packed = weight.data.reshape(rows, -1)
        return mxfp4(
            weight.name, shape, packed, exponents.array.reshape(rows, -1), (weight.data, exponents.data)
        )
    scales = raw.take(f"{base}scales", FLOATS, of_scales)
    biases = raw.take(f"{base}biases", FLOATS, of_scales)
    scale, bias = scales.array.reshape(rows, -1), biases.array.reshape(rows, -1)
    codes = GroupwiseCodes(
        weight.name,
        shape,
        bits,
        regular_groups(width, n_groups, size),
        lambda index: np.ascontiguousarray(unpack_rows(words[index], bits)),
        lambda index: as_floats(scale[index], scales.dtype),
        (weight.data, scales.data, biases.data),
    )
    return with_offsets(codes, lambda index: as_floats(bias[index], biases.dtype))
