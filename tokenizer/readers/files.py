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


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no such file."""
    try:
        text = read_file(path).decode("utf-8-sig")
        content = json.loads(text)
        if _SURROGATE.search(text):  # escaped pairs are characters, but half of one is an error
            json.dumps(content, ensure_ascii=False).encode()
    except FileNotFoundError:
        return {}
    except TokenizerError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return content
