"""Files of compiled code in a folder: each is whole and as it was written, or counts as missing."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..ownership import read_own_file

UNFINISHED = "unfinished-"  # how the names of files begin that are being written
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class FileCache:
    """The files `key + suffix` of a folder. A file is the SHA-256 of its content, then the content.

    A file appears under its name complete, by a rename, even if several processes write it at once. What is
    damaged all the same is found by its digest. The digest is no signature: who wrote a file is told by its
    owner and its mode (`read_own_file`), and by the folder, which the caller has checked
    (`ownership.private_folder`). Nothing here raises OSError: where the disk is full or read-only, `store`
    has no effect, and the code is compiled again next time.
    """

    folder: Path
    suffix: str

    def path(self, key: str) -> Path:
        """Where the file for `key` is or would be."""
        return self.folder / f"{key}{self.suffix}"

    def has(self, key: str) -> bool:
        """Whether there is a file for `key`, be it one that `load` does not take."""
        return self.path(key).exists()

    def load(self, key: str) -> bytes | None:
        """The content for `key`; None if it is missing, damaged, or may have been written by another user."""
        try:
            file = read_own_file(self.path(key))
        except OSError:
            return None
        digest, content = file[:_DIGEST_BYTES], file[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def store(self, key: str, content: bytes) -> None:
        """Write the file for `key`, in place of one that is there."""
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=UNFINISHED, dir=self.folder)
            try:
                with open(descriptor, "wb") as file:
                    file.write(hashlib.sha256(content).digest() + content)
                os.replace(name, self.path(key))
            except BaseException:
                with suppress(OSError):
                    os.unlink(name)
                raise

    def remove(self, key: str) -> None:
        """Delete the file for `key`, if it is there."""
        with suppress(OSError):
            self.path(key).unlink()
