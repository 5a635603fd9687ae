"""A conversation: its turns, and the prompt ids of as many of them as the context holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...quant.errors import DamagedFile
from ...quant.safe_files import NewFile
from ...untrusted import parse_json
from ..console.bounded_io import read_file
from ..console.safe_text import utf8

if TYPE_CHECKING:
    from ...runtime.answers.structured.response_format import ResponseFormat
    from ...runtime.model.model import Model

LONGEST_FILE = 32 << 20  # bytes
MOST_MARKS = 1 << 20  # brackets, commas and colons
RESERVE = 4  # 1/RESERVE of the context is kept free for the reply, if dropping old turns can free it
KEPT = 2  # 1/KEPT of the room for the prompt is filled at most after turns have been dropped


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
    """Turns in order, oldest first. A `raw` one is a text, which its turns are parts of, and has no chat
    template.

    With the newest message the model is told of the `form` that its answer must have.
    The oldest `dropped` turns are no longer part of prompts, since they do not fit the context.
    """

    system: str = ""
    raw: bool = False
    turns: list[Turn] = field(default_factory=list)
    dropped: int = 0
    form: ResponseFormat | None = None

    def fit(self, model: Model, max_tokens: int | None) -> tuple[list[int], int]:
        """The prompt's ids, and the number of tokens dropped with the oldest turns to make them fit.

        The system prompt and the newest turn always stay; if these alone exceed the context, nothing is
        dropped and the engine raises ContextExceeded. A reply in the newest turn is continued.

        If turns must go, half of the room is freed: until that is full again, each prompt begins with the one
        before, whose keys and values are in the cache. As in a shift of llama.cpp's context, which discards
        half of it. The prompt is rendered O(log turns) times.
        """
        room = self._room(model, max_tokens)
        before = self.dropped = max(0, min(self.dropped, len(self.turns) - 1))
        whole = self._ids(model, self.turns[before:])
        if len(whole) <= room:
            return whole, 0
        prompts = {before: whole}  # by the number of turns that are dropped

        def length(dropped: int) -> int:
            if dropped not in prompts:
                prompts[dropped] = self._ids(model, self.turns[dropped:])
            return len(prompts[dropped])

        most = len(self.turns) - 1
        dropped = _first(lambda n: length(n) <= room // KEPT, before, most)
        if length(dropped) > room // KEPT:  # the newest turn is long: keep what there is room for beside it
            dropped = _first(lambda n: length(n) <= room, before, most)
        if length(dropped) > model.context:
            return prompts[dropped], 0
        self.dropped = dropped
        return prompts[dropped], len(whole) - length(dropped)

    def take_back_dropped(self, model: Model, max_tokens: int | None) -> None:
        """Let all turns be part of prompts again if this model's context has room for them."""
        if self.dropped and len(self._ids(model, self.turns)) <= self._room(model, max_tokens):
            self.dropped = 0

    def known_ids(self, model: Model) -> list[int]:
        """What the prompt of the next message is going to begin with, and a little more."""
        following = Turn("\n" if self.raw else "?")
        return self._ids(model, [*self.turns[self.dropped :], following])

    @staticmethod
    def _room(model: Model, max_tokens: int | None) -> int:
        """The most tokens of a prompt for which no turn must go."""
        wanted = model.context // RESERVE
        return model.context - (wanted if max_tokens is None else min(wanted, max_tokens))

    def _ids(self, model: Model, turns: list[Turn]) -> list[int]:
        from ...runtime.answers.structured.constraints import told

        if self.raw:
            text = "".join(turn.user + (turn.reply or "") for turn in turns)
            return model.encode("\n\n".join([self.system, text] if self.system else [text]), special=True)
        messages = [{"role": "system", "content": self.system}] if self.system else []
        begun = ""
        for turn in turns:
            messages.append({"role": "user", "content": turn.user})
            if turn is turns[-1]:
                begun = turn.reply or ""
            else:
                messages.append({"role": "assistant", "content": turn.reply or ""})
        ids = model.encode_chat(told(messages, self.form))
        return ids + model.tokenizer.encode(begun) if begun else ids


def _first(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number from `low` to `high` that `fits`, as all above it do; `high` if none does."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def save(conversation: Conversation, model_name: str, path: Path) -> None:
    """Write a conversation as JSON that only this user can read, replacing the file once it is written.

    ValueError if what is there is no ordinary file, OSError if the file cannot be written.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is there and is no ordinary file")
    turns = [{"user": turn.user, "assistant": turn.reply, "cut": turn.cut} for turn in conversation.turns]
    data = {"model": utf8(model_name), "system": conversation.system, "turns": turns}
    with NewFile(path, private=True) as file:
        file.write(json.dumps(data, ensure_ascii=False, indent=1).encode() + b"\n")


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
