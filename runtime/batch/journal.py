"""The journal of a batch: which rows are done, and how far its output files are sound.

It lies beside the output while a run is not complete. A header line in JSON says of which job it is. Then
come records of 28 bytes, little-endian:

    row: u64    end of the output: u64    end of the errors: u64    CRC-32 of these 24 bytes: u32

A row's record is written when its line is on the disk. What lies in the files behind the last sound record
is cut off when the run is resumed, and its rows are done again: so that every row is there exactly once.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...quant.safe_files import NewFile
from .rows import BatchError

RECORD = struct.Struct("<QQQI")
MAX_HEADER = 1 << 16  # bytes
MAX_ROW = 1 << 40


class RowSet:
    """A set of row numbers in a bitmap, so that a million rows take 125 kB."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __contains__(self, row: int) -> bool:
        byte, bit = divmod(row, 8)
        return byte < len(self._bits) and bool(self._bits[byte] >> bit & 1)

    def add(self, row: int) -> None:
        byte, bit = divmod(row, 8)
        if byte >= len(self._bits):
            self._bits.extend(bytes(max(byte + 1 - len(self._bits), len(self._bits))))
        self._n += not self._bits[byte] >> bit & 1
        self._bits[byte] |= 1 << bit


class Journal:
    """The journal in the file `path`; begin with `create` or `resume`.

    `done` has the rows that are complete, `ends` the sound lengths in bytes of the output and of the errors.
    """

    def __init__(self, path: Path, file: Any, done: RowSet, ends: tuple[int, int]) -> None:
        self.path = path
        self.done = done
        self.ends = ends
        self._file = file

    @classmethod
    def create(cls, path: Path, job: dict[str, Any]) -> Journal:
        """A new journal of `job`, what a run must have in common with the one that it resumes."""
        header = json.dumps(job).encode() + b"\n"
        with NewFile(path) as file:
            file.write(header)
        return cls(path, path.open("ab"), RowSet(), (0, 0))

    @classmethod
    def resume(cls, path: Path, job: dict[str, Any]) -> Journal:
        """The journal that is there. BatchError if it is of another job, or damaged."""
        with path.open("rb") as file:
            header = file.readline(MAX_HEADER)
            try:
                known = json.loads(header)
            except (ValueError, RecursionError):
                known = None
            if not header.endswith(b"\n") or not isinstance(known, dict):
                raise BatchError(f"{path.name} is no journal of a batch; --force begins anew")
            _check_same(known, job)
            done, ends, sound = RowSet(), (0, 0), file.tell()
            while len(record := file.read(RECORD.size)) == RECORD.size:
                row, output, errors, crc = RECORD.unpack(record)
                if crc != zlib.crc32(record[:-4]) or row > MAX_ROW:
                    break
                done.add(row)
                ends, sound = (output, errors), sound + RECORD.size
        os.truncate(path, sound)
        return cls(path, path.open("ab"), done, ends)

    def add(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Note rows as done, each with the ends of output and errors behind it, which are on the disk."""
        records = bytearray()
        for row in rows:
            self.done.add(row[0])
            body = struct.pack("<QQQ", *row)
            records += body + struct.pack("<I", zlib.crc32(body))
            self.ends = row[1:]
        self._file.write(records)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Leave the journal where it is: the run may be resumed."""
        self._file.close()

    def remove(self) -> None:
        """Remove the journal: the run is complete."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def _check_same(known: dict[str, Any], job: dict[str, Any]) -> None:
    other = [key for key in known.keys() | job.keys() if known.get(key) != job.get(key)]
    if other:
        raise BatchError(
            f"the output was begun with another {', '.join(sorted(other))}; run the command that began it, "
            "or begin anew with --force"
        )
