"""/explain and /alternatives: how the newest answer of a chat came about, and another token in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..console import terminal
from ..explain.page import Page, percent
from ..explain.subject import Choices, Subject
from ..explain.views import chosen_views, draw, facts_of
from .conversation import Conversation, Turn

if TYPE_CHECKING:
    from .session import Session

TOP = 8
VIEWS = ("probabilities",)  # of /explain, unless others are named


def explain(session: Session, rest: str) -> None:
    """Show views of the newest answer. ValueError if there is none."""
    turn = _newest(session)
    views = chosen_views([rest.replace(" ", ",")]) if rest else VIEWS
    with terminal.status("computing …"):
        facts = facts_of(_subject(session, turn, views), views)
    _show(facts)


def alternatives(session: Session, rest: str) -> None:
    """Show what could have stood in the place of each token of the newest answer; behind a position, only
    there; and behind a position and a number, go on with the alternative of that number."""
    turn = _newest(session)
    if turn.thinking or turn.steps:
        raise ValueError("/alternatives is for answers without thinking and tool calls")
    numbers = [int(word) if word.isdecimal() else -1 for word in rest.split()]
    if len(numbers) > 2 or -1 in numbers:
        raise ValueError("/alternatives [POSITION [NUMBER]] takes whole numbers")
    with terminal.status("computing …"):
        subject = _subject(session, turn, VIEWS)
        found = subject.answer.data(subject.tokenizer)
    if not numbers:
        _show({"probabilities": found})
        return
    places = [*(token["top"] for token in found["tokens"]), found["behind"]["top"]]
    at = numbers[0]
    if at >= len(places):
        raise ValueError(f"the answer has {len(places) - 1} tokens, numbered from 0")
    if len(numbers) == 1:
        page = Page()
        for i, token in enumerate(places[at], 1):
            mark = (
                " (taken)" if at < len(found["tokens"]) and token["id"] == found["tokens"][at]["id"] else ""
            )
            page.line(f"{i:>2}  {percent(token['probability']):>4}  {page.visible(token['text'])}{mark}")
        terminal.tell_painted(page.pieces)
        terminal.remark(f"(/alternatives {at} NUMBER goes on with one of them)")
        return
    if not 1 <= numbers[1] <= len(places[at]):
        raise ValueError(f"at {at} there are alternatives from 1 to {len(places[at])}")
    _go_on(session, turn, [*subject.answer.ids[:at], places[at][numbers[1] - 1]["id"]])


def _go_on(session: Session, turn: Turn, begun: list[int]) -> None:
    """Let the newest answer begin with these tokens. If nothing comes of that, the old one stays."""
    old, tokenizer = replace(turn), session.model.tokenizer
    shown = [id_ for id_ in begun if not tokenizer.is_special(id_)]
    turn.begun, turn.reply, turn.cut = begun, tokenizer.decode(shown), "length"
    if begun[-1] in session.model.end_ids:
        turn.begun, turn.cut = begun[:-1], ""
        terminal.remark("(the answer ends there)")
        return
    terminal.tell(turn.reply + " …")
    before = list(turn.begun)
    try:
        session.answer()
    finally:
        if turn.begun == before:
            session.conversation.turns[-1] = old


def _newest(session: Session) -> Turn:
    turns = session.conversation.turns
    if not turns or not turns[-1].reply:
        raise ValueError("there is no answer yet")
    return turns[-1]


def _subject(session: Session, turn: Turn, views: tuple[str, ...]) -> Subject:
    """The newest turn as what is explained: the prompt, and the tokens of its answer."""
    conversation: Conversation = session.conversation
    unanswered = replace(turn, reply=None, begun=[], cut="")
    asked = replace(conversation, turns=[*conversation.turns[:-1], unanswered])
    request, _ = asked.fit(session.model, session.params.max_tokens)
    given = turn.begun or session.model.tokenizer.encode(turn.reply or "")
    choices = Choices(TOP, None, None, 0, 3, session.params.max_tokens or 24)
    ids = list(request.ids or ())
    return Subject(session.model, session.name, turn.user, ids, session.params, choices, views, given)


def _show(facts: dict[str, Any]) -> None:
    page = Page()
    draw(page, facts)
    terminal.tell_painted(page.pieces)
