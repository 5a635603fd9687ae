"""Reading GGUF files: metadata and memory-mapped tensors, from one file or from shards.

Files are untrusted: every count, size and offset is compared with the file's length before it is used, and
sizes are Python integers, which do not overflow.

Source: the GGUF specification (docs/gguf.md of ggml), versions 2 and 3, little-endian; the names and
keys of split files are those of llama.cpp's gguf-split.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..block import QTensor
from ..errors import DamagedFile
from ..foreign import HEAD_BYTES, foreign_kind
from ..formats import BY_TYPE, FORMATS
from ..mapped_file import MappedFile
from .budget import HeaderBudget
from .metadata import UINT32, HeaderReader, quoted, require
from .tensor_factors import with_factors

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
_LEAST_KEY_BYTES = 8 + 1 + 4 + 1  # length, a key of one letter, type, a value of one byte
_LEAST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length, name, dimensions, one dimension, type, offset
_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_UNSUPPORTED_TYPES = {  # ggml types that are not supported, by name for the error message
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    41: "Q1_0",
}


@dataclass(frozen=True)
class GGUFFile:
    """An open GGUF model.

    `metadata` values are int, float, bool, str, list[str] (long arrays: StringArray), NumPy arrays (numeric
    arrays) or lists of these (nested arrays), and bytes for texts that are not UTF-8; `types` are the GGUF
    value types by key. `tensors` are read-only views of the mapped files, in file order; scales of NVFP4
    tensors are no tensors of their own here (`tensor_factors`). `n_bytes` is the size of all `paths`.
    """

    metadata: dict[str, Any]
    types: dict[str, int]
    tensors: dict[str, QTensor]
    paths: list[Path]
    n_bytes: int
    _files: tuple[MappedFile, ...]

    @classmethod
    def open(cls, path: str | Path, tensors: bool = True) -> GGUFFile:
        """Open the model in the file `path`, or the model that `path` is a shard of.

        With `tensors=False` only the metadata is read, and of split files only the first shard.
        Raises DamagedFile for anything wrong with the files, OSError if `path` cannot be opened.
        """
        paths = _shard_paths(Path(path))
        shards = []
        budget = HeaderBudget()
        for i, shard in enumerate(paths if tensors else paths[:1]):
            if i and not shard.exists():
                raise DamagedFile(f"{paths[0].name}: shard {i + 1} of {len(paths)} is missing: {shard.name}")
            shards.append(_Shard.read(shard, tensors, budget))
            _check_split(shards[i].file.path.name, shards[i].metadata, i, len(paths))
        return cls(
            metadata=shards[0].metadata,
            types=shards[0].types,
            tensors=with_factors(_joined(shards)) if tensors else {},
            paths=[shard.file.path for shard in shards],
            n_bytes=sum(shard.file.n_bytes for shard in shards),
            _files=tuple(shard.file for shard in shards),
        )

    def will_read(self) -> None:
        """Advise the kernel that the files are going to be read from front to back."""
        for file in self._files:
            file.will_read()

    def release(self, tensor: QTensor) -> None:
        """Let the kernel drop the tensor's pages; reading the tensor again fetches them from the file."""
        for file in self._files:
            file.release(tensor.data)


@dataclass(frozen=True)
class _Shard:
    file: MappedFile
    metadata: dict[str, Any]
    types: dict[str, int]
    tensors: dict[str, QTensor]

    @classmethod
    def read(cls, path: Path, tensors: bool, budget: HeaderBudget) -> _Shard:
        file = MappedFile(path)
        reader = HeaderReader(file, budget)
        _check_magic(reader)
        n_tensors = reader.count("tensors", _LEAST_TENSOR_BYTES, "tensors")
        n_keys = reader.count("metadata keys", _LEAST_KEY_BYTES, "keys")
        metadata, types = reader.metadata(n_keys)
        if not tensors:
            return cls(file, metadata, types, {})
        alignment = DEFAULT_ALIGNMENT
        if "general.alignment" in metadata:
            alignment = metadata["general.alignment"]
            if types["general.alignment"] != UINT32:
                raise reader.damaged("general.alignment is not a uint32")
            if alignment < 1 or alignment & (alignment - 1):
                raise reader.damaged(f"general.alignment is {alignment}, which is not a power of two")
        read = _read_tensors(reader, file, n_tensors, alignment)
        budget.spend("header_bytes", reader.position)
        return cls(file, metadata, types, read)


def _check_magic(reader: HeaderReader) -> None:
    magic = reader.take(4, "the magic number")
    if magic != MAGIC:
        kind = foreign_kind(reader.head(HEAD_BYTES), "GGUF")
        raise reader.damaged(
            f"is not a GGUF file, but {kind}" if kind else f"is not a GGUF file: it starts with {magic!r}"
        )
    version = reader.u32("the version")
    if version and not version & 0xFFFF:
        raise reader.damaged("is a big-endian GGUF file; only little-endian ones are supported")
    if version not in VERSIONS:
        raise reader.damaged(f"is GGUF version {version}; supported are 2 and 3")


def _read_tensors(reader: HeaderReader, file: MappedFile, n: int, alignment: int) -> dict[str, QTensor]:
    records = [_TensorRecord.read(reader, f"tensor {i + 1} of {n}") for i in range(n)]
    data_start = _padded(reader.position, alignment)
    tensors: dict[str, QTensor] = {}
    for record in records:
        label = f"tensor {quoted(record.name)}"
        if record.name in tensors:
            raise reader.damaged(f"{label} appears twice")
        if record.offset % alignment:
            raise reader.damaged(f"{label} is at offset {record.offset}, not a multiple of {alignment}")
        if data_start + record.offset + record.n_bytes > file.n_bytes:
            raise reader.damaged(f"{label} ({record.n_bytes} bytes) runs past the end of the file")
        tensors[record.name] = record.view(file, data_start)

    end, last = data_start, ""
    for record in sorted(records, key=lambda record: record.offset):
        if data_start + record.offset < end:
            raise reader.damaged(f"tensors {quoted(last)} and {quoted(record.name)} overlap")
        end, last = data_start + record.offset + record.n_bytes, record.name
    if MAGIC in (bytes(file.bytes[at : at + 4]) for at in (end, _padded(end, alignment))):
        raise reader.damaged("a second GGUF file follows its data; shards must not be concatenated")
    return tensors


@dataclass(frozen=True)
class _TensorRecord:
    name: str
    shape: tuple[int, ...]  # as in NumPy, the last dimension contiguous
    type: int
    offset: int  # from the start of the tensor data

    @classmethod
    def read(cls, reader: HeaderReader, label: str) -> _TensorRecord:
        name = reader.name(f"the name of {label}")
        label = f"tensor {quoted(name)}"
        n_dimensions = reader.u32(label)
        if not 1 <= n_dimensions <= MAX_DIMENSIONS:
            raise reader.damaged(f"{label} has {n_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed")
        shape = tuple(reader.u64(label) for _ in range(n_dimensions))[::-1]
        record = cls(name, shape, reader.u32(label), reader.u64(label))
        if 0 in shape:
            raise reader.damaged(f"{label} has a dimension of zero: {shape}")
        if record.type not in BY_TYPE:
            known = _UNSUPPORTED_TYPES.get(record.type, "unknown")
            raise reader.damaged(
                f"{label} has type {record.type} ({known}); supported are {', '.join(FORMATS)}"
            )
        form = BY_TYPE[record.type]
        if shape[-1] % form.block_size:
            raise reader.damaged(
                f"{label} is {form.name} with rows of {shape[-1]}, no multiple of {form.block_size}"
            )
        return record

    @property
    def row_bytes(self) -> int:
        return BY_TYPE[self.type].row_bytes(self.shape[-1])

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.row_bytes

    def view(self, file: MappedFile, data_start: int) -> QTensor:
        start = data_start + self.offset
        data = file.bytes[start : start + self.n_bytes].reshape(-1, self.row_bytes)
        return QTensor(self.name, BY_TYPE[self.type], self.shape, data)


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _shard_paths(path: Path) -> list[Path]:
    """All shards of the model that `path` belongs to, in order; `path` alone if its name is not a shard's."""
    match = _SHARD_NAME.fullmatch(path.name)
    if not match:
        return [path]
    no, count = int(match["no"]), int(match["count"])
    if not 1 <= no <= count:
        raise DamagedFile(f"{path.name}: there is no shard {no} of {count}")
    path.stat()  # an OSError for the file that was asked for; missing siblings are damage
    paths = [path.with_name(f"{match['stem']}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    if not paths[0].exists():
        raise DamagedFile(f"{path.name}: shard 1 of {count} is missing: {paths[0].name}")
    return paths


def _check_split(name: str, metadata: dict[str, Any], index: int, n_paths: int) -> None:
    """Check a file's split.* keys against its place among the shards."""
    count = require(metadata, "split.count", int, None)
    if count is None and n_paths > 1:
        raise DamagedFile(f"{name}: is named a shard but has no split.count")
    if (count or 1) != n_paths:
        if n_paths == 1:
            raise DamagedFile(f"{name}: is a shard of {count}; its name must be …-00001-of-{count:05}.gguf")
        raise DamagedFile(f"{name}: its split.count is {count}, not {n_paths}")
    if count and require(metadata, "split.no", int) != index:
        raise DamagedFile(f"{name}: is shard {metadata['split.no'] + 1} by its split.no, not {index + 1}")


def _joined(shards: list[_Shard]) -> dict[str, QTensor]:
    tensors: dict[str, QTensor] = {}
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if name in tensors:
                raise DamagedFile(f"{shard.file.path.name}: tensor {quoted(name)} is in an earlier shard too")
            tensors[name] = tensor
    first = shards[0]
    total = require(first.metadata, "split.tensors.count", int, len(tensors))
    if total != len(tensors):
        actual = f"the shards hold {len(tensors)} tensors"
        raise DamagedFile(f"{first.file.path.name}: split.tensors.count is {total}, but {actual}")
    return tensors
