"""The header of a safetensors file: 8 bytes of length, and a JSON object with an entry for each tensor.

The safetensors library checks it (sizes, gaps, overlaps, coverage of the file) before it is used. The library
bounds its bytes but not its entries, so these are counted first.

Source: the safetensors format description.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...untrusted import check_marks
from ..errors import DamagedFile
from ..foreign import HEAD_BYTES, foreign_kind
from ..mapped_file import MappedFile
from .json_files import parse_object

MAX_BYTES = 1 << 25  # of a header; one tensor takes about 100
MAX_MARKS = 1 << 20  # as in untrusted.Limits; one tensor takes about 15
MAX_TENSORS = 1 << 16  # of a file; the largest models have 200,000 in a hundred files


@dataclass(frozen=True)
class SafetensorsHeader:
    """`entries` by tensor, each with its dtype, shape and data_offsets from byte `data_start` of the file on;
    `metadata` is what the writer of the file put beside them."""

    entries: dict[str, dict[str, Any]]
    metadata: dict[str, str]
    data_start: int


def read_header(file: MappedFile) -> SafetensorsHeader:
    """The header of a file, checked. Raises DamagedFile, which says what another kind of file is."""
    try:
        return _checked_header(file)
    except DamagedFile:
        if kind := foreign_kind(file.buffer[:HEAD_BYTES], "safetensors"):
            raise DamagedFile(f"{file.path.name}: is not a safetensors file, but {kind}") from None
        raise


def _checked_header(file: MappedFile) -> SafetensorsHeader:
    from safetensors import SafetensorError, safe_open

    name = file.path.name
    data_start = 8 + int.from_bytes(file.buffer[:8], "little")
    if data_start - 8 > MAX_BYTES:
        raise DamagedFile(f"{name}: claims a header of {data_start - 8} bytes; at most {MAX_BYTES} are read")
    raw = file.buffer[8:data_start]
    check_marks(raw, name, MAX_MARKS, DamagedFile)
    try:
        with safe_open(file.path, "np"):
            pass  # opening checks the header
    except SafetensorError as error:
        raise DamagedFile(f"{name}: {' '.join(str(error).split())}") from None
    header = parse_object(raw, name, MAX_MARKS)
    metadata = header.pop("__metadata__", None) or {}
    if len(header) > MAX_TENSORS:
        raise DamagedFile(f"{name}: has {len(header)} tensors; at most {MAX_TENSORS} are read")
    return SafetensorsHeader(header, metadata, data_start)
