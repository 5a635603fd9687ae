"""Models in repositories on the Hugging Face Hub: found in huggingface-hub's cache, or downloaded into it.

Each file is used only as the first answers about it state it. The bytes that lie on the disk are compared
with that, those of earlier downloads too: who answered then may have been somebody else.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...quant.units import human_bytes
from . import cache, files, hub_api
from .download import RemoteFile, exclusive, require_space, settle, transfer
from .errors import ModelNotFound, StoreError
from .expected import compare
from .progress import NoProgress, ProgressFactory

MOST_SMALL_BYTES = 1 << 28  # of a file that is no weights; the largest tokenizers have 2^25
MOST_CHOSEN = 1000  # files of a model; the largest have 200
_INDEX = "model.safetensors.index.json"
_LONG_READ = 2_000_000_000  # bytes whose reading takes long enough to be announced
_WEIGHTS = (".gguf", ".safetensors")

_log = logging.getLogger(__name__)


def find(repo: str, quant: str | None) -> Path | None:
    """The file (first shard) or folder of a model of `repo`; None unless all its files are on disk."""
    folder = cache.snapshot(repo)
    if folder is None:
        return None
    paths = cache.snapshot_files(folder)
    if chosen := files.choose_gguf(paths, quant):
        return folder / chosen[0]
    if quant is None and files.choose_checkpoint(paths) and _shards_complete(folder):
        return folder
    return None


def _shards_complete(folder: Path) -> bool:
    """Whether a checkpoint's folder has every shard that its index names."""
    from ...quant.checkpoint.json_files import INDEX_LIMITS, read_object

    try:
        shards = set(read_object(folder / _INDEX, INDEX_LIMITS, folder)["weight_map"].values())
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False
    return all(
        isinstance(shard, str) and cache.is_file_name(shard) and (folder / shard).is_file()
        for shard in shards
    )


def download(
    repo: str,
    quant: str | None,
    label: str,
    progress: ProgressFactory = NoProgress,
    sha256: str | None = None,
) -> Path:
    """Download a model's files that are not on disk; returns the path of its file (first shard) or folder.

    `label` names the model in messages. `sha256`: the checksum that the model's only file must have. Raises
    ModelNotFound, Unreachable, StoreError or OSError.
    """
    with hub_api.hub_errors(repo):
        listing = hub_api.list_files(repo)
        chosen = files.choose_gguf(listing.files, quant)
        if not chosen and quant is None:
            chosen = files.choose_checkpoint(listing.files)
        if not chosen:
            raise ModelNotFound(_nothing_to_choose(repo, quant, listing.files))
        if len(chosen) > MOST_CHOSEN:
            raise StoreError(f"{repo} is a model of {len(chosen)} files, more than {MOST_CHOSEN}")
        folder = cache.repo_folder(repo)
        wanted = [_wanted(repo, listing, path, label, sha256) for path in chosen]
        missing = [file for file in wanted if not _is_there(file, folder)]
        if missing:
            (folder / "blobs").mkdir(parents=True, exist_ok=True)
            require_space(folder, sum(_bytes_to_come(file, folder / "blobs") for file in missing), label)
        for file in missing:
            _fetch(file, folder, progress)
        cache.set_main(folder, listing.commit)
    root = cache.snapshot_folder(folder, listing.commit)
    return root / chosen[0] if chosen[0].lower().endswith(".gguf") else root


def _nothing_to_choose(repo: str, quant: str | None, paths: Iterable[str]) -> str:
    """The message about a repository that has no model for `quant`."""
    quants = sorted({files.quant_of(name) or files.stem(name)[:60] for name in files.gguf_models(paths)})
    if quants:
        shown = quants if len(quants) <= 20 else [*quants[:20], f"{len(quants) - 20} more"]
        return f"{repo} has no {quant}; it has {', '.join(shown)}"
    if quant is not None:
        return f"{repo} has no GGUF files, so no {quant}; leave the quantisation out to use its safetensors"
    return f"{repo} has neither GGUF nor safetensors files (pickled weights are never loaded)"


@dataclass(frozen=True)
class _Wanted:
    """A file of a model: where it belongs in the cache, where it is on the Hub, and what it must be."""

    commit: str
    path: str  # in the repository
    source: RemoteFile

    @property
    def transfer(self) -> str:
        """The name of its transfer: the blob's, or if no digest is known, one that is only this file's."""
        digest = self.source.expected.digest
        return digest or "unnamed-" + hashlib.sha256(self.source.url.encode()).hexdigest()[:40]


def _wanted(repo: str, listing: hub_api.Listing, path: str, label: str, sha256: str | None) -> _Wanted:
    """What there is to know about a listed file before any of its bytes come. StoreError if it cannot be
    stored."""
    if not cache.is_file_name(path):
        raise StoreError(f"{repo} has a file whose name cannot be stored: {path[:80]!r}")
    expected = hub_api.expected_file(repo, listing.commit, listing.files[path], sha256)
    shown = label if path.lower().endswith(".gguf") else f"{label} {path}"
    most_bytes = None if path.lower().endswith(_WEIGHTS) else MOST_SMALL_BYTES
    url = hub_api.file_url(repo, listing.commit, path)
    return _Wanted(listing.commit, path, RemoteFile(url, hub_api.hub_headers(), expected, shown, most_bytes))


def _is_there(file: _Wanted, folder: Path) -> bool:
    """Whether `file` is in its snapshot in the repository's `folder`, with the bytes that it must have."""
    path = cache.snapshot_folder(folder, file.commit) / file.path
    return cache.leads_nowhere_else(folder, path.parent) and _has(path, file.source)


def _has(path: Path, source: RemoteFile) -> bool:
    """Whether the file `path` has the size and the digest of `source`; not if neither is known."""
    expected = source.expected
    if expected.n_bytes is None and expected.digest is None:
        return False
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            if n_bytes == expected.n_bytes and n_bytes > _LONG_READ:
                _log.info("%s is on disk; reading its %s to check it", source.label, human_bytes(n_bytes))
            return not compare(file, expected, n_bytes).difference
    except FileNotFoundError:
        return False


def _bytes_to_come(file: _Wanted, blobs: Path) -> int:
    """How many bytes the disk must have room for, as far as is known."""
    n_bytes = file.source.expected.n_bytes or 0
    sizes = [
        path.stat().st_size
        for name in (file.transfer, f"{file.transfer}.incomplete")
        if (path := blobs / name).is_file()
    ]
    return max(n_bytes - max(sizes, default=0), 0)


def _fetch(file: _Wanted, folder: Path, progress: ProgressFactory) -> None:
    """Have `file` in its snapshot in the repository's `folder`: link it to its blob, downloaded if need be.

    A blob is not trusted for its name, and always has the name of its digest.
    """
    source, blobs = file.source, folder / "blobs"
    lock = folder.parent / ".locks" / folder.name / f"{file.transfer}.incomplete.lock"
    with exclusive(lock, source.label):
        name = source.expected.digest
        if name is None or not _has(blobs / name, source):
            partial = blobs / f"{file.transfer}.incomplete"
            sha256 = transfer(source, partial, progress)
            name = name or sha256
            settle(partial, blobs / name)
        cache.link(blobs / name, folder, file.commit, file.path)
