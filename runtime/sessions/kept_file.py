"""The files of this room: named arrays behind a small header, with a checksum of everything.

    bytes 0-7     "kukri/1\\n"
    bytes 8-15    two little-endian uint32: the length of the header, and its CRC-32
    header        JSON in UTF-8: `kind`, `about`, and `parts`: for each its name, dtype, shape and CRC-32
    parts         little-endian, one behind the other, each from a multiple of 64 bytes of the file on

A file is exactly as long as its parts say. It is memory-mapped when it is read.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...quant.errors import DamagedFile
from ...quant.mapped_file import MappedFile
from ...quant.safe_files import NewFile
from ...untrusted import parse_json

MAGIC = b"kukri/1\n"
ALIGNMENT = 64  # bytes
LONGEST_HEADER = 1 << 20  # bytes
MOST_MARKS = 1 << 16  # of the header; a part has about ten
MOST_PARTS = 4096
_DTYPES: dict[str, np.dtype[Any]] = {"u8": np.dtype(np.uint8), "i32": np.dtype("<i4"), "f32": np.dtype("<f4")}


@dataclass(frozen=True)
class KeptFile:
    """What such a file holds: `about`, a JSON object, and read-only arrays by name, which map the file."""

    about: Mapping[str, Any]
    parts: Mapping[str, np.ndarray]


def write_kept_file(
    path: Path, kind: str, about: Mapping[str, Any], parts: Mapping[str, np.ndarray | Sequence[np.ndarray]]
) -> int:
    """Write a file that only this user can read, in place of one that is there; returns its bytes.

    A part is an array of one of the dtypes uint8, int32 and float32, or a list of equal ones, which lie one
    behind the other as the rows of one array. The file is there whole or not at all. Raises OSError.
    """
    rows = {
        name: [np.ascontiguousarray(each) for each in (part if isinstance(part, Sequence) else [part])]
        for name, part in parts.items()
    }
    listed = []
    for name, part in parts.items():
        checksum = 0
        for row in rows[name]:
            checksum = zlib.crc32(row.data, checksum) if row.size else checksum
        if isinstance(part, Sequence):
            first = part[0] if part else np.empty(0, np.uint8)
            dtype, shape = first.dtype, (len(part), *first.shape)
        else:
            dtype, shape = part.dtype, part.shape
        code = next(code for code, each in _DTYPES.items() if each == dtype)
        listed.append([name, code, list(shape), checksum])
    header = {"kind": kind, "about": about, "parts": listed}
    text = json.dumps(header, ensure_ascii=False).encode()
    with NewFile(path, private=True) as file:
        sizes = len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little")
        n = file.write(MAGIC + sizes + text)
        for arrays in rows.values():
            n += file.write(b"\0" * (-n % ALIGNMENT))
            for array in arrays:
                n += file.write(array.data) if array.size else 0
    return n


def read_kept_file(path: Path, kind: str) -> KeptFile:
    """A file of this `kind`, which messages call a "session" or the like.

    Raises DamagedFile for one that is none, or in which a bit is wrong, and OSError.
    """
    name = path.name
    file = MappedFile(path)
    if bytes(file.bytes[: len(MAGIC)]) != MAGIC:
        raise DamagedFile(f"{name} is no {kind}, or one of another version of kukri")
    start = len(MAGIC) + 8
    size, checksum = (int.from_bytes(file.buffer[i : i + 4], "little") for i in (start - 8, start - 4))
    if size > LONGEST_HEADER:
        raise DamagedFile(f"{name} is a damaged {kind}: its header claims {size} bytes")
    raw = file.buffer[start : start + size]
    if len(raw) != size or zlib.crc32(raw) != checksum:
        raise DamagedFile(f"{name} is a damaged {kind}: its header is not what was written")
    header = parse_json(raw, name, MOST_MARKS, DamagedFile)
    if not isinstance(header, dict) or header.get("kind") != kind:
        raise DamagedFile(f"{name} is no {kind}")
    try:
        return KeptFile(_object(header["about"]), _parts(file, start + size, header["parts"]))
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        reason = problem.args[0] if isinstance(problem, ValueError) else "its header lacks something"
        raise DamagedFile(f"{name} is a damaged {kind}: {reason}") from None


def _object(about: Any) -> dict[str, Any]:
    if not isinstance(about, dict):
        raise TypeError
    return about


def _parts(file: MappedFile, at: int, listed: Any) -> dict[str, np.ndarray]:
    """The arrays of a header's list. Raises KeyError, TypeError or ValueError for a list that is none."""
    if not isinstance(listed, list) or len(listed) > MOST_PARTS:
        raise TypeError
    parts: dict[str, np.ndarray] = {}
    for name, code, shape, checksum in listed:
        dtype = _DTYPES[code]
        if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 8:
            raise TypeError
        begin = at + -at % ALIGNMENT
        if file.bytes[at:begin].any():
            raise ValueError("there is something between two parts")
        at = begin
        n_bytes = math.prod(shape) * dtype.itemsize
        if at + n_bytes > file.n_bytes:
            raise ValueError("its end is missing")
        raw = file.bytes[at : at + n_bytes]
        if zlib.crc32(raw.data) != checksum:
            raise ValueError(f"{name} is not what was written")
        parts[str(name)] = raw.view(dtype).reshape(shape)
        at += n_bytes
    if at != file.n_bytes:
        raise ValueError("there is something behind its end")
    return parts
