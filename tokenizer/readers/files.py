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


def not_the_file(raw: bytes) -> str:
    """What is in a file's place after a download that went wrong, with what to do; "" if that is unknown."""
    text = raw[:512].removeprefix(b"\xef\xbb\xbf").lstrip()
    pointers = (b"version https://git-lfs.github.com/spec", b"version https://hawser.github.com/spec")
    others = ((b"\x1f\x8b", "packed with gzip"), (b"PK\x03\x04", "a ZIP archive"), (b"GGUF", "a GGUF file"))
    if not raw.strip(b"\0"):
        return f"{'full of zeros' if raw else 'empty'}: its download did not finish"
    if text.startswith(pointers):
        return "a Git LFS pointer in place of the file: `git lfs pull` fetches it"
    if re.match(rb"<!doctype html|<html|<head|<body|<\?xml", text, re.IGNORECASE):
        return (
            "a web page (HTML), as sites send instead of a file: use the link that downloads the file itself"
        )
    for start, kind in others:
        if raw.startswith(start):
            return f"{kind}, not a tokenizer's file"
    return ""


def read_object(path: Path, limits: Limits, within: Path | None = None) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no such file. Errors as for `read_file`."""
    try:
        raw = read_file(path, limits.n_bytes, within)
    except FileNotFoundError:
        return {}
    return parse_object(raw, path.name, limits.n_marks)


def parse_object(raw: bytes, name: str, most_marks: int) -> dict[str, Any]:
    """The JSON object in `raw`, called `name` in messages; `most_marks` as in `Limits`. TokenizerError."""
    try:
        content = parse_json(raw, name, most_marks, TokenizerError)
    except TokenizerError:
        if kind := not_the_file(raw):
            raise TokenizerError(f"{name}: is {kind}") from None
        raise
    if not isinstance(content, dict):
        raise TokenizerError(f"{name}: is not a JSON object")
    if _SURROGATE.search(raw) and not _PAIRED.fullmatch(raw.decode()):
        raise TokenizerError(f"{name}: has half of a surrogate pair, which is no character")
    return content
