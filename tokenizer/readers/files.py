"""Reading a tokenizer's files whole, but nothing that does not end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import TokenizerError

MAX_BYTES = 1 << 29  # of a file; the largest have about 2^25


def read_file(path: Path) -> bytes:
    """What is in a regular file of bearable size; TokenizerError for a device, a pipe or a folder.

    Other errors are those of the operating system.
    """
    status = os.stat(path)  # opening a pipe would wait for its other end
    if not stat.S_ISREG(status.st_mode):
        raise TokenizerError(f"{path}: not an ordinary file")
    if status.st_size > MAX_BYTES:
        raise TokenizerError(f"{path}: too large for a tokenizer's file")
    return path.read_bytes()
