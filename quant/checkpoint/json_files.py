"""JSON of a checkpoint: its files, and JSON inside of other files; all of bounded size."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ...untrusted import Limits, parse_json, read_file
from ..errors import DamagedFile
from ..foreign import HEAD_BYTES, foreign_kind
from ..gguf.metadata import quoted

# The largest configurations list what each expert of each layer is packed with; the largest indexes have a
# line for each of 200,000 tensors.
CONFIG_LIMITS = Limits(n_bytes=1 << 24, n_marks=1 << 20)
INDEX_LIMITS = Limits(n_bytes=1 << 25, n_marks=3 << 18)


def read_object(path: Path, limits: Limits, within: Path) -> dict[str, Any]:
    """The JSON object in a file of the folder `within`, in which no key may appear twice.

    Raises DamagedFile, also for a link that leads out of the folder; OSError.
    """
    raw = read_file(path, limits.n_bytes, DamagedFile, within)
    return parse_object(raw, path.name, limits.n_marks)


def parse_object(raw: bytes, name: str, most_marks: int) -> dict[str, Any]:
    """The JSON object in `raw`, called `name` in messages; `most_marks` as in `Limits`. DamagedFile."""
    try:
        value = parse_json(raw, name, most_marks, DamagedFile, _distinct)
    except DamagedFile:
        if kind := foreign_kind(raw[:HEAD_BYTES], "JSON"):
            raise DamagedFile(f"{name}: is {kind}") from None
        raise
    if not isinstance(value, dict):
        raise DamagedFile(f"{name}: is not a JSON object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"{quoted(counts.most_common(1)[0][0])} appears twice")
    return members
