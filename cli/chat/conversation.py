"""A conversation: its turns, and the prompt ids of as many of them as the context holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...quant.errors import DamagedFile
from ...quant.safe_files import NewFile
from ...untrusted import parse_json
from ..console.bounded_io import read_file
from ..console.safe_text import utf8

if TYPE_CHECKING:
    from ...runtime.answers.request import GenerationRequest
    from ...runtime.model.model import Model

LONGEST_FILE = 32 << 20  # bytes
MOST_MARKS = 1 << 20  # brackets, commas and colons
RESERVE = 4  # 1/RESERVE of the context is kept free for the reply, if dropping old turns can free it
KEPT = 2  # 1/KEPT of the room for the prompt is filled at most after turns have been dropped


@dataclass
class Turn:
    """A user message and the model's reply (None: not answered yet).

    `cut` says why the reply is incomplete ("length", "context", "interrupted"); "" if it is complete.
    `thinking`: what the model thought before it. `steps`: messages between the two, of tools that were called
    and their results. `begun`: the tokens of a reply that was cut, if they are known.
    """

    user: str
    reply: str | None = None
    cut: str = ""
    thinking: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)

    def messages(self) -> list[dict[str, Any]]:
        """What the chat template gets of it, without a reply that is still to be written."""
        messages = [{"role": "user", "content": self.user}, *self.steps]
        if self.reply is not None and not self.cut:
            reasoning = {"reasoning_content": self.thinking} if self.thinking else {}
            messages.append({"role": "assistant", "content": self.reply, **reasoning})
        return messages


@dataclass
class Conversation:
    """Turns in order, oldest first. A `raw` one is a text, which its turns are parts of, and has no chat
    template.

    `asked`: fields of the GenerationRequests beside the messages and parameters.
    The oldest `dropped` turns are no longer part of prompts, since they do not fit the context.
    """

    system: str = ""
    raw: bool = False
    turns: list[Turn] = field(default_factory=list)
    dropped: int = 0
    asked: dict[str, Any] = field(default_factory=dict)

    def fit(self, model: Model, max_tokens: int | None) -> tuple[GenerationRequest, int]:
        """What is asked of the model, and the number of tokens dropped with the oldest turns to make it fit.

        The system prompt and the newest turn always stay; if these alone exceed the context, nothing is
        dropped and the engine raises ContextExceeded. A reply in the newest turn is continued.

        If turns must go, half of the room is freed: until that is full again, each prompt begins with the one
        before, whose keys and values are in the cache. As in a shift of llama.cpp's context, which discards
        half of it. The prompt is rendered O(log turns) times.
        """
        room = self._room(model, max_tokens)
        before = self.dropped = max(0, min(self.dropped, len(self.turns) - 1))
        whole = self._request(model, self.turns[before:])
        if _length(whole) <= room:
            return whole, 0
        requests = {before: whole}  # by the number of turns that are dropped

        def length(dropped: int) -> int:
            if dropped not in requests:
                requests[dropped] = self._request(model, self.turns[dropped:])
            return _length(requests[dropped])

        most = len(self.turns) - 1
        dropped = _first(lambda n: length(n) <= room // KEPT, before, most)
        if length(dropped) > room // KEPT:  # the newest turn is long: keep what there is room for beside it
            dropped = _first(lambda n: length(n) <= room, before, most)
        if length(dropped) > model.context:
            return requests[dropped], 0
        self.dropped = dropped
        return requests[dropped], _length(whole) - length(dropped)

    def take_back_dropped(self, model: Model, max_tokens: int | None) -> None:
        """Let all turns be part of prompts again if this model's context has room for them."""
        if self.dropped and _length(self._request(model, self.turns)) <= self._room(model, max_tokens):
            self.dropped = 0

    def known_ids(self, model: Model) -> list[int]:
        """What the prompt of the next message is going to begin with, and a little more."""
        following = Turn("\n" if self.raw else "?")
        return list(self._request(model, [*self.turns[self.dropped :], following]).ids or ())

    @staticmethod
    def _room(model: Model, max_tokens: int | None) -> int:
        """The most tokens of a prompt for which no turn must go."""
        wanted = model.context // RESERVE
        return model.context - (wanted if max_tokens is None else min(wanted, max_tokens))

    def _request(self, model: Model, turns: list[Turn]) -> GenerationRequest:
        """What is asked of the model with these turns, with the ids of the prompt."""
        from ...runtime.answers.request import GenerationRequest

        if self.raw:
            text = "".join(turn.user + (turn.reply or "") for turn in turns)
            whole = "\n\n".join([self.system, text] if self.system else [text])
            form = self.asked.get("response_format")
            return GenerationRequest(ids=model.encode(whole, special=True), response_format=form)
        messages: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns[:-1]:
            messages += replace(turn, cut="", reply=turn.reply or "").messages()
        newest = turns[-1]
        messages += replace(newest, reply=None).messages()
        begun = newest.begun or (model.tokenizer.encode(newest.reply) if newest.reply else [])
        # Behind a call that had to be, the model is free to answer.
        free = {"tool_choice": "auto"} if newest.steps and "tools" in self.asked else {}
        request = GenerationRequest(messages, **{**self.asked, **free})
        return replace(request, ids=model.encode_request(request), begun=begun)


def _length(request: GenerationRequest) -> int:
    return len(request.ids or ()) + len(request.begun)


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
    turns = [
        {
            "user": turn.user,
            "assistant": turn.reply,
            "cut": turn.cut,
            **({"thinking": turn.thinking} if turn.thinking else {}),
            **({"steps": turn.steps} if turn.steps else {}),
        }
        for turn in conversation.turns
    ]
    data = {"model": utf8(model_name), "system": conversation.system, "turns": turns}
    with NewFile(path, private=True) as file:
        file.write(json.dumps(data, ensure_ascii=False, indent=1).encode() + b"\n")


def load(path: Path) -> tuple[str, list[Turn]]:
    """System prompt and turns of a file that `save` wrote; ValueError if it is not one."""
    try:
        data: Any = parse_json(read_file(path, LONGEST_FILE), path.name, MOST_MARKS, DamagedFile)
        turns = [
            Turn(
                turn["user"],
                turn["assistant"],
                turn.get("cut", ""),
                turn.get("thinking", ""),
                [dict(step) for step in turn.get("steps", ())],
            )
            for turn in data["turns"]
        ]
        system = data["system"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not a saved conversation") from None
    texts = [system, *(text for turn in turns for text in (turn.user, turn.reply, turn.cut, turn.thinking))]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{path} is not a saved conversation")
    return system, turns
