"""Copies between GPU memory and pinned host memory by a kernel, which starts sooner than a driver copy."""

from __future__ import annotations

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
