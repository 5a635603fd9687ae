"""Rounding to the nearest value without a search: what runs where nobody says what is important.

For formats that the `gguf` package can write, its bytes: `NEAREST_KERNELS` names the compiled kernels of those
that are worth one.
"""

from __future__ import annotations

import numpy as np

from ..jit.kernel import CpuKernel

F32_SOURCE, F16_SOURCE, BF16_SOURCE = range(3)  # values of `source_type`
SOURCE_TYPES = {"F32": F32_SOURCE, "F16": F16_SOURCE, "BF16": BF16_SOURCE}

# What the compiled part is told.
_FIELDS = (
    "source",  # address of n_blocks · 32 floats
    "source_type",
    "n_blocks",
    "out",
    "scratch",
    "zero_nonfinite",  # whether NaN and infinity count as 0
    "nonfinite",  # address of an int64 that becomes 1, if they do not and there are any; then it stops
)
PLAIN = np.dtype([(name, np.int64) for name in _FIELDS])
SCRATCH_BYTES = 32 * 4 + 32

NEAREST_KERNELS = {
    name: CpuKernel(f"{__package__}.round_to_nearest_kernels", "ENCODE_PLAIN", name)
    for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
}


def encode_to_nearest(
    source: np.ndarray, source_format: str, name: str, out: np.ndarray, zero_nonfinite: bool
) -> bool:
    """Encode contiguous uint8 `source`, floats of `source_format`, as blocks of format `name` into `out`.

    Returns False, with `out` undefined, where a weight is not finite and `zero_nonfinite` is not set.
    """
    arguments = np.zeros(1, PLAIN)
    scratch, nonfinite = np.empty(SCRATCH_BYTES, np.uint8), np.zeros(1, np.int64)
    width = 4 if source_format == "F32" else 2
    arguments["source"], arguments["source_type"] = source.ctypes.data, SOURCE_TYPES[source_format]
    arguments["n_blocks"], arguments["out"] = source.size // (32 * width), out.ctypes.data
    arguments["scratch"], arguments["zero_nonfinite"] = scratch.ctypes.data, zero_nonfinite
    arguments["nonfinite"] = nonfinite.ctypes.data
    NEAREST_KERNELS[name].compiled.ctypes(arguments.ctypes.data, 0, 0)
    return not nonfinite[0]
