"""Session: a conversation that is kept in a file, with what the KV cache holds of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..answers.events import AnswerEvent, TextDelta
from ..answers.request import GenerationRequest
from ..engine.sampling.params import SamplingParams
from ..model.sampling_keywords import (
    AnswerKeywords,
    SamplingKeywords,
    generation_request,
    sampling_params,
)
from .kept_pages import about_cache, put_in, take_out
from .session_file import SavedConversation, SavedSession, read_session, write_session

if TYPE_CHECKING:
    from ..model.model import Model


def restore(model: Model, saved: SavedSession, name: str) -> bool:
    """Give a model's cache what a session has of it. False if that is of another model, type of cache or
    machine, or if there is no room for it. Raises DamagedFile, which calls the file `name`.

    A model that computes everything for itself (`deterministic`) does without.
    """
    if not saved.kept.ids or not model.engine.shares_beginnings:
        return True
    return saved.cache == about_cache(model) and put_in(model, saved.kept, name)


class Session:
    """A conversation in the file `path`, which need not exist yet.

        with kukri.load("smollm2") as model:
            session = kukri.Session(model, "trip.session")
            for piece in session.chat("Where were we?"):
                print(piece, end="")
            session.save()

    A session that is opened again goes on without computing anything that was computed before, as long as
    the model, the type of the KV cache and the machine are the same; with others it keeps its messages, and
    the next answer takes longer (`warn` is told). Raises DamagedFile for a file that is no session, OSError
    for one that cannot be read, and ValueError for another `system` prompt than the file has, or for a
    session of plain text (`llm run --raw --session`).
    """

    def __init__(
        self,
        model: Model,
        path: str | os.PathLike[str],
        system: str | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.model = model
        self.path = Path(path)
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self._ids: list[int] = []  # of the latest prompt and its answer
        try:
            saved = read_session(self.path)
        except FileNotFoundError:
            return
        talk = saved.conversation
        if talk.raw:
            raise ValueError(f"{self.path} is a session of plain text, which has no messages")
        if system is not None and system != talk.system:
            raise ValueError(
                f"{self.path} is a session with another system prompt; leave it out, or take another file"
            )
        self.messages = talk.messages
        if restore(model, saved, self.path.name):
            self._ids = saved.kept.ids
        elif warn is not None:
            warn(f"{self.path}: the cache of this session is of another model or machine, and is made anew")

    def chat(
        self,
        text: str,
        params: SamplingParams | None = None,
        variables: Mapping[str, Any] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Generator[str, None, None]:
        """The model's answer to a new message, in pieces; both become part of the conversation at its end.

        Arguments and errors are those of `Model.chat`. An answer that is closed early is kept as far as it
        came; if there is nothing of it, the message is forgotten.
        """
        params = sampling_params("chat", params, sampling)
        return _texts(self.answer(text, params=params, variables=variables))

    def answer(
        self, message: str | Mapping[str, Any] | Sequence[Mapping[str, Any]], **fields: Unpack[AnswerKeywords]
    ) -> Generator[AnswerEvent, None, None]:
        """The events of the model's answer to new messages: the text of one of the user, a message such as
        the result of a tool, or several. What the model thinks and the calls that it asks for become part of
        the conversation as well.

        `fields` are those of `Model.answer`, whose errors there are; see `chat`.
        """
        if isinstance(message, str):
            message = {"role": "user", "content": message}
        new = [message] if isinstance(message, Mapping) else message
        asked = [*self.messages, *(dict(each) for each in new)]
        request = generation_request(asked, fields)
        request = replace(request, ids=self.model.encode_request(request))
        return self._answer(asked, request)

    def _answer(
        self, asked: list[dict[str, Any]], request: GenerationRequest
    ) -> Generator[AnswerEvent, None, None]:
        answer = self.model.answer(request)
        try:
            with answer:
                yield from answer
        finally:
            self._ids = [*(request.ids or ()), *answer.tokens]
            if answer.text or answer.thinking or answer.tool_calls:
                self.messages = [*asked, answer.message()]

    def save(self) -> int:
        """Write the file; returns its bytes. It is there whole or, if anything goes wrong, as it was before.

        Raises OSError, and ValueError for a conversation of over 32 MB.
        """
        model = self.model
        talk = SavedConversation(self.messages, os.path.abspath(model.path))
        saved = SavedSession(talk, about_cache(model), take_out(model, self._ids))
        return write_session(self.path, saved)


def _texts(events: Generator[AnswerEvent, None, None]) -> Generator[str, None, None]:
    with closing(events):
        for event in events:
            if isinstance(event, TextDelta) and event.text:
                yield event.text
