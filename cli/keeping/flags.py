"""The flags of `run` and `chat` that keep something on disk."""

from __future__ import annotations

from typing import Annotated

from ..console.options import flag

AUTOSAVE_SIZE = 1024  # MB

SessionFile = Annotated[
    str | None,
    flag("--session", metavar="FILE", help="Go on with the conversation in FILE, and keep it there."),
]
Resume = Annotated[bool, flag("--resume", help="Go on where the last conversation of llm chat stopped.")]
NoAutosave = Annotated[bool, flag("--no-autosave", help="Do not keep this conversation for --resume.")]
AutosaveSize = Annotated[
    int,
    flag(
        "--autosave-size",
        metavar="MB",
        min=0,
        help=f"Space for conversations that are kept; the oldest go; default: {AUTOSAVE_SIZE}.",
    ),
]
