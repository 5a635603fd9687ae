"""Copies between GPU memory and host memory: of rows, and of words by a kernel, which starts sooner."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .abi.arguments import Region
from .compile.kernel import Kernels, kernel, pack_arguments
from .driver.launch import Launch
from .kernels.common import mapped


def copy_words(kernels: Kernels, source: int, out: int, n_bytes: int) -> Launch:
    """A launch that copies `n_bytes`, a multiple of 4. One of the addresses may be in pinned host memory."""
    early = kernels.device.capability >= (9, 0)
    what = kernel(mapped.copy_words, 256, PDL=int(early))
    n = n_bytes // 4
    function, arguments = kernels.function(what), pack_arguments(source, out, n)
    return Launch(what.name, function, (-(-n // 256), 1, 1), what.threads, 0, arguments, early)


def copy_rows(copy: Callable[[int, np.ndarray], None], region: Region, rows: np.ndarray) -> None:
    """Copy between the rows of a region and of an array [rows, width]: in one call if both are contiguous."""
    if rows.flags.c_contiguous and region.stride == rows.strides[0]:
        copy(region.address, rows)
        return
    for i, row in enumerate(rows):
        copy(region.address + i * region.stride, row)
