"""The /commands of a chat session. They print to stderr."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console import terminal
from ..console.safe_text import one_line
from ..console.table import pairs
from ..console.wording import count
from ..generation.reply import show_stats
from . import conversation
from .settings import NOT_FOR_CHAT, parsed, shown

if TYPE_CHECKING:
    from .session import Session


def handle(session: Session, line: str) -> None:
    """Run one /command. EOFError ends the chat; ValueError or OSError: it cannot be done."""
    name, _, rest = line.partition(" ")
    name = {"/exit": "/bye", "/quit": "/bye", "/?": "/help"}.get(name, name)
    if name not in COMMANDS:
        raise ValueError(
            f"there is no command {name}; /help lists them (a space before the / sends it as text)"
        )
    COMMANDS[name][1](session, rest.strip())


def _help(session: Session, rest: str) -> None:
    for name, (text, _) in COMMANDS.items():
        terminal.note(f"{name:13} {text}")
    terminal.note('"""           begins a message of several lines, and ends it')
    terminal.note(
        "Alt-Enter or Ctrl-J: a new line; Ctrl-X Ctrl-E: the message in your editor; Tab: completion"
    )


def _clear(session: Session, rest: str) -> None:
    session.conversation.turns.clear()
    session.conversation.dropped = 0
    terminal.remark("(the conversation starts anew)")


def _system(session: Session, rest: str) -> None:
    if rest:
        session.conversation.system = rest
    terminal.tell(session.conversation.system or "(no system prompt)")


def _set(session: Session, rest: str) -> None:
    if not rest:
        for name in _kinds(session):
            terminal.note(f"{name:21} {shown(name, getattr(session.params, name))}")
        return
    name, _, text = rest.partition(" ")
    name = name.replace("-", "_")
    kinds = _kinds(session)
    if name not in kinds:
        raise ValueError(f"there is no setting {name}; /set lists them")
    value: Any = parsed(name, kinds[name], text.strip())
    session.params = replace(session.params, **{name: value})
    terminal.note(f"{name} = {shown(name, getattr(session.params, name))}")


def _kinds(session: Session) -> dict[str, str]:
    """The settings and their types."""
    return {f.name: str(f.type) for f in fields(session.params) if f.name not in NOT_FOR_CHAT}


def _show(session: Session, rest: str) -> None:
    config = session.model.config
    rows = [
        ("model", session.name),
        ("file", str(session.model.path)),
        ("architecture", f"{config.arch}, {count(config.n_layers, 'layer')}"),
        ("context", f"{session.model.context} tokens"),
        ("system", session.conversation.system or "none"),
        ("turns", _turns(session)),
    ]
    terminal.tell(pairs(rows).rstrip("\n"))
    _set(session, "")


def _turns(session: Session) -> str:
    """How many turns there are, and how many of them do not fit the context any more."""
    talk = session.conversation
    return f"{len(talk.turns)}" + (f", {talk.dropped} of them no longer in prompts" if talk.dropped else "")


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))


def _save(session: Session, rest: str) -> None:
    if not rest:
        raise ValueError("/save needs a file name")
    conversation.save(session.conversation, session.name, _path(rest))
    terminal.remark(f"(saved {count(len(session.conversation.turns), 'turn')} to {rest})")


def _load(session: Session, rest: str) -> None:
    if not rest:
        raise ValueError("/load needs a file name")
    session.conversation.system, session.conversation.turns = conversation.load(_path(rest))
    session.conversation.dropped = 0
    terminal.remark(f"(loaded {count(len(session.conversation.turns), 'turn')} from {rest})")


def _regen(session: Session, rest: str) -> None:
    if not session.conversation.turns:
        raise ValueError("there is no answer to write anew")
    session.again()


def _undo(session: Session, rest: str) -> None:
    if not session.conversation.turns:
        raise ValueError("there is no turn to take back")
    turn = session.conversation.turns.pop()
    terminal.remark(f"(took back: {one_line(turn.user)[:60]})")


def _stats(session: Session, rest: str) -> None:
    if session.last is None:
        raise ValueError("there is no answer yet")
    show_stats(session.last)


def _edit(session: Session, rest: str) -> None:
    session.draft = rest


def _explain(session: Session, rest: str) -> None:
    from .looking import explain

    explain(session, rest)


def _alternatives(session: Session, rest: str) -> None:
    from .looking import alternatives

    alternatives(session, rest)


def _bye(session: Session, rest: str) -> None:
    raise EOFError


COMMANDS: dict[str, tuple[str, Callable[[Session, str], None]]] = {
    "/help": ("this list", _help),
    "/clear": ("forget the conversation, but not the system prompt", _clear),
    "/system": ("[TEXT] show or set the system prompt", _system),
    "/set": ("[NAME VALUE] show or set how tokens are chosen", _set),
    "/show": ("the model and the settings", _show),
    "/save": ("FILE write the conversation as JSON", _save),
    "/load": ("FILE read a conversation back", _load),
    "/regen": ("answer the last message anew", _regen),
    "/undo": ("take back the last message and its answer", _undo),
    "/stats": ("tokens and speeds of the last answer", _stats),
    "/explain": ("[VIEWS] how the last answer came about: probabilities, attention, lens, …", _explain),
    "/alternatives": (
        "[POSITION [NUMBER]] tokens that could have stood there; go on with one",
        _alternatives,
    ),
    "/edit": ("[TEXT] write the next message in the editor that EDITOR names", _edit),
    "/bye": ("leave (also Ctrl-D)", _bye),
}


def completions() -> dict[str, Sequence[str] | None]:
    """For each command the words that its argument may be; None: the name of a file."""
    from ...runtime.engine.sampling.params import (
        SamplingParams,  # imports NumPy, which most commands do without
    )

    settings = [field.name for field in fields(SamplingParams)]
    return {**dict.fromkeys(COMMANDS, ()), "/set": settings, "/save": None, "/load": None}
