"""MXFP4 of gpt-oss: the experts' weights in blocks of 32 with a power of two each.

    NAME_blocks   uint8 [experts, out, in / 32, 16]   bits 7654       3210
                                                      input 2j + 1    input 2j    of byte j of a block
    NAME_scales   uint8 [experts, out, in / 32]       an exponent, more by 127

    W[e, o, i] = e2m1(q[e, o, i]) · 2^(scale[e, o, i // 32] - 127)

GGUF's MXFP4 holds the same, in another order of codes. Here `out` comes first; in float files of gpt-oss `in`
does.

Source: the tensors that gpt-oss was published in; OCP Microscaling Formats (MX) Specification 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..raw_tensors import RawTensors, need
from .fp4 import MXFP4_GROUP, mxfp4
from .packed_weight import Found


def read(raw: RawTensors) -> Iterator[Found]:
    """Every weight that is packed so."""
    for found in raw.ending("_blocks"):
        name = found.name.removesuffix("_blocks")
        blocks = raw.take(found.name, ("U8",))
        shape = blocks.shape
        need(
            len(shape) >= 3 and shape[-1] == MXFP4_GROUP // 2,
            blocks,
            f"has shape {shape}, no blocks of 16 bytes",
        )
        scales = raw.take(f"{name}_scales", ("U8",), shape[:-1])
        rows, width = math.prod(shape[:-2]), MXFP4_GROUP * shape[-2]
        yield mxfp4(
            name,
            (*shape[:-2], width),
            blocks.data.reshape(rows, width // 2),
            scales.data.reshape(rows, -1),
            (blocks.data, scales.data),
        )
