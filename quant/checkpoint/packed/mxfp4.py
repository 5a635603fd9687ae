"""MXFP4 of gpt-oss: the experts' weights as 4-bit floats in blocks of 32 with a power-of-two scale.

    NAME_blocks   uint8 [experts, out, in / 32, 16]   bits 7654       3210
                                                      input 2j + 1    input 2j    of byte j of a block
    NAME_scales   uint8 [experts, out, in / 32]       an exponent with bias 127

    W[e, o, i] = e2m1(q[e, o, i]) · 2^(scale[e, o, i // 32] - 127)

GGUF's MXFP4 holds the same values with the codes in another order. Packed weights are (out, in); the
checkpoints of gpt-oss in floats have (in, out).

Source: the tensors that gpt-oss was published in; OCP Microscaling Formats (MX) Specification 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..raw_tensors import RawCheckpoint, check_tensor
from .fp4 import MXFP4_GROUP, mxfp4
from .packed_weight import PackedWeight


def read(raw: RawCheckpoint) -> Iterator[PackedWeight]:
    """All weights packed this way. Raises DamagedFile."""
    for blocks in raw.ending("_blocks"):
        name = blocks.name.removesuffix("_blocks")
        raw.take(blocks.name, ("U8",))
        shape = blocks.shape
        check_tensor(
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
