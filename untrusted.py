"""Reading files of strangers: ordinary ones only, from where they belong, bounded in bytes and values.

`quant` and `tokenizer` read model files and import no sibling, so what both need is here, as their errors'
base is in the package itself. Each hands in the `error` that it raises, with a message of one line.

A folder is downloaded or unpacked as somebody else made it, its links included. A link could make any file of
this user part of a model, and a chat template is copied into converted files and shown. So files of a folder
are opened by `within`: where they lie in the end must be that folder. A file that the user names is not.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from . import KukriError

MAX_DEPTH = 64  # levels of arrays and objects in a JSON file; config.json and tokenizer.json have up to 10
_SHOWN = 200  # characters of a path in a message

# Nothing is followed and nothing is waited for; each flag where the system has it.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True)
class Limits:
    """What a kind of JSON file may hold: `n_bytes`, and `n_marks` of opening brackets, commas and colons.

    Every value has a mark before it, so they bound the objects that a parser makes. Brackets count twice,
    since lists and dictionaries cost most. Marks inside of strings count too.
    """

    n_bytes: int
    n_marks: int


def open_file(path: Path, error: type[KukriError], within: Path | None = None) -> BinaryIO:
    """An ordinary file, open for reading. `within`: the model's folder, which the file must not lead out of.

    Raises `error` for a device, a pipe, a socket or a link that leads elsewhere; OSError.
    """
    real = path if within is None else _resolved(path, within, error)
    _check_ordinary(os.stat(real).st_mode, path, error)  # opening some devices does something
    descriptor = os.open(real, _FLAGS if within is None else _FLAGS | _NO_LINK)
    try:
        _check_ordinary(os.fstat(descriptor).st_mode, path, error)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, most: int, error: type[KukriError], within: Path | None = None) -> bytes:
    """The contents of an ordinary file; `error` if it has over `most` bytes, and as for `open_file`."""
    with open_file(path, error, within) as file:
        stated = os.fstat(file.fileno()).st_size or most  # some of the system's files state 0
        raw = file.read(min(stated, most) + 1)  # which makes room for so many bytes
    if len(raw) > most:
        raise error(f"{path.name}: is larger than {most} bytes")
    return raw


def parse_json(
    raw: bytes,
    name: str,
    most_marks: int,
    error: type[KukriError],
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The value of a JSON text in UTF-8, which messages call `name`; `pairs` is json's object_pairs_hook.

    Raises `error` before anything is made of a text with over `most_marks` marks (see Limits), for one that
    nests more than MAX_DEPTH deep, and for one that is not JSON.
    """
    check_marks(raw, name, most_marks, error)
    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=pairs)
    except RecursionError:
        raise error(f"{name}: is nested too deeply") from None
    except ValueError as problem:  # also bytes that are not UTF-8, and endless digits
        raise error(f"{name}: is not valid JSON: {str(problem).splitlines()[0][:_SHOWN]}") from None
    if _is_deeper(value, MAX_DEPTH):
        raise error(f"{name}: is nested too deeply")
    return value


def check_marks(raw: bytes, name: str, most: int, error: type[KukriError]) -> None:
    """Raise `error` for a JSON text with over `most` marks (see Limits), without parsing it."""
    if 2 * (raw.count(b"[") + raw.count(b"{")) + raw.count(b",") + raw.count(b":") > most:
        raise error(f"{name}: holds too much: over {most} brackets, commas and colons")


def _resolved(path: Path, folder: Path, error: type[KukriError]) -> Path:
    """Where a file of a folder lies, all links followed; `error` if that is elsewhere.

    In huggingface-hub's cache the files of a folder, models--…/snapshots/COMMIT, are links into
    models--…/blobs. The folder itself may be reached by links.
    """
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if real.is_relative_to(root):
        return real
    repository = root.parent.parent
    if root.parent.name == "snapshots" and repository.name.startswith("models--"):
        blobs = Path(os.path.realpath(repository / "blobs"))
        if real.parent == blobs:
            return real
    shown = str(real) if len(str(real)) <= _SHOWN else f"{str(real)[:_SHOWN]}…"
    raise error(f"{path.name}: leads to {shown!r}, outside of the model's folder")


def _check_ordinary(mode: int, path: Path, error: type[KukriError]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise error(f"{path.name}: is not an ordinary file")


def _is_deeper(value: Any, most: int) -> bool:
    """Whether lists and dictionaries are nested more than `most` deep."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        level = [item for item in level if isinstance(item, list | dict)]
        if not level:
            return False
        level = list(chain.from_iterable(item.values() if isinstance(item, dict) else item for item in level))
    return True
