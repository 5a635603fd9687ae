"""Bounded reads of files that a user names."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import BinaryIO

GZIP = b"\x1f\x8b"
_BLOCK = 1 << 20


class TooLong(ValueError):
    """A file, or what is packed in it, holds more than it may."""


def read_limited(file: BinaryIO, most: int) -> bytes:
    """All of a file of `most` bytes at most. TooLong for a longer one, which may have no end at all."""
    raw = file.read(most + 1)
    if len(raw) > most:
        raise TooLong(f"holds more than {most >> 20} MiB")
    return raw


def unpacked(raw: bytes, most: int) -> bytes:
    """What gzip packed, if it is at most `most` bytes: TooLong, or EOFError or zlib.error for damage."""
    pieces = []
    left = most
    while raw:
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            piece = stream.decompress(raw, _BLOCK)
            raw = stream.unconsumed_tail
            left -= len(piece)
            if left < 0:
                raise TooLong(f"holds more than {most >> 20} MiB")
            if not raw and not piece and not stream.eof:
                raise EOFError("cut short")
            pieces.append(piece)
        raw = stream.unused_data.lstrip(b"\0")  # members may follow each other, or padding
    return b"".join(pieces)


def read_file(path: Path, most: int) -> bytes:
    """read_limited of an ordinary file; OSError if it is none."""
    if not path.is_file() and path.exists():
        raise OSError(0, "not an ordinary file", str(path))
    with path.open("rb") as file:
        return read_limited(file, most)
