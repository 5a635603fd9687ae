"""By what a model is known again: a digest of everything that its keys and values depend on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...quant.errors import DamagedFile
from ...untrusted import open_file

WHOLE_BYTES = 4 << 20  # files up to this size are read whole, and of others as much at the beginning
SAMPLE_BYTES = 512
STRIDE = 1 << 16  # bytes from sample to sample, where that are no more than MOST_SAMPLES
MOST_SAMPLES = 1 << 14


def fingerprint(paths: Sequence[Path], scaled: Iterable[tuple[Path, float]] = ()) -> str:
    """A digest of a model's files and of the adapters on it, each a file and its scale (SHA-256).

    Of a large file its size, its beginning and samples from all of it are read, so close to each other that
    no tensor in which weights were changed as a whole is missed. Names and dates of files do not count.
    """
    digest = hashlib.sha256()
    for path in paths:
        _add(digest, path)
    for path, scale in scaled:
        digest.update(f"adapter {scale!r} ".encode())
        _add(digest, path)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, path: Path) -> None:
    with open_file(path, DamagedFile) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(f"{size} ".encode())
        digest.update(file.read(WHOLE_BYTES))
        stride = max(STRIDE, size // MOST_SAMPLES)
        for at in range(WHOLE_BYTES, size, stride):
            os.lseek(file.fileno(), at, os.SEEK_SET)
            digest.update(os.read(file.fileno(), SAMPLE_BYTES))
