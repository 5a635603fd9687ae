"""Bounded reads of a tokenizer's files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...untrusted import Limits, parse_json
from ...untrusted import read_file as read_ordinary_file
from ..errors import TokenizerError

# tokenizer.json and tekken.json: the largest has 33 MB and 2.7 million marks
VOCABULARY_LIMITS = Limits(n_bytes=3 << 24, n_marks=3 << 20)
CONFIG_LIMITS = Limits(n_bytes=1 << 24, n_marks=1 << 20)
TEMPLATE_BYTES = 1 << 20

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PAIRED = re.compile(  # texts in which the halves of surrogate pairs are escaped together or not at all
    r"(?:[^\\]++|\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?!u[dD][89a-fA-F]).))*+",
    re.DOTALL,
)


def read_file(path: Path, most: int, within: Path | None = None) -> bytes:
    """The contents of an ordinary file of at most `most` bytes.

    `within` is the model's folder, out of which the file must not lead; None for a file that the user named.
    TokenizerError also for what the operating system refuses, but FileNotFoundError for a missing file.
    """
    try:
        return read_ordinary_file(path, most, TokenizerError, within)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TokenizerError(f"{path}: {error.strerror or error}") from None


def read_object(path: Path, limits: Limits, within: Path | None = None) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no such file. Errors as for `read_file`."""
    try:
        raw = read_file(path, limits.n_bytes, within)
    except FileNotFoundError:
        return {}
    return parse_object(raw, path.name, limits.n_marks)


def parse_object(raw: bytes, name: str, most_marks: int) -> dict[str, Any]:
    """The JSON object in `raw`, called `name` in messages; `most_marks` as in `Limits`. TokenizerError."""
    content = parse_json(raw, name, most_marks, TokenizerError)
    if not isinstance(content, dict):
        raise TokenizerError(f"{name}: is not a JSON object")
    if _SURROGATE.search(raw) and not _PAIRED.fullmatch(raw.decode()):
        raise TokenizerError(f"{name}: has half of a surrogate pair, which is no character")
    return content
