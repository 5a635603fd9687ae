"""Memory-mapped model files: the operating system reads a page when it is first accessed."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from ..untrusted import open_file
from .errors import DamagedFile


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
