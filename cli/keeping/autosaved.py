"""The conversations of `llm chat` that are kept without being asked for, in kukri's own folder.

Each is a session file. The newest is the one that `--resume` goes on with.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from pathlib import Path

from ...quant.home import home
from ...quant.ownership import private_folder

FOLDER = "conversations"
ENDING = ".session"
MOST = 16  # conversations


def autosave_folder() -> Path:
    """The folder, which only this user can read. Raises NoHome where others could write to it; OSError."""
    return private_folder(home(), FOLDER)


def new_file() -> Path:
    """A name for a new conversation."""
    return autosave_folder() / f"{time.strftime('%Y-%m-%d-%H%M%S')}-{secrets.token_hex(3)}{ENDING}"


def kept_files() -> list[Path]:
    """The files of all conversations, the newest first; none if there is no folder yet."""
    found = []
    with suppress(OSError):
        for path in (home() / FOLDER).iterdir():
            if path.name.endswith(ENDING) and not path.name.startswith("."):
                with suppress(OSError):
                    found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]


def make_room(most_bytes: int, beside: Path) -> None:
    """Delete the oldest conversations until at most MOST are left, which have no more than `most_bytes`
    together. `beside` stays."""
    total = 0
    for n, path in enumerate(kept_files()):
        with suppress(OSError):
            total += path.stat().st_size
            if path != beside and (n >= MOST or total > most_bytes):
                total -= path.stat().st_size
                path.unlink()
