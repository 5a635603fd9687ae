"""Models in repositories on the Hugging Face Hub, kept in huggingface-hub's own cache.

huggingface-hub does authentication, endpoints, the cache's layout and its links; `download.transfer`
downloads the files.
"""

from __future__ import annotations

import re
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...untrusted import read_file
from . import files
from .download import RemoteFile, exclusive, transfer
from .errors import ModelNotFound, StoreError, Unreachable
from .progress import NoProgress, ProgressFactory

MAX_REF_BYTES = 256  # of refs/main, which holds the name of a commit
CONNECT_SECONDS = 4.0  # a Hub that takes longer to accept a connection counts as out of reach


@dataclass(frozen=True)
class ListedFile:
    """A file as the Hub's listing of a repository states it; size and SHA-256 may be missing."""

    path: str
    n_bytes: int | None
    sha256: str | None


def cache_folder() -> Path:
    """huggingface-hub's cache: HF_HUB_CACHE, or `hub` in HF_HOME. StoreError for a bad HF_… variable."""
    return Path(_constants().HF_HUB_CACHE)


def _constants() -> Any:
    """huggingface-hub's settings, read from the environment when it is first imported."""
    try:
        from huggingface_hub import constants
    except ValueError as problem:
        raise StoreError(f"one of the variables HF_… has a value that cannot be: {problem}") from None
    return constants


def repo_folder(repo: str) -> Path:
    """The folder of the repository `repo` in the cache."""
    return cache_folder() / ("models--" + repo.replace("/", "--"))


def snapshot(repo: str) -> Path | None:
    """The folder of the snapshot of `repo` that `main` stands for, or else the newest; None if none is."""
    folder = repo_folder(repo)
    try:
        commit = read_file(folder / "refs" / "main", MAX_REF_BYTES, StoreError, folder).decode().strip()
        if commit and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    except (OSError, ValueError, StoreError):  # not there, or no name of a commit
        pass
    try:
        return max((folder / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None


def snapshot_files(folder: Path) -> list[str]:
    """Relative paths (with slashes) of the files in a snapshot; broken links do not count."""
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def find(repo: str, quant: str | None) -> Path | None:
    """The file (first shard) or folder of a model of `repo`; None unless all its files are on disk."""
    folder = snapshot(repo)
    if folder is None:
        return None
    paths = snapshot_files(folder)
    if chosen := files.choose_gguf(paths, quant):
        return folder / chosen[0]
    if quant is None and files.choose_checkpoint(paths) and _shards_complete(folder):
        return folder
    return None


def _shards_complete(folder: Path) -> bool:
    """Whether a checkpoint's folder has every shard that its index names."""
    from ...quant.checkpoint.json_files import INDEX_LIMITS, read_object

    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return True
    try:
        shards = set(read_object(index, INDEX_LIMITS, folder)["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False
    return all((folder / str(shard)).is_file() for shard in shards)


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
    with _hub_errors(repo):
        remote = {file.path: file for file in _list(repo)}
        chosen = files.choose_gguf(remote, quant)
        if not chosen and quant is None:
            chosen = files.choose_checkpoint(remote)
        if not chosen:
            raise ModelNotFound(_nothing_to_choose(repo, quant, remote))
        paths = [_download_file(repo, remote[path], label, progress, sha256) for path in chosen]
    if chosen[0].lower().endswith(".gguf"):
        return paths[0]
    return paths[chosen.index("config.json")].parent


def _nothing_to_choose(repo: str, quant: str | None, paths: dict[str, ListedFile]) -> str:
    """The message about a repository that has no model for `quant`."""
    quants = sorted({files.quant_of(name) or files.stem(name) for name in files.gguf_models(paths)})
    if quants:
        return f"{repo} has no {quant}; it has {', '.join(quants)}"
    if quant is not None:
        return f"{repo} has no GGUF files, so no {quant}; leave the quantisation out to use its safetensors"
    return f"{repo} has neither GGUF nor safetensors files (pickled weights are never loaded)"


def _list(repo: str) -> list[ListedFile]:
    """The files of a repository, from the Hub. StoreError if its answer is no list of files."""
    from huggingface_hub import HfApi, errors

    try:
        info = HfApi().model_info(repo, files_metadata=True, timeout=2 * CONNECT_SECONDS)
        siblings: list[tuple[Any, Any, Any]] = [
            (file.rfilename, file.size, file.lfs and file.lfs.sha256) for file in info.siblings or []
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        if isinstance(problem, (errors.HfHubHTTPError, errors.HFValidationError)):
            raise
        raise StoreError(f"the Hub's answer about {repo} is no list of files") from None
    return [
        ListedFile(path, _n_bytes(size), sha256 if _is_sha256(sha256) else None)
        for path, size, sha256 in siblings
        if isinstance(path, str)
    ]


def _download_file(
    repo: str, file: ListedFile, label: str, progress: ProgressFactory, sha256: str | None
) -> Path:
    """Download one file into the cache: transfer its blob, then let huggingface-hub link the snapshot to it.

    The Hub's ETag names the blob; for large files it is their SHA-256.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    if not _is_file_name(file.path):
        raise StoreError(f"{repo} has a file whose name cannot be stored: {file.path[:80]!r}")
    url = hf_hub_url(repo, file.path)
    remote = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    etag = remote.etag
    if not etag or not re.fullmatch(r"\w[\w.-]{,127}", etag):
        raise StoreError(f"the Hub gives no usable ETag for {file.path} of {repo}")
    if not re.fullmatch(r"[0-9a-f]{40}", remote.commit_hash or ""):
        raise StoreError(f"the Hub does not say which commit {file.path} of {repo} belongs to")
    size = _n_bytes(remote.size)
    n_bytes = file.n_bytes if size is None else size
    if sha256 is None:
        sha256 = file.sha256 or (etag if _is_sha256(etag) else None)
    if _is_sha256(etag) and etag != sha256:
        raise StoreError(f"the Hub's {file.path} is not the file this name stands for (SHA-256 {etag[:12]}…)")

    blob = repo_folder(repo) / "blobs" / etag
    blob.parent.mkdir(parents=True, exist_ok=True)
    lock = cache_folder() / ".locks" / repo_folder(repo).name / f"{etag}.incomplete.lock"
    with exclusive(lock, label):
        if not blob.exists():
            headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
            shown = label if file.path.lower().endswith(".gguf") else f"{label} {file.path}"
            transfer(RemoteFile(url, headers, n_bytes, sha256, shown), blob, progress)
    return Path(hf_hub_download(repo, file.path))


def _is_sha256(etag: object) -> bool:
    """Whether an ETag is a SHA-256 in hexadecimal, as those of large files are."""
    return isinstance(etag, str) and re.fullmatch(r"[0-9a-f]{64}", etag) is not None


def _n_bytes(size: object) -> int | None:
    """`size` if it is a whole number of bytes, else None (unknown)."""
    return size if isinstance(size, int) and size >= 0 else None


def _is_file_name(path: str) -> bool:
    """Whether a path that the Hub lists stays below the snapshot's folder and can be a file's name."""
    parts = path.split("/")
    plain = path.isprintable() and "\\" not in path
    return plain and all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts)


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Raise one of kukri's errors in place of any of huggingface-hub's, and show none of its warnings."""
    constants = _constants()
    from huggingface_hub import errors
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()
    if constants.HF_HUB_OFFLINE:
        raise Unreachable(f"{repo} is not on disk, and HF_HUB_OFFLINE forbids asking the Hub")
    if not _reachable(constants.ENDPOINT):
        raise Unreachable(f"{repo} is not on disk, and the Hub ({constants.ENDPOINT}) cannot be reached")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except errors.GatedRepoError:
        raise ModelNotFound(
            f"{repo} is gated: accept its licence at {constants.ENDPOINT}/{repo} and set HF_TOKEN"
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError):
        raise ModelNotFound(f"the Hub has no model {repo} (or it is private: set HF_TOKEN)") from None
    except errors.LocalEntryNotFoundError:
        raise Unreachable(f"the Hub went out of reach while {repo} was being fetched") from None
    except errors.EntryNotFoundError:
        raise ModelNotFound(f"{repo} no longer has the file it lists") from None
    except errors.HfHubHTTPError as problem:
        code = problem.response.status_code
        if code in (401, 403):
            raise ModelNotFound(f"the Hub refuses {repo} (HTTP {code}): check HF_TOKEN") from None
        raise Unreachable(f"the Hub answers HTTP {code} for {repo}") from None
    except (errors.HTTPError, errors.OfflineModeIsEnabled) as problem:
        raise Unreachable(f"{repo} is not on disk, and the Hub cannot be reached: {problem}") from None
    except Exception as problem:
        if type(problem).__name__ != "InvalidURL":  # the class belongs to huggingface-hub's HTTP client
            raise
        raise Unreachable(f"{repo} is not on disk, and a proxy's or the Hub's address is none") from None


def _reachable(endpoint: str) -> bool:
    """Whether a server accepts connections at `endpoint` within CONNECT_SECONDS, name resolution included."""
    import urllib.request  # here, because it is slow to import

    try:
        url = urlsplit(endpoint)
        host = url.hostname
    except ValueError:
        return False
    if not host:
        return False
    if url.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return True  # the proxy connects, and its answer says more
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        return False
    answers: list[bool] = []

    def knock() -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            answers.append(True)
        except OSError:
            answers.append(False)

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS + 0.5)
    return answers == [True]
