"""Write a session again and again, for kill_test.py, which kills this while it does.

    python scripts/save_sessions.py FILE

Each has a number, as its message and in all of its pages, so that parts of two would be seen.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from kukri.runtime.engine.scheduling.placement import Kept
from kukri.runtime.sessions.session_file import (
    SavedConversation,
    SavedSession,
    read_session,
    write_session,
)

TIMES = 20


def save(path: Path) -> None:
    """Write the next TIMES sessions, of 8 MB each."""
    number = number_of(path) if path.exists() else 0
    for n in range(number + 1, number + TIMES + 1):
        pages = [np.full(1 << 16, n % 251, np.uint8) for _ in range(128)]
        talk = SavedConversation([{"role": "user", "content": str(n)}])
        write_session(path, SavedSession(talk, {}, Kept(list(range(8192)), pages)))


def number_of(path: Path) -> int:
    """The number of a session. AssertionError if its pages have another, DamagedFile if it is none."""
    saved = read_session(path)
    number = int(saved.conversation.messages[0]["content"])
    assert (len(saved.kept.pages), len(saved.kept.ids)) == (128, 8192)
    assert all((page == number % 251).all() for page in saved.kept.pages), "pages of another session"
    return number


if __name__ == "__main__":
    save(Path(sys.argv[1]))
