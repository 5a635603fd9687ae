"""huggingface-hub's cache on disk, so that other programs find there what kukri downloads, and the reverse.

In the folder of a repository, `models--ORG--NAME`:

    blobs/DIGEST                  a file's bytes, under their SHA-256, or git's SHA-1 for small files
    snapshots/COMMIT/PATH         a relative link to the blob of the file PATH at a commit; where there are no
                                  links, the file itself
    refs/main                     the commit that the branch `main` stood for
    blobs/DIGEST.incomplete       what a broken download has got so far

A server states digests, commits and paths, so all of them are checked before they become names here.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from ...untrusted import read_file
from .download import sync_folder
from .errors import StoreError
from .expected import is_sha1

_MOST_PATH_BYTES = 1000
_MOST_REF_BYTES = 64  # of refs/main, which holds the name of a commit
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?", re.IGNORECASE)
_NOT_IN_NAMES = frozenset('<>:"|?*\\')  # on Windows, where they separate folders, drives and streams


def hub_constants() -> Any:
    """huggingface-hub's settings, read from the environment when it is first imported."""
    try:
        from huggingface_hub import constants
    except ValueError as problem:
        raise StoreError(f"one of the variables HF_… has a value that cannot be: {problem}") from None
    return constants


def cache_folder() -> Path:
    """huggingface-hub's cache: HF_HUB_CACHE, or `hub` in HF_HOME. StoreError for a bad HF_… variable."""
    return Path(hub_constants().HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    """The folder of the repository `repo` in the cache."""
    return cache_folder() / ("models--" + repo.replace("/", "--"))


def is_file_name(path: str) -> bool:
    """Whether a path that a server states stays below the snapshot's folder, and can be a file's name on any
    system."""
    if not path.isprintable() or _NOT_IN_NAMES & set(path) or len(path.encode()) > _MOST_PATH_BYTES:
        return False
    return all(
        part and not part.endswith((".", " ")) and len(part.encode()) <= 255 and not _DEVICES.fullmatch(part)
        for part in path.split("/")
    )


def snapshot(repo: str) -> Path | None:
    """The folder of the snapshot of `repo` that `main` stands for, or else the newest; None if none is."""
    folder = repo_folder(repo)
    snapshots = snapshot_folders(folder)
    main = _commit_of_main(folder)
    for path in snapshots:
        if path.name == main:
            return path
    try:
        return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)
    except OSError:  # another process has just deleted one
        return None


def snapshot_folders(folder: Path) -> list[Path]:
    """The snapshots in a repository's `folder`. A link is none: it would lead out of the folder."""
    parent = folder / "snapshots"
    if parent.is_symlink():
        return []
    try:
        return [path for path in parent.iterdir() if is_sha1(path.name) and _is_plain_folder(path)]
    except OSError:
        return []


def snapshot_files(folder: Path) -> list[str]:
    """Relative paths (with slashes) of the files in a snapshot; broken links do not count, and links to
    folders are not followed."""
    found = []
    for parent, _, names in os.walk(folder):
        paths = [Path(parent, name) for name in names]
        found += [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
    return found


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _commit_of_main(folder: Path) -> str | None:
    """The commit in `refs/main`; None if that file is missing or has something else in it."""
    try:
        raw = read_file(folder / "refs" / "main", _MOST_REF_BYTES, StoreError, folder)
    except (OSError, StoreError):  # not there, or no ordinary file of this size
        return None
    commit = raw.decode("ascii", "replace").strip()
    return commit if is_sha1(commit) else None


def set_main(folder: Path, commit: str) -> None:
    """Have `main` stand for `commit` from now on."""
    if _commit_of_main(folder) == commit:
        return
    refs = _make_folders(folder, "refs")
    descriptor, name = tempfile.mkstemp(dir=refs, prefix="main.", suffix=".tmp")
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(commit)
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, refs / "main")
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(refs)


def snapshot_folder(folder: Path, commit: str) -> Path:
    """The folder of the snapshot of `commit` in a repository's `folder`; it need not exist."""
    return folder / "snapshots" / commit


def leads_nowhere_else(folder: Path, inside: Path) -> bool:
    """Whether no folder between `folder` and `inside`, which is below it, is a link."""
    return os.path.realpath(inside) == os.path.join(os.path.realpath(folder), inside.relative_to(folder))


def _make_folders(folder: Path, *names: str) -> Path:
    """Make the folder `names` in `folder`. StoreError if one of them is a link, which may lead anywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        folder = folder / name
        if folder.is_symlink():
            raise StoreError(f"{folder} is a link, which the cache has no use for: delete it")
        folder.mkdir(exist_ok=True)
    return folder


def link(blob: Path, folder: Path, commit: str, path: str) -> None:
    """Make the file `path` of a snapshot in a repository's `folder` stand for `blob`, whatever it was before.

    Where there can be no links (Windows without the right to make them, some file systems), or
    HF_HUB_DISABLE_SYMLINKS forbids them, the blob itself is moved there.
    """
    *parents, name = path.split("/")
    parent = _make_folders(folder, "snapshots", commit, *parents)
    target = os.path.relpath(blob, parent)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".link-") as temporary:
        made = Path(temporary, "link")
        try:
            if getattr(hub_constants(), "HF_HUB_DISABLE_SYMLINKS", False):
                raise NotImplementedError
            os.symlink(target, made)  # relative to where it goes
        except (OSError, NotImplementedError):
            made = blob
        os.replace(made, parent / name)
    sync_folder(parent)
