"""What is known about a file's bytes before they arrive, and whether those that lie on the disk are these."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import BinaryIO

_BLOCK = 1 << 20  # bytes read at once


@dataclass(frozen=True)
class Expected:
    """Size and digests of a file; None where nobody states them.

    `sha1` is git's name of the file's bytes (the SHA-1 of a header and the bytes), which the Hub gives small
    files as their ETag, or the plain SHA-1, which some mirrors give them.
    """

    n_bytes: int | None
    sha256: str | None = None  # hexadecimal, as `sha1`
    sha1: str | None = None

    @property
    def digest(self) -> str | None:
        """The better one of the known digests."""
        return self.sha256 or self.sha1


@dataclass(frozen=True)
class Found:
    """What reading a file showed: its SHA-256, and how it differs from what was expected ("" if it does not,
    else the end of a sentence about the file)."""

    sha256: str
    difference: str


def compare(file: BinaryIO, expected: Expected, n_bytes: int) -> Found:
    """Read `file`, which has `n_bytes`, from its beginning, and compare it with `expected`. A file of another
    size is not read, and has no SHA-256 here."""
    if expected.n_bytes is not None and n_bytes != expected.n_bytes:
        size = f"{n_bytes} bytes" if n_bytes < expected.n_bytes else "more"
        return Found("", f"came with {size} instead of {expected.n_bytes} bytes")
    sha256 = hashlib.sha256()
    sha1s = (
        [hashlib.sha1(usedforsecurity=False), hashlib.sha1(usedforsecurity=False)] if expected.sha1 else []
    )
    if sha1s:
        sha1s[0].update(b"blob %d\0" % n_bytes)
    file.seek(0)
    while block := file.read(_BLOCK):
        for digest in (sha256, *sha1s):
            digest.update(block)
    got = sha256.hexdigest()
    if expected.sha256 is not None and got != expected.sha256:
        return Found(got, f"has SHA-256 {got[:12]}… instead of {expected.sha256[:12]}…")
    if expected.sha1 is not None and expected.sha1 not in [sha1.hexdigest() for sha1 in sha1s]:
        return Found(got, f"has SHA-1 {sha1s[0].hexdigest()[:12]}… instead of {expected.sha1[:12]}…")
    return Found(got, "")


def is_sha256(text: object) -> bool:
    """Whether `text` is a SHA-256 in hexadecimal, as the ETags of large files are."""
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{64}", text) is not None


def is_sha1(text: object) -> bool:
    """Whether `text` is a SHA-1 in hexadecimal, as the names of commits and the ETags of small files are."""
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{40}", text) is not None
