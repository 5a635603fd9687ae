"""The /commands of a chat session. They print to stderr."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console import terminal
from ..console.reply import show_stats
from . import conversation

if TYPE_CHECKING:
    from .session import Chat


def handle(chat: Chat, line: str) -> None:
    """Run one /command. EOFError ends the chat; ValueError or OSError: it cannot be done."""
    name, _, rest = line.partition(" ")
    name = {"/exit": "/bye", "/quit": "/bye", "/?": "/help"}.get(name, name)
    if name not in COMMANDS:
        raise ValueError(
            f"there is no command {name}; /help lists them (a space before the / sends it as text)"
        )
    COMMANDS[name][1](chat, rest.strip())


def _help(chat: Chat, rest: str) -> None:
    for name, (text, _) in COMMANDS.items():
        terminal.note(f"{name:9} {text}")
    terminal.note('"""       begins a message of several lines, and ends it')


def _clear(chat: Chat, rest: str) -> None:
    chat.conversation.turns.clear()
    terminal.remark("(the conversation starts anew)")


def _system(chat: Chat, rest: str) -> None:
    if rest:
        chat.conversation.system = rest
    terminal.note(chat.conversation.system or "(no system prompt)")


def _set(chat: Chat, rest: str) -> None:
    if not rest:
        for field in fields(chat.params):
            terminal.note(f"{field.name:16} {getattr(chat.params, field.name)}")
        return
    name, _, text = rest.partition(" ")
    name = name.replace("-", "_")
    kinds = {field.name: str(field.type) for field in fields(chat.params)}
    if name not in kinds:
        raise ValueError(f"there is no setting {name}; /set lists them")
    value: Any = _parse(name, kinds[name], text.strip())
    chat.params = replace(chat.params, **{name: value})
    terminal.note(f"{name} = {getattr(chat.params, name)}")


def _parse(name: str, kind: str, text: str) -> object:
    """A setting's value as its type says: a number, on/off, words, or "none" where that is allowed."""
    if "tuple" in kind:
        return tuple(shlex.split(text))
    if "None" in kind and text.lower() in ("none", ""):
        return None
    if "bool" in kind and text.lower() in ("on", "true", "yes", "1", "off", "false", "no", "0"):
        return text.lower() in ("on", "true", "yes", "1")
    try:
        return float(text) if "float" in kind else int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no value for {name} ({kind})") from None


def _show(chat: Chat, rest: str) -> None:
    config = chat.model.config
    rows = [
        ("model", chat.name),
        ("file", str(chat.model.path)),
        ("architecture", f"{config.arch}, {config.n_layers} layers"),
        ("context", f"{chat.model.context} tokens"),
        ("system", chat.conversation.system or "none"),
        ("turns", str(len(chat.conversation.turns))),
    ]
    terminal.note(terminal.pairs(rows).rstrip("\n"))
    _set(chat, "")


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))


def _save(chat: Chat, rest: str) -> None:
    if not rest:
        raise ValueError("/save needs a file name")
    conversation.save(chat.conversation, chat.name, _path(rest))
    terminal.remark(f"(saved {len(chat.conversation.turns)} turns to {rest})")


def _load(chat: Chat, rest: str) -> None:
    if not rest:
        raise ValueError("/load needs a file name")
    chat.conversation.system, chat.conversation.turns = conversation.load(_path(rest))
    terminal.remark(f"(loaded {len(chat.conversation.turns)} turns from {rest})")


def _regen(chat: Chat, rest: str) -> None:
    if not chat.conversation.turns:
        raise ValueError("there is no answer to write anew")
    chat.again()


def _undo(chat: Chat, rest: str) -> None:
    if not chat.conversation.turns:
        raise ValueError("there is no turn to take back")
    turn = chat.conversation.turns.pop()
    terminal.remark(f"(took back: {terminal.one_line(turn.user)[:60]})")


def _stats(chat: Chat, rest: str) -> None:
    if chat.last is None:
        raise ValueError("there is no answer yet")
    show_stats(chat.last)


def _bye(chat: Chat, rest: str) -> None:
    raise EOFError


COMMANDS: dict[str, tuple[str, Callable[[Chat, str], None]]] = {
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
    "/bye": ("leave (also Ctrl-D)", _bye),
}
