"""A store of values by key in one SQLite file, those that were used longest ago out when it is full.

SQLite with a write-ahead log is what makes it safe under several processes: each reads while another writes,
and one that is killed leaves the last complete state.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time_ns

from ...quant.errors import DamagedFile

FILE = "answers.sqlite"
APPLICATION = 0x6B756B72  # in the file's header: whose file it is
VERSION = 1
BUSY_SECONDS = 2.0  # until another process has written
KEPT_SHARE = 0.9  # of the limit that is left when the oldest go, so that they do not go one by one
_SCHEMA = (
    "CREATE TABLE answers (key BLOB PRIMARY KEY, used INTEGER NOT NULL, value BLOB NOT NULL)",
    "CREATE INDEX by_use ON answers (used)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
_LOG_BYTES = 4 << 20  # that the write-ahead log may keep
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@dataclass(frozen=True)
class Contents:
    """How many answers a store has, the bytes of its files, and when it was used last (nanoseconds since
    1970; None: never)."""

    n: int
    n_bytes: int
    used: int | None


class Store:
    """The store in the folder `folder`, which is made if it is missing. For any number of threads.

    `most_bytes`: of its file; beyond that, what was used longest ago goes. Raises DamagedFile for a file that
    is damaged or of another program, and OSError.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        folder = folder.expanduser()
        self.path = folder / FILE
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):  # SQLite would make it readable for others
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            self._database = sqlite3.connect(
                self.path, BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as problem:
            raise OSError(None, str(problem), str(self.path)) from None
        try:
            with self._errors():
                self._open()
        except BaseException:
            self._database.close()
            raise

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Whether a folder has a store."""
        return (folder.expanduser() / FILE).is_file()

    def _open(self) -> None:
        execute = self._database.execute
        execute("PRAGMA trusted_schema = OFF")
        execute("BEGIN")  # the numbers of one moment: another process may be making the file
        try:
            ours = self._is_ours()
        finally:
            execute("ROLLBACK")
        if not ours:
            execute("PRAGMA journal_mode = WAL")
            execute("BEGIN IMMEDIATE")
            try:
                if not self._is_ours():  # another process may have been quicker
                    for statement in _SCHEMA:
                        execute(statement)
                execute("COMMIT")
            except BaseException:
                execute("ROLLBACK")
                raise
        execute("PRAGMA synchronous = NORMAL")  # of a power cut, the last answers may be lost
        execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")

    def _is_ours(self) -> bool:
        """Whether the file is one of these; False for one that is empty. DamagedFile for another one. Within
        a transaction, so that the three numbers belong together."""
        application, version = self._number("application_id"), self._number("user_version")
        if (application, version) == (APPLICATION, VERSION):
            return True
        if application or version or self._number("schema_version"):
            raise DamagedFile(f"{self.path} is no cache of answers, or that of another version: {_CURE}")
        return False

    def _number(self, pragma: str) -> int:
        return int(self._database.execute(f"PRAGMA {pragma}").fetchone()[0])

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, which counts as used now; None if there is none."""
        with self._lock, self._errors():
            found = self._database.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
            if found is None:
                return None
            with self._unless_busy():
                self._database.execute("UPDATE answers SET used = ? WHERE key = ?", (time_ns(), key))
        value = found[0]
        return value if isinstance(value, bytes) else None

    def put(self, key: bytes, value: bytes) -> None:
        """Keep the value of a key, in place of an older one. Where another process keeps on writing, nothing
        is kept."""
        with self._lock, self._errors(), self._unless_busy():
            self._database.execute(
                "INSERT OR REPLACE INTO answers (key, used, value) VALUES (?, ?, ?)", (key, time_ns(), value)
            )
            if self._most_bytes is not None and self._used_bytes() > self._most_bytes:
                self._make_room(int(self._most_bytes * KEPT_SHARE))

    def _used_bytes(self) -> int:
        """Bytes of the file without the pages that are free again, which are filled before it grows."""
        pages = self._number("page_count") - self._number("freelist_count")
        return pages * self._number("page_size")

    def _make_room(self, most: int) -> None:
        """Delete what was used longest ago, until the file has `most` bytes in use."""
        while self._used_bytes() > most:
            n = self._database.execute("SELECT count(*) FROM answers").fetchone()[0]
            if not n:
                return
            self._database.execute(
                "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY used LIMIT ?)",
                (max(1, n // 16),),
            )

    def contents(self) -> Contents:
        """What there is."""
        with self._lock, self._errors():
            n, used = self._database.execute("SELECT count(*), max(used) FROM answers").fetchone()
        return Contents(n, sum(size_of(self.path)), used)

    def clear(self) -> tuple[int, int]:
        """Delete all answers; how many, and how much smaller the files are."""
        before = sum(size_of(self.path))
        with self._lock, self._errors():
            n = self._database.execute("DELETE FROM answers").rowcount
            self._database.execute("VACUUM")
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return n, max(0, before - sum(size_of(self.path)))

    def close(self) -> None:
        """Close the file. Later calls raise an error of sqlite3."""
        with self._lock:
            self._database.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What SQLite says, as DamagedFile or OSError with one line."""
        try:
            yield
        except sqlite3.OperationalError as problem:  # locked, a full disk, no right to write
            raise OSError(None, f"the cache of answers cannot be used: {problem}", str(self.path)) from None
        except sqlite3.DatabaseError as problem:
            raise DamagedFile(f"{self.path} is damaged ({problem}): {_CURE}") from None

    @contextmanager
    def _unless_busy(self) -> Iterator[None]:
        """Leave out what is in the block where another process keeps on writing."""
        try:
            yield
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode & 0xFF not in _BUSY:
                raise


_CURE = "delete it, or name another folder"


def size_of(path: Path) -> list[int]:
    """Bytes of the file of a store and of those that SQLite has beside it, as far as they are there."""
    found = []
    for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with suppress(OSError):
            found.append(each.stat().st_size)
    return found
