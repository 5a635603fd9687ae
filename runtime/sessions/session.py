"""Session: a conversation that is kept in a file, with what the KV cache holds of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..engine.sampling.params import SamplingParams
from ..model.sampling_keywords import SamplingKeywords, sampling_params
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
        asked = [*self.messages, {"role": "user", "content": text}]
        ids = self.model.encode_chat(asked, variables=variables)
        return self._answer(asked, ids, params)

    def _answer(
        self, asked: list[dict[str, Any]], ids: list[int], params: SamplingParams
    ) -> Generator[str, None, None]:
        answer = ""
        continuation = self.model.submit(ids, params)
        try:
            with closing(continuation):
                for event in continuation:
                    answer += event.text
                    if event.text:
                        yield event.text
        finally:
            self._ids = [*ids, *continuation.generation.tokens]
            if answer:
                self.messages = [*asked, {"role": "assistant", "content": answer}]

    def save(self) -> int:
        """Write the file; returns its bytes. It is there whole or, if anything goes wrong, as it was before.

        Raises OSError, and ValueError for a conversation of over 32 MB.
        """
        model = self.model
        talk = SavedConversation(self.messages, os.path.abspath(model.path))
        saved = SavedSession(talk, about_cache(model), take_out(model, self._ids))
        return write_session(self.path, saved)
