"""Models on the Hugging Face Hub, kept in huggingface-hub's own cache.

huggingface-hub does authentication, endpoints, the cache's layout and its links. The transfer
itself is done here, because a download that was killed must go on where it stopped, and because
size and SHA-256 are checked before a file gets its name.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from . import files
from .errors import ModelNotFound, StoreError, Unreachable
from .progress import Progress
from .terminal import human_bytes, remark

CONNECT_SECONDS = 4.0  # a Hub that takes longer to pick up counts as out of reach
_NO_SUCH_RANGE = "HTTP 416"
ATTEMPTS = 5  # in a row, without a byte received
SPARE_BYTES = 64_000_000  # left free on the disk


@dataclass(frozen=True)
class RemoteFile:
    path: str
    n_bytes: int | None
    sha256: str | None


def cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    return cache_folder() / ("models--" + repo.replace("/", "--"))


def snapshot(repo: str) -> Path | None:
    """The folder of the newest snapshot of `repo` on disk."""
    folder = repo_folder(repo)
    try:
        commit = (folder / "refs" / "main").read_text().strip()
        if commit and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    except OSError:
        pass
    try:
        return max((folder / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None


def snapshot_files(folder: Path) -> list[str]:
    """Paths of the files in a snapshot, relative, with slashes; broken links do not count."""
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def find(repo: str, quant: str | None) -> Path | None:
    """The model's file (its first shard) or folder, if it is on disk whole."""
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
    import json

    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return True
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False
    return all((folder / str(shard)).is_file() for shard in shards)


def pull(repo: str, quant: str | None, label: str, sha256: str | None = None) -> Path:
    """Download a model unless it is on disk already; returns its file (first shard) or its folder.

    `sha256`, if given, is what the (single) file must have. Raises ModelNotFound, Unreachable, StoreError.
    """
    with _hub_errors(repo):
        remote = {file.path: file for file in _list(repo)}
        chosen = files.choose_gguf(remote, quant)
        if not chosen and quant is None:
            chosen = files.choose_checkpoint(remote)
        if not chosen:
            raise ModelNotFound(_nothing_to_choose(repo, quant, remote))
        paths = [_fetch(repo, remote[path], label, sha256) for path in chosen]
    if chosen[0].lower().endswith(".gguf"):
        return paths[0]
    return paths[chosen.index("config.json")].parent


def _nothing_to_choose(repo: str, quant: str | None, paths: dict[str, RemoteFile]) -> str:
    quants = sorted({files.quant_of(name) or files.stem(name) for name in files.gguf_models(paths)})
    if quants:
        return f"{repo} has no {quant}; it has {', '.join(quants)}"
    if quant is not None:
        return f"{repo} has no GGUF files, so no {quant}; leave the quantisation out to use its safetensors"
    return f"{repo} has neither GGUF nor safetensors files (pickled weights are never loaded)"


def _list(repo: str) -> list[RemoteFile]:
    from huggingface_hub import HfApi

    info = HfApi().model_info(repo, files_metadata=True, timeout=2 * CONNECT_SECONDS)
    return [
        RemoteFile(file.rfilename, file.size, getattr(file.lfs, "sha256", None))
        for file in info.siblings or []
    ]


def _fetch(repo: str, file: RemoteFile, label: str, sha256: str | None) -> Path:
    """One file into the cache: transfer its blob, then let huggingface-hub link it into the snapshot."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(repo, file.path)
    remote = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    etag = remote.etag
    if not etag or not re.fullmatch(r"\w[\w.-]*", etag):
        raise StoreError(f"the Hub gives no usable ETag for {file.path} of {repo}")
    n_bytes = file.n_bytes if remote.size is None else remote.size
    if sha256 is None:
        sha256 = file.sha256 or (etag if _is_sha256(etag) else None)
    elif _is_sha256(etag) and etag != sha256:
        raise StoreError(f"the Hub's {file.path} is not the file this name stands for (SHA-256 {etag[:12]}…)")

    blob = repo_folder(repo) / "blobs" / etag
    blob.parent.mkdir(parents=True, exist_ok=True)
    lock = cache_folder() / ".locks" / repo_folder(repo).name / f"{etag}.incomplete.lock"
    with exclusive(lock, label):
        if not blob.exists():
            headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
            shown = label if file.path.lower().endswith(".gguf") else f"{label} {file.path}"
            transfer(url, headers, blob, n_bytes, sha256, shown)
    return Path(hf_hub_download(repo, file.path))


@contextmanager
def exclusive(lock: Path, label: str) -> Iterator[None]:
    """Keep other processes from the same download, saying so if it takes waiting for one."""
    from huggingface_hub.utils import WeakFileLock

    lock.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=0.2))
        except TimeoutError:
            remark(f"waiting for another download of {label}")
            stack.enter_context(WeakFileLock(lock))
        yield


def _is_sha256(etag: str) -> bool:
    return len(etag) == 64 and all(c in "0123456789abcdef" for c in etag)


def transfer(
    url: str, headers: dict[str, str], target: Path, n_bytes: int | None, sha256: str | None, label: str
) -> None:
    """GET `url` into `target`, going on from `target`.incomplete, and checking size and SHA-256.

    Only a whole, checked file gets the name `target`. What a broken connection left stays for the
    next attempt; what turns out to be false is deleted.
    """
    partial = target.with_name(target.name + ".incomplete")
    have = partial.stat().st_size if partial.exists() else 0
    if n_bytes is None or have > n_bytes:
        partial.unlink(missing_ok=True)
        have = 0
    require_space(target.parent, (n_bytes or 0) - have, label)
    with Progress(label, n_bytes) as progress:
        failures = restarts = 0
        while have != n_bytes or not partial.exists():
            before = have
            problem = _append(url, headers, partial, have, progress.at)
            have = partial.stat().st_size if partial.exists() else 0
            if problem == _NO_SUCH_RANGE:  # what is here belongs to another file, or the size is false
                if restarts:
                    break
                restarts += 1
                partial.unlink()
                have = 0
            elif problem is None:
                if n_bytes is None or not before < have < n_bytes:
                    break
            else:
                failures = 0 if have > before else failures + 1
                if failures == ATTEMPTS:
                    raise StoreError(
                        f"the download of {label} broke off at {human_bytes(have)} ({problem}); "
                        "the same command goes on from there"
                    )
                time.sleep(min(0.1 * 2**failures, 4.0))
    _verify(partial, n_bytes, sha256, label)
    os.replace(partial, target)


def _append(
    url: str, headers: dict[str, str], partial: Path, have: int, report: Callable[[int], None]
) -> str | None:
    """Stream the rest of `url`, from byte `have` on, to the end of `partial`; says what cut it short."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HTTPError
    from huggingface_hub.utils import get_session, hf_raise_for_status

    if have:
        headers = {**headers, "Range": f"bytes={have}-"}
    timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    try:
        with get_session().stream(
            "GET", url, headers=headers, timeout=timeout, follow_redirects=True
        ) as reply:
            hf_raise_for_status(reply)
            with partial.open("ab" if reply.status_code == 206 else "wb") as sink:
                for chunk in reply.iter_raw():
                    sink.write(chunk)
                    report(sink.tell())
    except HfHubHTTPError as error:
        code = error.response.status_code
        if code < 500 and code not in (408, 416, 429):
            raise
        return f"HTTP {code}"
    except HTTPError as error:
        return str(error) or type(error).__name__
    return None


def _verify(partial: Path, n_bytes: int | None, sha256: str | None, label: str) -> None:
    have = partial.stat().st_size
    if n_bytes is not None and have != n_bytes:
        partial.unlink()
        raise StoreError(f"{label} came with {have} bytes instead of {n_bytes}; it was deleted, try again")
    if sha256 is not None and (got := file_sha256(partial)) != sha256:
        partial.unlink()
        raise StoreError(
            f"{label} has SHA-256 {got[:12]}… instead of {sha256[:12]}…; it was deleted, try again"
        )


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_space(folder: Path, n_bytes: int, label: str) -> None:
    """StoreError unless `n_bytes` fit on the disk of `folder` with something to spare."""
    free = shutil.disk_usage(folder).free
    if n_bytes + SPARE_BYTES > free:
        raise StoreError(
            f"{label} needs {human_bytes(n_bytes)} and {folder} has {human_bytes(free)} free: "
            "make room, or put the cache on another disk with HF_HOME and KUKRI_HOME"
        )


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Say in one of our own errors what any of huggingface-hub's means."""
    from huggingface_hub import constants, errors
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


def _reachable(endpoint: str) -> bool:
    """Whether somebody picks up at `endpoint`, within CONNECT_SECONDS whatever the resolver does."""
    import urllib.request  # here, because it is slow to import

    url = urlsplit(endpoint)
    host = url.hostname
    if not host:
        return False
    if url.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return True  # the proxy's business
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
