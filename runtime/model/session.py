"""Session: a conversation that is kept in a file, with what the KV cache holds of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ...quant.errors import DamagedFile
from ..engine.errors import ContextExceeded
from ..engine.sampling.params import SamplingParams
from ..engine.scheduling.placement import Kept
from .sampling_keywords import SamplingKeywords, sampling_params
from .session_file import SavedSession, fits, read_session, write_session

if TYPE_CHECKING:
    from .model import Model


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
    for one that cannot be read, and ValueError for another `system` prompt than the file has.
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
        self.messages = _messages(saved, self.path)
        known = (
            self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else None
        )
        if system is not None and system != known:
            raise ValueError(
                f"{self.path} is a session with another system prompt; leave it out, or take another file"
            )
        engine = model.engine
        layout, size = engine.machine.page_layout, engine.table.page_size
        if fits(saved, model.fingerprint, layout, size) and self._put_in(saved.kept):
            self._ids = saved.kept.ids
        elif warn is not None:
            warn(f"{self.path}: the cache of this session is of another model or machine, and is made anew")

    def _put_in(self, kept: Kept) -> bool:
        """Give the model's cache what the file has of it; False if there is no room for that."""
        try:
            return self.model.engine.put_in(kept)
        except ContextExceeded:
            return False
        except ValueError as problem:
            raise DamagedFile(f"{self.path.name} is not a session: {problem}") from None

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

        Raises OSError.
        """
        model = self.model
        kept = model.engine.take_out(self._ids)
        about = {"messages": self.messages, "model": model.name}
        saved = SavedSession(about, model.fingerprint, model.engine.machine.page_layout, kept)
        return write_session(self.path, saved)


def _messages(saved: SavedSession, path: Path) -> list[dict[str, Any]]:
    messages = saved.conversation.get("messages")
    sound = isinstance(messages, list) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in messages
    )
    if not sound:
        raise DamagedFile(f"{path.name} is not a session: it has no messages")
    return list(messages)  # type: ignore[arg-type]
