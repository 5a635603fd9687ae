"""Writing GGUF files tensor by tensor, so that a model never is in memory as a whole.

A file is written under a temporary name in the same folder and renamed when it is complete. An error, Ctrl-C
or SIGTERM removes it; if a kill leaves it, the next attempt replaces it.

The `gguf` package writes header, metadata and tensor records; source of the format: the GGUF specification.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ... import KukriError
from ..block import BlockFormat
from .metadata import ARRAY, STRING
from .string_array import StringArray

ALIGNMENT = 32
SPARE_BYTES = 1 << 24  # free disk space beyond the tensors, for metadata and the file system
_SHARD_KEYS = ("split.no", "split.count", "split.tensors.count")


class NoRoom(KukriError, OSError):
    """The disk has too little free space for the file; the message says how much is needed and free."""


@dataclass(frozen=True)
class TensorRecord:
    """A tensor's entry in the header: name, shape in NumPy order, format."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat

    @property
    def n_bytes(self) -> int:
        rows = 1
        for n in self.shape[:-1]:
            rows *= n
        return rows * self.format.row_bytes(self.shape[-1])


def padded(n: int, alignment: int = ALIGNMENT) -> int:
    """n rounded up to a multiple of `alignment`."""
    return -(-n // alignment) * alignment


def temporary_name(path: Path) -> Path:
    """The name that a file has until it is complete."""
    return path.with_name(f".{path.name}.partial")


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    types: Mapping[str, int],
    tensors: Sequence[TensorRecord],
    data: Iterable[Iterable[np.ndarray]],
) -> int:
    """Write a GGUF file, replacing an older one of that name when it is complete; returns its size in bytes.

    - `metadata`: values as in `GGUFFile.metadata`; `general.architecture` is required. `types` are the GGUF
      value types of keys whose type does not follow from Python's (uint32, float32, bool, string).
    - `tensors`, `data`: the records, and in the same order each tensor's bytes in pieces (uint8 arrays).

    Raises NoRoom before anything is written if the disk has too little space, OSError if the file cannot be
    written, ValueError if a tensor's data have another size than its record; errors of `data` pass through.
    """
    size = sum(padded(tensor.n_bytes) for tensor in tensors) + SPARE_BYTES
    _check_room(path, size)
    temporary = temporary_name(path)
    with _removed_on_exit(temporary):
        _write_header(temporary, metadata, types, tensors)
        with open(temporary, "r+b") as file:
            file.seek(0, os.SEEK_END)
            _pad(file)
            for tensor, pieces in zip(tensors, data, strict=True):
                written = 0
                for piece in pieces:
                    file.write(np.ascontiguousarray(piece).data)
                    written += piece.nbytes
                if written != tensor.n_bytes:
                    raise ValueError(f"tensor {tensor.name} got {written} bytes instead of {tensor.n_bytes}")
                _pad(file)
            file.flush()
            os.fsync(file.fileno())
            n_bytes = file.tell()
        os.replace(temporary, path)
    _sync_folder(path.parent)
    return n_bytes


def _check_room(path: Path, n_bytes: int) -> None:
    leftover = temporary_name(path)
    reused = leftover.stat().st_size if leftover.exists() else 0
    free = shutil.disk_usage(path.parent).free + reused
    if free < n_bytes:
        raise NoRoom(
            f"{path.parent}: {path.name} needs {n_bytes / 1e9:.2f} GB, but only {free / 1e9:.2f} GB are free"
        )


def _write_header(
    path: Path, metadata: Mapping[str, Any], types: Mapping[str, int], tensors: Sequence[TensorRecord]
) -> None:
    import logging

    import gguf

    logging.getLogger("gguf").setLevel(logging.ERROR)
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    writer.data_alignment = ALIGNMENT
    for key, value in metadata.items():
        if key == "general.architecture" or key in _SHARD_KEYS or key == "general.alignment":
            continue
        kind, value, inner = _typed(value, types.get(key))
        if kind != ARRAY or len(value):  # the package cannot write empty arrays
            writer.add_key_value(
                key, value, gguf.GGUFValueType(kind), None if inner is None else gguf.GGUFValueType(inner)
            )
    for tensor in tensors:
        raw = gguf.GGMLQuantizationType(tensor.format.ggml_type)
        shape = (*tensor.shape[:-1], tensor.format.row_bytes(tensor.shape[-1]))
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), tensor.n_bytes, raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


_BY_DTYPE = {  # NumPy dtype → GGUF value type
    "u1": 0,
    "i1": 1,
    "u2": 2,
    "i2": 3,
    "u4": 4,
    "i4": 5,
    "f4": 6,
    "b1": 7,
    "u8": 10,
    "i8": 11,
    "f8": 12,
}


def _typed(value: Any, kind: int | None) -> tuple[int, Any, int | None]:
    """GGUF value type, value, and element type of an array (None: the gguf package infers it)."""
    if isinstance(value, np.ndarray):
        return ARRAY, value.tolist(), _BY_DTYPE[value.dtype.str[1:]]
    if isinstance(value, StringArray):
        return ARRAY, value.packed.split(b"\0")[1:-1], STRING
    if isinstance(value, list):
        if not value or isinstance(value[0], str | bytes):
            return ARRAY, value, STRING
        return ARRAY, [_typed(inner, None)[1] for inner in value], None
    if kind is None:
        kind = next(
            k for t, k in ((bool, 7), (int, 4), (float, 6), ((str, bytes), STRING)) if isinstance(value, t)
        )
    return kind, value, None


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


@contextmanager
def _removed_on_exit(path: Path) -> Iterator[None]:
    """Remove `path`, if it still exists, when the block ends; SIGTERM raises SystemExit so that it does."""

    def terminated(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, terminated) if main else None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        if main:
            signal.signal(signal.SIGTERM, before)


def _sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that a rename in it survives a crash; where the system allows it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
