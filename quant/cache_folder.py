"""Folders of files that kukri keeps for later: how large they are, and what goes first when they grow."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .home import home
from .ownership import private_folder
from .safe_files import remove_leftovers

UNFINISHED = ".partial"  # how names of files end that NewFile has not completed


@dataclass(frozen=True)
class CachedFile:
    """A file of a folder, its size in bytes, and when it was used last (nanoseconds since 1970)."""

    path: Path
    n_bytes: int
    used: int


@dataclass(frozen=True)
class CacheFolder:
    """A folder `name` in kukri's own, of files whose names end in `ending`, for this user only.

    `what` says what the files are. Those of a `disposable` one can be made again. At most `most_files` stay.
    Any number of processes may use it at once: files appear complete and are never changed, and one that
    another process deletes stays readable for those that have opened it.
    """

    name: str
    ending: str
    what: str
    disposable: bool = True
    most_files: int | None = None

    @property
    def path(self) -> Path:
        """Where it is, or would be."""
        return home() / self.name

    def make(self) -> Path:
        """The folder, made if it is missing. Raises NoHome where others could write to it; OSError."""
        return private_folder(home(), self.name)

    def files(self) -> list[CachedFile]:
        """Its files, the one that was used last first; none if there is no folder."""
        found = []
        with suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(self.ending) and not entry.name.startswith("."):
                    with suppress(OSError):  # it has just been deleted
                        status = entry.stat()
                        found.append(CachedFile(Path(entry.path), status.st_size, status.st_mtime_ns))
        return sorted(found, key=lambda file: file.used, reverse=True)

    def make_room(self, most_bytes: int, beside: Collection[Path] = ()) -> None:
        """Delete files, those that were used longest ago first, until at most `most_files` with no more than
        `most_bytes` together are left. Those of `beside` stay."""
        total, full = 0, False
        for n, file in enumerate(self.files()):
            too_many = self.most_files is not None and n >= self.most_files
            full = full or too_many or total + file.n_bytes > most_bytes
            if full and file.path not in beside:
                with suppress(OSError):
                    file.path.unlink()
            else:
                total += file.n_bytes

    def clear(self) -> tuple[int, int]:
        """Delete all files, and what killed processes left of others; how many, and their bytes."""
        n = n_bytes = 0
        for file in self.files():
            with suppress(OSError):
                file.path.unlink()
                n, n_bytes = n + 1, n_bytes + file.n_bytes
        with suppress(OSError):
            for path in self.path.glob(f".*{UNFINISHED}"):
                remove_leftovers(path.with_name(path.name[1:].rsplit(".", 2)[0]))
        return n, n_bytes


PROMPTS = CacheFolder("prompts", ".prompt", "beginnings of long prompts (--prompt-cache)")
CONVERSATIONS = CacheFolder(
    "conversations", ".session", "conversations of llm chat (--resume)", disposable=False, most_files=16
)
WEIGHTS = CacheFolder("weights", ".panels", "weights in the order that the processor reads (--weight-cache)")
FOLDERS = {folder.name: folder for folder in (PROMPTS, WEIGHTS, CONVERSATIONS)}  # all that `llm cache` knows
