"""Files that appear under their name complete, and follow nothing that somebody else has put in their way.

Until it is complete, a file has a name in the same folder that nobody can guess, `.NAME.<16 hex
digits>.partial`, and is made with O_EXCL: in a folder that all users share, such as /tmp, no link that
another user planted is followed. An error or an interrupt removes it. What a killed process leaves is
removed when a file of the same name is next written by the same user; unfinished files of running processes
are locked, and stay.

A link under the file's name is replaced, never written through.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

_OF_WRITING = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
_LONGEST_NAME = 200  # bytes of a file's name in that of its unfinished file; most file systems allow 255


class NewFile:
    """A file being written: `file` is open for reading and writing, `commit` gives it its name `path`.

    As a context manager it gives `file`, commits at the end, and discards the file if the block raises. The
    file's mode is that of the file it replaces, if that is this user's, else what the umask leaves; `private`
    files are for this user only (0600), whatever was there.

    Raises OSError: FileExistsError for a path at which something else than a file is (/dev/null, a folder),
    and PermissionError where a file of another user is in the way that may not be replaced.
    """

    def __init__(self, path: Path, private: bool = False) -> None:
        self.path = path
        mode = _replaced_mode(path)
        remove_leftovers(path)
        self._temporary, self.file = _create(path, 0o600 if private else 0o666 if mode is None else mode)
        if mode is not None and not private and hasattr(os, "fchmod"):
            os.fchmod(self.file.fileno(), mode)

    def commit(self) -> None:
        """Sync the file to disk and give it its name, in place of what has that name. A second call has no
        effect. On an error the file is discarded."""
        if self.file.closed:
            return
        try:
            with about_file(self.path):
                self.file.flush()
                os.fsync(self.file.fileno())
            if os.name == "nt":  # there files that are open cannot be renamed
                self.file.close()
            with about_file(self.path):
                os.replace(self._temporary, self.path)
            self.file.close()
        except BaseException:
            self._remove()
            raise
        _sync_folder(self.path.parent)

    def discard(self, error: BaseException | None = None) -> None:
        """Remove the file, unless it has been committed. An `error` of writing, which knows only that a disk
        is full, is told the name."""
        if isinstance(error, OSError) and error.filename is None and error.errno in _OF_WRITING:
            error.filename = str(self.path)
        if not self.file.closed:
            self._remove()

    def _remove(self) -> None:
        with suppress(OSError):  # a full disk, of which the writer has heard
            self.file.close()
        with suppress(OSError):
            self._temporary.unlink()

    def __enter__(self) -> BinaryIO:
        return self.file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.discard(error)


def remove_leftovers(path: Path) -> None:
    """Remove unfinished files for `path` that killed processes of this user have left."""
    pattern = re.compile(re.escape(_stem(path)) + r"\.[0-9a-f]{16}\.partial")
    try:
        found = [each for each in path.absolute().parent.iterdir() if pattern.fullmatch(each.name)]
    except OSError:  # a folder that can be written and not listed
        return
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    for each in found:
        with suppress(OSError):
            if os.name == "nt":
                each.unlink()
                continue
            descriptor = os.open(each, flags)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and _is_own(status):
                    _lock(descriptor)
                    each.unlink()
            finally:
                os.close(descriptor)


def _stem(path: Path) -> str:
    """How the name of a file begins that is to become `path`."""
    return f".{os.fsencode(path.name)[:_LONGEST_NAME].decode('utf-8', 'ignore')}"


def _create(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A new, empty, locked file in the folder of `path`, of that mode less what the umask takes."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        temporary = path.with_name(f"{_stem(path)}.{secrets.token_hex(8)}.partial")
        with about_file(path):
            file = open(os.open(temporary, flags, mode), "w+b")  # noqa: SIM115 (`NewFile` closes it)
        with suppress(OSError):  # the file system has no locks, or another user holds one to annoy
            _lock(file.fileno())
        if os.name == "nt" or os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()  # before it was locked, another process took it for a leftover


def _lock(descriptor: int) -> None:
    """Lock an open file until it is closed; OSError if another process has locked it.

    Windows needs no lock: there nobody can remove a file that is open.
    """
    if os.name != "nt":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def about_file(path: Path) -> Iterator[None]:
    """A context whose OSErrors are about `path`, and not about a name that nobody knows."""
    try:
        yield
    except OSError as problem:
        if problem.errno is None:
            raise
        raise OSError(problem.errno, problem.strerror, str(path)) from None


def _replaced_mode(path: Path) -> int | None:
    """The permissions of the file of this user that a new one replaces; None if there is none.

    Raises OSError for what cannot be replaced, so that nobody learns it only when all is computed.
    """
    try:
        there = path.lstat()
    except FileNotFoundError:
        return None
    with suppress(FileNotFoundError):  # a link that leads nowhere
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "is there and is no ordinary file", str(path))
    folder = path.absolute().parent.stat()
    is_sticky = os.name != "nt" and folder.st_mode & stat.S_ISVTX
    if is_sticky and os.geteuid() not in (0, there.st_uid, folder.st_uid):
        raise PermissionError(errno.EPERM, "belongs to another user, who alone can remove it", str(path))
    own = stat.S_ISREG(there.st_mode) and _is_own(there)
    return there.st_mode & 0o777 if own else None


def _is_own(status: os.stat_result) -> bool:
    return os.name == "nt" or status.st_uid == os.geteuid()


def _sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that a rename in it survives a crash; where the system allows it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
