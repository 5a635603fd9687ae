"""A conversation in a file: read before its model is loaded, written after each answer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...quant.cache_folder import CONVERSATIONS
from ...quant.safe_files import NewFile
from ...runtime.hub.errors import ModelNotFound
from ..chat.conversation import Conversation, Turn
from ..console import terminal
from ..console.explain import explain
from ..console.safe_text import one_line
from ..console.wording import count
from ..settings.model import lasting_name
from .autosaved import new_file, newest
from .flags import AUTOSAVE_SIZE

if TYPE_CHECKING:
    from ...runtime.model.model import Model
    from ...runtime.sessions.session_file import SavedConversation, SavedSession

EACH_ANSWER_BYTES = 64 << 20  # of pages that are written after each answer; more, only at the end


class Keeper:
    """Keeps a conversation in the file `path`, which need not exist; without a path it keeps nothing.

    `saved`: what the file has now. `most_bytes`: of the KV cache; conversations with more are kept without
    it. `autosaved`: the file is one that nobody named, in kukri's own folder, where others make room for it.
    `writes`: whether the file changes.
    """

    def __init__(
        self,
        path: Path | None,
        saved: SavedSession | None = None,
        most_bytes: int | None = None,
        autosaved: bool = False,
        writes: bool = True,
    ) -> None:
        self._path = path
        self._saved = saved
        self._most_bytes = most_bytes
        self._autosaved = autosaved
        self._writes = writes and path is not None
        self._model_name = ""
        self._written: tuple[SavedConversation, bool] | None = None  # the last one, and if its cache was, too
        self._seen = _state(path)  # of the file

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        return one_line(self._path.name) if self._path else ""

    @property
    def summary(self) -> str:
        """What there is to go on with, in a few words; "" if there is nothing."""
        turns = self._turns() if self._saved else []
        last = one_line(turns[-1].user)[:60] if turns else ""
        return f"going on behind {count(len(turns), 'turn')}; the last: {last}" if turns else ""

    # ---- before the model is loaded

    def model(self, named: str | None, by_user: bool) -> str | None:
        """The model to take: the one that the command line names, else the conversation's, else `named`.

        A file may come from anybody, so that its model is not downloaded: ModelNotFound if it is not there.
        """
        wanted = self._saved.conversation.model if self._saved else ""
        if by_user or not wanted:
            return named
        from ...runtime.hub.resolve import find_local

        found = None
        with suppress(ModelNotFound):
            found = find_local(wanted)
        if found is None or not found.exists():
            raise ModelNotFound(
                f"{self.name} is a conversation with {one_line(wanted)}, which is not on disk; -m names "
                "another model to go on with"
            )
        return wanted

    def check(self, system: str, raw: bool) -> None:
        """A usage error if the flags say something else than the file: another `system` prompt than the
        command line names ("": none is named), or the other kind of conversation."""
        if self._saved is None:
            return
        talk = self._saved.conversation
        if system and system != talk.system:
            raise typer.BadParameter(
                f"{self.name} has another system prompt; leave -s out, or take another file"
            )
        if raw and not talk.raw:
            raise typer.BadParameter(
                f"{self.name} is a conversation, and --raw goes on with plain text; take another file"
            )
        self._turns()

    # ---- with it

    def begin(self, model: Model, name: str, system: str, raw: bool, max_tokens: int | None) -> Conversation:
        """The conversation to go on with; what the file has of its KV cache is put into the model's.

        `name` is what the user calls the model; `system` and `raw` are for a new conversation.
        """
        self._model_name = lasting_name(name)
        if self._saved is None:
            return Conversation(system, raw or not model.chat_template)
        from ...runtime.sessions.session import restore
        from ...runtime.sessions.session_file import SavedSession

        talk = self._saved.conversation
        if not talk.raw and not model.chat_template:
            raise typer.BadParameter(
                f"{model.name} has no chat template, and {self.name} is a conversation; take another model"
            )
        conversation = Conversation(talk.system, talk.raw, self._turns(), max(0, talk.dropped))
        if not restore(model, self._saved, self.name):
            terminal.note(
                f"({self.name}: its KV cache is of another model, type or machine, or too large, so that the "
                "conversation is read anew)"
            )
        self._saved = SavedSession(talk)  # without what the file is mapped for
        conversation.take_back_dropped(model, max_tokens)
        self._written = at_rest(conversation, self._model_name), True
        return conversation

    def _turns(self) -> list[Turn]:
        """The turns of the file's conversation. A usage error if it begins with something else."""
        assert self._saved is not None
        talk = self._saved.conversation
        turns: list[Turn] = []
        for message in talk.messages[1:] if talk.system else talk.messages:
            if message["role"] == "user":
                turns.append(Turn(message["content"] or ""))
            elif turns:
                turns[-1].steps.append(message)
            else:
                role = one_line(message["role"])[:20]
                raise typer.BadParameter(f"{self.name} begins with a message of the {role}, not of a user")
        for turn in turns:
            _take_reply(turn)
        if turns and turns[-1].reply is None and not turns[-1].steps:
            turns.pop()
        if turns:
            turns[-1].cut, turns[-1].begun = talk.cut, [*talk.begun]
        return turns

    def save(self, conversation: Conversation, model: Model, ending: bool = False) -> None:
        """Write the file if anything has changed. The KV cache is written with it unless it is large; then
        only when the conversation is `ending`. Raises OSError, or ValueError for too long a conversation, and
        for a file that another process has changed: what that has kept is not replaced."""
        from ...runtime.sessions.kept_pages import NOTHING, about_cache, cached_bytes, take_out
        from ...runtime.sessions.session_file import SavedSession, write_session

        if self._path is None or not self._writes:
            return
        if _state(self._path) != self._seen:
            raise ValueError(f"{self.name} was changed by another process meanwhile, and stays as it is")
        if not conversation.turns and (self._autosaved or (self._saved is None and self._written is None)):
            if self._written is not None:  # it was cleared
                self._path.unlink(missing_ok=True)
                self._written = self._seen = None
            return
        talk = at_rest(conversation, self._model_name)
        ids = conversation.known_ids(model) if conversation.turns else []
        size = cached_bytes(model, ids)
        fits = self._most_bytes is None or size <= self._most_bytes
        with_cache = bool(ids) and fits and (ending or size <= EACH_ANSWER_BYTES)
        if self._written is not None and self._written[0] == talk and self._written[1] >= with_cache:
            return
        kept = take_out(model, ids) if with_cache else NOTHING
        write_session(self._path, SavedSession(talk, about_cache(model), kept))
        self._written = talk, with_cache
        self._seen = _state(self._path)
        if self._autosaved and self._most_bytes is not None:
            CONVERSATIONS.make_room(self._most_bytes, [self._path])


def _state(path: Path | None) -> tuple[int, int, int] | None:
    """What is another one after each time that a file is written; None where there is none."""
    with suppress(OSError):
        if path is not None:
            status = path.stat()
            return status.st_ino, status.st_mtime_ns, status.st_size
    return None


def _take_reply(turn: Turn) -> None:
    """Make the last message of a turn its reply, if it is one."""
    last = turn.steps[-1] if turn.steps else {}
    if last.get("role") == "assistant" and not last.get("tool_calls"):
        thinking = last.get("reasoning_content")
        turn.reply = last["content"] or ""
        turn.thinking = thinking if isinstance(thinking, str) else ""
        turn.steps.pop()


def at_rest(conversation: Conversation, model: str) -> SavedConversation:
    """A conversation as files hold it. `model`: what the model is called."""
    from ...runtime.sessions.session_file import SavedConversation

    messages: list[dict[str, Any]] = []
    if conversation.system:
        messages.append({"role": "system", "content": conversation.system})
    for turn in conversation.turns:
        messages += replace(turn, cut="", reply=turn.reply or "").messages()
    newest = conversation.turns[-1] if conversation.turns else Turn("")
    begun = newest.begun if newest.cut else []
    return SavedConversation(messages, model, conversation.raw, newest.cut, conversation.dropped, [*begun])


def open_keeper(
    session: str | None, resume: bool, autosave: bool = True, most_bytes: int = AUTOSAVE_SIZE << 20
) -> Keeper | None:
    """The keeper that --session or --resume names; None for neither, and where nothing is kept to resume.

    Raises DamagedFile for a file that is no session, OSError for one that cannot be read or written, before
    anything is computed, and a usage error. Without `autosave`, a resumed conversation is left as it is.
    """
    from ...runtime.sessions.session_file import read_session

    if session is not None and resume:
        raise typer.BadParameter("--session and --resume name two conversations; this goes on with one")
    if session is not None:
        path = Path(session).expanduser()
        saved = None
        with suppress(FileNotFoundError):
            saved = read_session(path)
        NewFile(path, private=True).discard()
        return Keeper(path, saved)
    if not resume:
        return None
    last = newest()
    if last is None:
        terminal.remark("(no conversation is kept yet, so this is a new one)")
        return None
    return Keeper(last, read_session(last), most_bytes, autosaved=True, writes=autosave)


def autosave_keeper(most_bytes: int) -> Keeper:
    """The keeper of a new conversation; one that keeps nothing, and a line that says why, where that cannot
    be."""
    try:
        return Keeper(new_file(), None, most_bytes, autosaved=True)
    except OSError as problem:
        terminal.remark(f"(this conversation is not kept for --resume: {explain(problem)})")
        return Keeper(None)
