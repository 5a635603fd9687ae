"""A conversation: its turns, and the prompt ids of as many of them as the context holds."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...quant.errors import DamagedFile
from ...untrusted import parse_json
from ..console.bounded_io import read_file

if TYPE_CHECKING:
    from ...runtime.model.model import Model

LONGEST_FILE = 32 << 20  # bytes
MOST_MARKS = 1 << 20  # brackets, commas and colons
RESERVE = 4  # 1/RESERVE of the context is kept free for the reply, if dropping old turns can free it


@dataclass
class Turn:
    """A user message and the model's reply (None: not answered yet).

    `cut` says why the reply is incomplete ("length", "context", "interrupted"); "" if it is complete.
    """

    user: str
    reply: str | None = None
    cut: str = ""


@dataclass
class Conversation:
    """Turns in order, oldest first. `raw` joins them as plain text instead of using a chat template."""

    system: str = ""
    raw: bool = False
    turns: list[Turn] = field(default_factory=list)

    def fit(self, model: Model, max_tokens: int | None) -> tuple[list[int], int]:
        """The prompt's ids, and the number of tokens dropped with the oldest turns to make them fit.

        The system prompt and the newest turn always stay; if these alone exceed the context, nothing is
        dropped and the engine raises ContextExceeded. A reply in the newest turn is continued.
        """
        wanted = model.context // RESERVE
        room = model.context - (wanted if max_tokens is None else min(wanted, max_tokens))
        before = ids = self._ids(model, self.turns)
        kept = self.turns
        while len(ids) > room and len(kept) > 1:
            kept = kept[1:]
            ids = self._ids(model, kept)
        if len(ids) > model.context:
            return ids, 0
        self.turns = kept
        return ids, len(before) - len(ids)

    def _ids(self, model: Model, turns: list[Turn]) -> list[int]:
        if self.raw:
            texts = [
                *([self.system] if self.system else []),
                *(turn.user + (turn.reply or "") for turn in turns),
            ]
            return model.encode("\n".join(texts), special=True)
        messages = [{"role": "system", "content": self.system}] if self.system else []
        begun = ""
        for turn in turns:
            messages.append({"role": "user", "content": turn.user})
            if turn is turns[-1]:
                begun = turn.reply or ""
            else:
                messages.append({"role": "assistant", "content": turn.reply or ""})
        ids = model.encode_chat(messages)
        return ids + model.tokenizer.encode(begun) if begun else ids


def save(conversation: Conversation, model_name: str, path: Path) -> None:
    """Write a conversation as JSON, replacing the file only once it is written. ValueError if what is there
    is no ordinary file."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is there and is no ordinary file")
    turns = [{"user": turn.user, "assistant": turn.reply, "cut": turn.cut} for turn in conversation.turns]
    data = {"model": model_name, "system": conversation.system, "turns": turns}
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def load(path: Path) -> tuple[str, list[Turn]]:
    """System prompt and turns of a file that `save` wrote; ValueError if it is not one."""
    try:
        data: Any = parse_json(read_file(path, LONGEST_FILE), path.name, MOST_MARKS, DamagedFile)
        turns = [Turn(turn["user"], turn["assistant"], turn.get("cut", "")) for turn in data["turns"]]
        system = data["system"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not a saved conversation") from None
    texts = [system, *(text for turn in turns for text in (turn.user, turn.reply, turn.cut))]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{path} is not a saved conversation")
    return system, turns
