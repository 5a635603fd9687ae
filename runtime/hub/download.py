"""Getting a file whole: transfers that go on where they stopped, checks before a file gets its name.

huggingface-hub throws away what a killed download has got so far, which for a model is too much to lose.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...cli.console.progress import Progress
from ...cli.console.terminal import human_bytes, remark
from .errors import StoreError

ATTEMPTS = 5  # in a row, without a byte received
PART, NO_SUCH_RANGE = 206, 416  # HTTP statuses
SPARE_BYTES = 64_000_000  # left free on the disk


def transfer(
    url: str, headers: dict[str, str], target: Path, n_bytes: int | None, sha256: str | None, label: str
) -> None:
    """GET `url` into `target`, going on from `target`.incomplete, and checking size and SHA-256.

    Only a whole, checked file gets the name `target`. What a broken connection left stays for the
    next attempt; what turns out to be false is deleted.
    """
    partial = target.with_name(target.name + ".incomplete")
    if n_bytes is None or _size(partial) > n_bytes:
        partial.unlink(missing_ok=True)
    require_space(target.parent, (n_bytes or 0) - _size(partial), label)
    with Progress(label, n_bytes) as progress:
        failures = 0
        while _size(partial) != n_bytes or not partial.exists():
            before = _size(partial)
            problem = _append(url, headers, partial, n_bytes, progress.at)
            grown = _size(partial) - before
            if problem is None and (n_bytes is None or grown <= 0):
                break  # it came whole, or there is no more than this
            failures = 0 if grown > 0 else failures + 1
            if failures == ATTEMPTS:
                raise StoreError(
                    f"the download of {label} broke off at {human_bytes(before)} ({problem}); "
                    "the same command goes on from there"
                )
            if problem is not None:
                time.sleep(min(0.1 * 2**failures, 4.0))
    _verify(partial, n_bytes, sha256, label)
    os.replace(partial, target)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(
    url: str, headers: dict[str, str], partial: Path, n_bytes: int | None, report: Callable[[int], None]
) -> str | None:
    """Stream the rest of `url` to the end of `partial`; says what cut it short, None if nothing did.

    What goes on for longer than `n_bytes` is false, and not read to its end; where nobody knows how long it
    is, the disk is looked at on the way.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HTTPError
    from huggingface_hub.utils import get_session, hf_raise_for_status

    if have := _size(partial):
        headers = {**headers, "Range": f"bytes={have}-"}
    timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    try:
        with get_session().stream(
            "GET", url, headers=headers, timeout=timeout, follow_redirects=True
        ) as reply:
            if have and reply.status_code == NO_SUCH_RANGE:
                return None  # the server has no more than this
            hf_raise_for_status(reply)
            if reply.status_code == PART and not _begins_at(reply.headers.get("Content-Range", ""), have):
                return "the server sends another part than the one asked for"
            with partial.open("ab" if reply.status_code == PART else "wb") as sink:
                looked_at = sink.tell()
                for chunk in reply.iter_raw():
                    sink.write(chunk)
                    report(sink.tell())
                    if n_bytes is not None and sink.tell() > n_bytes:
                        break
                    if n_bytes is None and sink.tell() - looked_at > SPARE_BYTES // 2:
                        looked_at = sink.tell()
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
    return content_range.removeprefix("bytes").strip().startswith(f"{first}-")


def _verify(partial: Path, n_bytes: int | None, sha256: str | None, label: str) -> None:
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
