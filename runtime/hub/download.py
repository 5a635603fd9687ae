"""Downloading one file over HTTP: broken transfers are resumed, and size and digest are checked.

huggingface-hub deletes what a killed download has got so far, which for a model is too much to lose.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...quant.units import human_bytes
from .answers import Refused, TooSlow, ask, hurried
from .errors import StoreError
from .expected import Expected, compare
from .progress import NoProgress, ProgressFactory

ATTEMPTS = 5  # in a row that get the file no further, after which a transfer is given up
LEAST_PROGRESS = 1 << 16  # bytes that an attempt must bring, unless it brings the file's end
BEGIN_SECONDS = 60.0  # until a server must have begun to send a file
STALL_SECONDS = 60.0  # a transfer that brings less than LEAST_PROGRESS in this time is broken off
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416  # HTTP statuses
SPARE_BYTES = 64_000_000  # left free on the disk

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, what is known about its bytes, and the most bytes that it may have (None: as many
    as the disk has room for)."""

    url: str
    headers: dict[str, str]  # of the request
    expected: Expected
    label: str  # the file's name in messages
    most_bytes: int | None = None


def transfer(source: RemoteFile, partial: Path, progress: ProgressFactory = NoProgress) -> str:
    """Download `source` into the file `partial`, or the rest of it if a part is there; returns its SHA-256.

    `partial` is complete then, compared with what is expected, and written to the disk; `settle` gives it its
    name. A broken connection leaves it for the next attempt. It is deleted if it has another size or digest,
    and also if the server states none, since nobody could tell later what it is a part of. Raises StoreError,
    OSError, Refused, Unreachable or huggingface-hub's HTTPError.
    """
    n_bytes, label = source.expected.n_bytes, source.label
    if source.most_bytes is not None and (n_bytes or 0) > source.most_bytes:
        raise StoreError(f"{label} is {human_bytes(n_bytes or 0)} large, more than such a file may be")
    resumable = n_bytes is not None and source.expected.digest is not None
    if not resumable or plain_size(partial) > (n_bytes or 0):
        partial.unlink(missing_ok=True)
    require_space(partial.parent, (n_bytes or 0) - plain_size(partial), label)
    try:
        with progress(label, n_bytes) as shown:
            _transfer_all(source, partial, shown.at)
        return _verify(partial, source)
    except BaseException:
        if not resumable:
            partial.unlink(missing_ok=True)
        raise


def _transfer_all(source: RemoteFile, partial: Path, report: Callable[[int], None]) -> None:
    """Append to `partial` until it has all bytes of `source`, more than it should, or as many as there are.

    Only what goes beyond all attempts before counts as progress, so that a server that begins anew each time
    is given up.
    """
    n_bytes = source.expected.n_bytes
    failures, most = 0, plain_size(partial)
    while not partial.exists() or n_bytes is None or plain_size(partial) < n_bytes:
        problem = _append(source, partial, report)
        have = plain_size(partial)
        if problem is None and (n_bytes is None or have <= most):
            return  # the file is complete, or the server has no more of it
        failures = 0 if have - most >= LEAST_PROGRESS else failures + 1
        most = max(most, have)
        if failures == ATTEMPTS and have != n_bytes:
            raise StoreError(
                f"the download of {source.label} broke off at {human_bytes(have)} "
                f"({problem or 'the server ends it early'}); the same command goes on from there"
            )
        if problem is not None:
            time.sleep(min(0.1 * 2**failures, 4.0))


def plain_size(path: Path) -> int:
    """The size of the file `path`. Anything else of that name (a link, a file that has other names too, a
    pipe) is deleted, since writing to it would change something else: 0 then, as for no file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return 0
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        path.unlink()
        return 0
    return status.st_size


def _open_plain(path: Path) -> BinaryIO:
    """Open a file of one's own for reading and writing, and make it if there is none; no link is followed."""
    plain_size(path)
    flags = os.O_RDWR | os.O_CREAT
    for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):  # each on some systems only
        flags |= getattr(os, name, 0)
    return os.fdopen(os.open(path, flags, 0o666), "r+b")


def _append(source: RemoteFile, partial: Path, report: Callable[[int], None]) -> str | None:
    """Append the rest of `source` to `partial`; returns what cut the transfer short, None if nothing did.

    `report` is called with the size of `partial`. A stream longer than the file is not read to its end; one
    of unknown length is stopped by StoreError when the disk is nearly full or `source.most_bytes` are there.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HTTPError

    headers = source.headers
    if have := plain_size(partial):
        headers = {**headers, "Range": f"bytes={have}-"}
    timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    try:
        with ask("GET", source.url, headers, timeout, max(BEGIN_SECONDS, 2 * timeout)) as reply:
            resumed = reply.status_code == PARTIAL_CONTENT
            if resumed and not _begins_at(reply.headers.get("Content-Range", ""), have):
                return "the server sends another part than the one asked for"
            with _open_plain(partial) as sink:
                sink.truncate(have if resumed else 0)
                sink.seek(0, os.SEEK_END)
                _receive(reply, sink, partial.parent, source, report)
    except Refused as refusal:
        if have and refusal.status == RANGE_NOT_SATISFIABLE:
            return None  # the server has no more than `have` bytes
        if refusal.status < 500 and refusal.status not in (408, 429):
            raise
        return f"HTTP {refusal.status}"
    except (HTTPError, TooSlow) as error:
        return " ".join(str(error).split())[:200] or type(error).__name__
    return None


def _receive(
    reply: Any, sink: BinaryIO, folder: Path, source: RemoteFile, report: Callable[[int], None]
) -> None:
    """Write the body of `reply` to `sink`, a file in `folder`, until it ends or is longer than the file."""
    n_bytes, most_bytes = source.expected.n_bytes, source.most_bytes
    pace = _Pace(sink.tell())
    checked_at = sink.tell()  # when the free space was last looked at
    with hurried(reply, pace.is_late):
        for chunk in reply.iter_raw():
            sink.write(chunk)
            pace.done = done = sink.tell()
            report(done)
            if n_bytes is not None and done > n_bytes:
                return
            if most_bytes is not None and done > most_bytes:
                raise StoreError(
                    f"{source.label} is larger than {human_bytes(most_bytes)}, which it may not be"
                )
            if n_bytes is None and done - checked_at > SPARE_BYTES // 2:
                checked_at = done
                require_space(folder, 0, source.label)


class _Pace:
    """Whether a transfer gets on. `done`: bytes so far, which the receiver sets."""

    def __init__(self, done: int) -> None:
        self.done = done
        self._before = done
        self._since = time.monotonic()

    def is_late(self) -> bool:
        """Whether less than LEAST_PROGRESS has come in the last STALL_SECONDS that are over."""
        now = time.monotonic()
        if now - self._since < STALL_SECONDS:
            return False
        grown = self.done - self._before
        self._before, self._since = self.done, now
        return grown < LEAST_PROGRESS


def _begins_at(content_range: str, first: int) -> bool:
    """Whether a Content-Range header states a range that begins with byte `first`."""
    return content_range.removeprefix("bytes").strip().startswith(f"{first}-")


def _verify(partial: Path, source: RemoteFile) -> str:
    """The SHA-256 of `partial`, which is on the disk then. It is deleted, and StoreError raised, if its size
    or digest is not that of `source`."""
    with _open_plain(partial) as file:
        found = compare(file, source.expected, os.fstat(file.fileno()).st_size)
        os.fsync(file.fileno())
    if found.difference:
        partial.unlink()
        raise StoreError(f"{source.label} {found.difference}; it was deleted, try again")
    return found.sha256


def settle(partial: Path, target: Path) -> None:
    """Give the complete file `partial` its name `target`, lastingly: also after a power cut."""
    os.replace(partial, target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in `folder` written to the disk, where the system has a way to."""
    if os.name == "nt":
        return
    with suppress(OSError):  # some network file systems cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
