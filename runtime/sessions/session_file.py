"""Session files: a conversation, and what the KV cache holds of it (`kept_file.py` has the format).

The header says `version`, which `model` and `layout` the cache is of (`about_cache`), and what `to_parts`
says about the cache. The conversation is JSON in UTF-8, the part `conversation`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...quant.errors import DamagedFile
from ...untrusted import parse_json
from ..engine.scheduling.placement import Kept
from .kept_file import read_kept_file, write_kept_file
from .kept_pages import NOTHING, from_parts, to_parts

KIND = "session"
VERSION = 2
LONGEST = 32 << 20  # bytes of a conversation
MOST_MARKS = 1 << 20  # brackets, commas and colons of a conversation


@dataclass(frozen=True)
class SavedConversation:
    """A conversation at rest.

    `messages` have a `role`, a `content` and what else chat templates read; of a `raw` one they are parts of
    one text. `model` is what the user called the model by, "" if that is not known; `cut` says why the last
    answer is incomplete ("length", "interrupted", …), "" if it is complete. The oldest `dropped` turns, which
    begin with a message of the user, did not fit the context any more. `begun`: the tokens of an answer that
    was cut, what the model thought before it included, if they are known.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    raw: bool = False
    cut: str = ""
    dropped: int = 0
    begun: list[int] = field(default_factory=list)

    @property
    def system(self) -> str:
        """The system prompt, "" for none."""
        first = self.messages[0] if self.messages else {}
        return str(first["content"]) if first.get("role") == "system" else ""


@dataclass(frozen=True)
class SavedSession:
    """What a session file holds. `kept` is for models of this `about_cache` only; it may be empty."""

    conversation: SavedConversation
    cache: Mapping[str, Any] = field(default_factory=dict)
    kept: Kept = NOTHING


def write_session(path: Path, saved: SavedSession) -> int:
    """Write a session file that only this user can read, in place of one that is there; returns its bytes.

    It is there whole or not at all. Raises OSError, and ValueError for a conversation that is too long.
    """
    talk = saved.conversation
    text = json.dumps(asdict(talk), ensure_ascii=False).encode("utf-8", "replace")
    if len(text) > LONGEST:
        raise ValueError(f"{path.name}: the conversation has {len(text)} bytes; a session holds {LONGEST}")
    about, parts = to_parts(saved.kept)
    about |= {"version": VERSION, **saved.cache}
    return write_kept_file(path, KIND, about, {"conversation": np.frombuffer(text, np.uint8), **parts})


def read_session(path: Path) -> SavedSession:
    """A session file. Raises DamagedFile for one that is none, and OSError."""
    name = path.name
    file = read_kept_file(path, KIND)
    version, text = file.about.get("version"), file.parts.get("conversation")
    if version != VERSION:
        raise DamagedFile(f"{name} is a session of version {version!r:.20}; this kukri reads {VERSION}")
    if text is None or text.dtype != np.uint8 or text.size > LONGEST:
        raise DamagedFile(f"{name} is a damaged session: it has no conversation")
    facts = parse_json(text.tobytes(), name, MOST_MARKS, DamagedFile)
    kept = from_parts(file.about, file.parts, name)
    cache = {key: file.about.get(key) for key in ("model", "layout")}
    return SavedSession(_conversation(facts, name), cache, kept)


def _conversation(facts: Any, name: str) -> SavedConversation:
    messages: Any = facts.get("messages") if isinstance(facts, dict) else None
    sound = isinstance(messages, list) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str | None)
        for message in messages
    )
    kinds = {"model": str, "raw": bool, "cut": str, "dropped": int, "begun": list}
    sound = sound and all(type(facts.get(key)) is kind for key, kind in kinds.items())
    if not sound or not all(type(id_) is int for id_ in facts["begun"]):
        raise DamagedFile(f"{name} is a damaged session: it has no messages")
    return SavedConversation(messages, *(facts[key] for key in kinds))
