"""Bounded reads of a tokenizer's files."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from ..errors import TokenizerError

MAX_BYTES = 1 << 29  # of a file; the largest have about 2^25
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_file(path: Path) -> bytes:
    """The contents of a regular file of at most MAX_BYTES; TokenizerError for a device, a pipe or a folder.

    Other errors are those of the operating system.
    """
    status = os.stat(path)  # opening a pipe would wait for its other end
    if not stat.S_ISREG(status.st_mode):
        raise TokenizerError(f"{path}: not an ordinary file")
    if status.st_size > MAX_BYTES:
        raise TokenizerError(f"{path}: too large for a tokenizer's file")
    return path.read_bytes()


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


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no such file."""
    raw = b""
    try:
        raw = read_file(path)
        text = raw.decode("utf-8-sig")
        content = json.loads(text)
        if _SURROGATE.search(text):  # escaped pairs are characters, but half of one is an error
            json.dumps(content, ensure_ascii=False).encode()
    except FileNotFoundError:
        return {}
    except TokenizerError:
        raise
    except OSError as error:
        raise TokenizerError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        if kind := not_the_file(raw):
            raise TokenizerError(f"{path}: is {kind}") from None
        raise TokenizerError(f"{path}: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return content
