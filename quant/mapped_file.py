"""Memory-mapped model files: the operating system reads a page when it is first accessed."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np

from ..untrusted import open_file
from .errors import DamagedFile

_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, which `mmap` has no name for


class MappedFile:
    """A whole file as a read-only uint8 array `[n_bytes]`.

    The mapping lives as long as the last array that points into it. `within` is the model's folder, for a
    file that must not be a link out of it. Raises OSError if the file cannot be opened, and DamagedFile if it
    is empty, not an ordinary file or such a link.
    """

    def __init__(self, path: Path, within: Path | None = None) -> None:
        with open_file(path, DamagedFile, within) as file:
            try:
                self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise DamagedFile(f"{path.name}: is empty") from None
        self.path = path
        self.bytes = np.frombuffer(self.buffer, np.uint8)
        self.n_bytes = len(self.buffer)
        self._address = self.bytes.__array_interface__["data"][0]

    def will_read(self) -> None:
        """Ask the operating system to read far ahead, before the file is read from front to back.

        From a disk, page faults one by one are more than ten times slower. Without madvise, this does
        nothing.
        """
        if hasattr(mmap, "MADV_SEQUENTIAL"):
            self.buffer.madvise(mmap.MADV_SEQUENTIAL)

    def release(self, array: np.ndarray) -> None:
        """Let the operating system drop the pages of a contiguous view of this file from memory.

        They are read anew at the next access. Nothing happens to an array outside this mapping, and on
        systems without madvise.
        """
        if not hasattr(mmap, "MADV_DONTNEED") or not array.size:
            return
        start = array.__array_interface__["data"][0] - self._address
        if not 0 <= start < self.n_bytes:
            return
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        self.buffer.madvise(mmap.MADV_DONTNEED, page, start + array.nbytes - page)


def populate(array: np.ndarray) -> None:
    """Let the operating system map the pages of a contiguous array of a mapped file at once.

    That is faster than a fault for every few pages when they are read. The GIL is released meanwhile. Where
    the system cannot do it, nothing happens.
    """
    if array.nbytes and (advise := _madvise()) is not None:
        start: int = array.__array_interface__["data"][0]
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        advise(page, start + array.nbytes - page, _POPULATE_READ)


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """The C library's madvise, which unlike that of `mmap` objects releases the GIL; None but on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes, advise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return cast("Callable[[int, int, int], int]", advise)
