"""Downloading one file over HTTP: broken transfers are resumed, and size and SHA-256 are checked.

huggingface-hub deletes what a killed download has got so far, which for a model is too much to lose.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...quant.units import human_bytes
from .errors import StoreError
from .progress import NoProgress, ProgressFactory

ATTEMPTS = 5  # in a row that receive no byte, after which a transfer is given up
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416  # HTTP statuses
SPARE_BYTES = 64_000_000  # left free on the disk

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server; size and checksum are None where the server does not state them."""

    url: str
    headers: dict[str, str]  # of the request
    n_bytes: int | None
    sha256: str | None  # hexadecimal
    label: str  # the file's name in messages


def transfer(source: RemoteFile, target: Path, progress: ProgressFactory = NoProgress) -> None:
    """Download `source` into `target`, resuming from the file `target`.incomplete if there is one.

    Only a complete file with the right size and SHA-256 gets the name `target`. A broken connection leaves
    `target`.incomplete for the next attempt; a file with another size or checksum is deleted. Raises
    StoreError, OSError, or huggingface-hub's HTTP errors.
    """
    n_bytes, label = source.n_bytes, source.label
    partial = target.with_name(target.name + ".incomplete")
    if n_bytes is None or _size(partial) > n_bytes:
        partial.unlink(missing_ok=True)
    require_space(target.parent, (n_bytes or 0) - _size(partial), label)
    with progress(label, n_bytes) as shown:
        failures = 0
        while _size(partial) != n_bytes or not partial.exists():
            before = _size(partial)
            problem = _append(source, partial, shown.at)
            grown = _size(partial) - before
            if problem is None and (n_bytes is None or grown <= 0):
                break  # the file is complete, or the server has no more of it
            failures = 0 if grown > 0 else failures + 1
            if failures == ATTEMPTS:
                raise StoreError(
                    f"the download of {label} broke off at {human_bytes(before)} ({problem}); "
                    "the same command goes on from there"
                )
            if problem is not None:
                time.sleep(min(0.1 * 2**failures, 4.0))
    _verify(partial, source)
    os.replace(partial, target)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(source: RemoteFile, partial: Path, report: Callable[[int], None]) -> str | None:
    """Append the rest of `source` to `partial`; returns what cut the transfer short, None if nothing did.

    `report` is called with the size of `partial`. A stream longer than `source.n_bytes` is not read to its
    end; one of unknown length is stopped by StoreError when the disk is nearly full.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HTTPError
    from huggingface_hub.utils import get_session, hf_raise_for_status

    n_bytes, headers = source.n_bytes, source.headers
    if have := _size(partial):
        headers = {**headers, "Range": f"bytes={have}-"}
    timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    try:
        with get_session().stream(
            "GET", source.url, headers=headers, timeout=timeout, follow_redirects=True
        ) as reply:
            if have and reply.status_code == RANGE_NOT_SATISFIABLE:
                return None  # the server has no more than `have` bytes
            hf_raise_for_status(reply)
            resumed = reply.status_code == PARTIAL_CONTENT
            if resumed and not _begins_at(reply.headers.get("Content-Range", ""), have):
                return "the server sends another part than the one asked for"
            with partial.open("ab" if resumed else "wb") as sink:
                checked_at = sink.tell()  # when the free space was last looked at
                for chunk in reply.iter_raw():
                    sink.write(chunk)
                    report(sink.tell())
                    if n_bytes is not None and sink.tell() > n_bytes:
                        break
                    if n_bytes is None and sink.tell() - checked_at > SPARE_BYTES // 2:
                        checked_at = sink.tell()
                        require_space(partial.parent, 0, partial.name)
    except HfHubHTTPError as error:
        code = error.response.status_code
        if code < 500 and code not in (408, 429):
            raise
        return f"HTTP {code}"
    except HTTPError as error:
        return str(error) or type(error).__name__
    return None


def _begins_at(content_range: str, first: int) -> bool:
    """Whether a Content-Range header states a range that begins with byte `first`."""
    return content_range.removeprefix("bytes").strip().startswith(f"{first}-")


def _verify(partial: Path, source: RemoteFile) -> None:
    """Delete `partial` and raise StoreError if its size or SHA-256 is not that of `source`."""
    n_bytes, sha256, label = source.n_bytes, source.sha256, source.label
    have = partial.stat().st_size
    if n_bytes is not None and have != n_bytes:
        partial.unlink()
        came = f"{have} bytes" if have < n_bytes else "more"
        raise StoreError(f"{label} came with {came} instead of {n_bytes} bytes; it was deleted, try again")
    if sha256 is not None and (got := file_sha256(partial)) != sha256:
        partial.unlink()
        raise StoreError(
            f"{label} has SHA-256 {got[:12]}… instead of {sha256[:12]}…; it was deleted, try again"
        )


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_space(folder: Path, n_bytes: int, label: str) -> None:
    """Raise StoreError unless the disk of `folder` has `n_bytes` + SPARE_BYTES free."""
    free = shutil.disk_usage(folder).free
    if n_bytes + SPARE_BYTES > free:
        raise StoreError(
            f"{label} needs {human_bytes(n_bytes)} and {folder} has {human_bytes(free)} free: "
            "make room, or put the cache on another disk with HF_HOME and KUKRI_HOME"
        )


@contextmanager
def exclusive(lock: Path, label: str) -> Iterator[None]:
    """Hold the file lock `lock`, so that no two processes do the same download; waiting for another one is
    logged."""
    from huggingface_hub.utils import WeakFileLock

    lock.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=0.2))
        except TimeoutError:
            _log.info("waiting for another download of %s", label)
            stack.enter_context(WeakFileLock(lock))
        yield
