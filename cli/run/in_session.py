"""One answer as the next turn of a conversation that is kept in a file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from ..chat.conversation import Turn
from ..console import terminal
from ..console.wording import count
from ..generation.reply import INTERRUPTED, exit_code, why_cut
from .one_answer import NO_TEMPLATE, write_reply

if TYPE_CHECKING:
    from ...runtime.engine.sampling.params import SamplingParams
    from ...runtime.model.model import Model
    from ..generation.options import GenerationOptions
    from ..keeping.keeper import Keeper


def answer_in_session(
    loaded: Model, name: str, text: str, options: GenerationOptions, params: SamplingParams, keeper: Keeper
) -> None:
    """Write one reply to `text`, and keep both.

    A reply that Ctrl-C cut is kept as far as it came, and ends the command with 130; without any, nothing is.
    One that does not have the form that it must have ends it with 6.
    """
    conversation = keeper.begin(loaded, name, options.system_text, options.raw, params.max_tokens)
    conversation.asked = options.asked(loaded)
    if conversation.raw and not loaded.chat_template:
        terminal.remark(NO_TEMPLATE)
    turn = Turn(text)
    conversation.turns.append(turn)
    request, gone = conversation.fit(loaded, params.max_tokens)
    if gone:
        terminal.note(f"(the oldest turns no longer fit: {count(gone, 'token')} went)")
    reply = write_reply(loaded, name, replace(request, params=params), options)
    if reply.text or reply.finish_reason != INTERRUPTED:
        turn.reply, turn.thinking, turn.begun = reply.text, reply.thinking, [*reply.ids]
        turn.cut = reply.finish_reason if why_cut(reply, loaded, cure="") else ""
        keeper.save(conversation, loaded, ending=True)
    if code := exit_code(reply):
        raise typer.Exit(code)
