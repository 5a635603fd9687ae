"""Model files in memory without being read: the kernel fetches a page when it is first touched."""

from __future__ import annotations

import mmap
import stat
from pathlib import Path

import numpy as np

from .errors import DamagedFile


class MappedFile:
    """A whole file as a read-only uint8 array `[n_bytes]`.

    The mapping lives as long as the last array that points into it. Raises OSError where the file
    cannot be opened, DamagedFile where it is empty or no ordinary file.
    """

    def __init__(self, path: Path) -> None:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a pipe would wait for a writer
            raise DamagedFile(f"{path.name}: is not an ordinary file")
        with path.open("rb") as file:  # a folder: IsADirectoryError
            try:
                self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise DamagedFile(f"{path.name}: is empty") from None
        self.path = path
        self.bytes = np.frombuffer(self.buffer, np.uint8)
        self.n_bytes = len(self.buffer)
        self._address = self.bytes.__array_interface__["data"][0]

    def will_read(self) -> None:
        """Let the kernel read far ahead, for whoever goes through the file from front to back.

        Faulting pages in one by one off a disk is more than ten times slower. Nothing happens on systems
        without madvise.
        """
        if hasattr(mmap, "MADV_SEQUENTIAL"):
            self.buffer.madvise(mmap.MADV_SEQUENTIAL)

    def release(self, array: np.ndarray) -> None:
        """Let the kernel take back the memory of a contiguous view of this file.

        Reading it again fetches it again. Nothing happens for arrays that lie elsewhere, and on
        systems without madvise.
        """
        if not hasattr(mmap, "MADV_DONTNEED") or not array.size:
            return
        start = array.__array_interface__["data"][0] - self._address
        if not 0 <= start < self.n_bytes:
            return
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        self.buffer.madvise(mmap.MADV_DONTNEED, page, start + array.nbytes - page)
