"""Round-to-nearest: the scale of a block follows from its extremes, and no search is made.

The bytes are those of the `gguf` package. `NEAREST_KERNELS` are the formats that have a compiled kernel; the
others go through `BlockFormat.quantize`.
"""

from __future__ import annotations

import numpy as np

from ..jit.kernel import CpuKernel

F32_SOURCE, F16_SOURCE, BF16_SOURCE = range(3)  # values of `source_type`
SOURCE_TYPES = {"F32": F32_SOURCE, "F16": F16_SOURCE, "BF16": BF16_SOURCE}

# Fields of the kernels' argument record, all int64
_FIELDS = (
    "source",  # address of n_blocks · 32 floats of `source_type`
    "source_type",
    "n_blocks",
    "out",  # address of the encoded blocks
    "scratch",  # address of SCRATCH_BYTES
    "zero_nonfinite",  # whether NaN and infinity become 0
    "nonfinite",  # address of an int64; set to 1, and encoding stops, at NaN or infinity otherwise
)
ENCODE = np.dtype([(name, np.int64) for name in _FIELDS])
SCRATCH_BYTES = 32 * 4 + 32  # 32 weights in float32, and their codes

NEAREST_KERNELS = {
    name: CpuKernel(f"{__package__}.round_to_nearest_kernels", "ENCODE_TO_NEAREST", name)
    for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
}


def encode_to_nearest(
    source: np.ndarray, source_format: str, name: str, out: np.ndarray, zero_nonfinite: bool
) -> bool:
    """Encode contiguous uint8 `source`, floats of `source_format`, as blocks of format `name` into `out`.

    Returns False, with `out` undefined, if a weight is not finite and `zero_nonfinite` is not set.
    """
    arguments = np.zeros(1, ENCODE)
    scratch, nonfinite = np.empty(SCRATCH_BYTES, np.uint8), np.zeros(1, np.int64)
    width = 4 if source_format == "F32" else 2
    arguments["source"], arguments["source_type"] = source.ctypes.data, SOURCE_TYPES[source_format]
    arguments["n_blocks"], arguments["out"] = source.size // (32 * width), out.ctypes.data
    arguments["scratch"], arguments["zero_nonfinite"] = scratch.ctypes.data, zero_nonfinite
    arguments["nonfinite"] = nonfinite.ctypes.data
    NEAREST_KERNELS[name].compiled.ctypes(arguments.ctypes.data, 0, 0)
    return not nonfinite[0]
