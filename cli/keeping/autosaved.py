"""The conversations of `llm chat` that are kept without being asked for, in kukri's own folder.

Each is a session file. The newest is the one that `--resume` goes on with.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from ...quant.cache_folder import CONVERSATIONS


def new_file() -> Path:
    """A name for a new conversation. Raises NoHome where others could write to the folder; OSError."""
    name = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{secrets.token_hex(3)}{CONVERSATIONS.ending}"
    return CONVERSATIONS.make() / name


def newest() -> Path | None:
    """The conversation that was kept last; None if there is none."""
    files = CONVERSATIONS.files()
    return files[0].path if files else None
