"""Writing GGUF files tensor by tensor, so that a model never is in memory as a whole.

A file is written under a temporary name in the same folder and renamed when it is complete (`safe_files`). An
error, Ctrl-C or SIGTERM removes it; if a kill leaves it, the next attempt does.

The `gguf` package writes header, metadata and tensor records; source of the format: the GGUF specification.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from ... import KukriError
from ..block import BlockFormat
from ..safe_files import NewFile, remove_leftovers
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
    remove_leftovers(path)
    _check_room(path, size)
    with _unwound_by_sigterm(), NewFile(path) as file:
        _write_header(file, metadata, types, tensors)
        _pad(file)
        for tensor, pieces in zip(tensors, data, strict=True):
            written = 0
            for piece in pieces:
                file.write(np.ascontiguousarray(piece).data)
                written += piece.nbytes
            if written != tensor.n_bytes:
                raise ValueError(f"tensor {tensor.name} got {written} bytes instead of {tensor.n_bytes}")
            _pad(file)
        return file.tell()


def _check_room(path: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < n_bytes:
        raise NoRoom(
            f"{path.parent}: {path.name} needs {n_bytes / 1e9:.2f} GB, but only {free / 1e9:.2f} GB are free"
        )


def _write_header(
    file: BinaryIO, metadata: Mapping[str, Any], types: Mapping[str, int], tensors: Sequence[TensorRecord]
) -> None:
    """Write all before the tensors' bytes: header, metadata and tensor records."""
    import logging

    import gguf

    logging.getLogger("gguf").setLevel(logging.ERROR)
    writer = gguf.GGUFWriter(None, metadata["general.architecture"])
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
    # In place of `open_output_file`, which opens files by name: this one is open already.
    writer.fout, writer.state = [cast(Any, file)], gguf.gguf_writer.WriterState.EMPTY
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


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
def _unwound_by_sigterm() -> Iterator[None]:
    """A context in which SIGTERM raises SystemExit, so that the unfinished file is removed."""

    def terminated(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, terminated) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
