"""/explain and /alternatives of a chat, without a terminal around it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import kukri
from kukri.cli.chat.conversation import Conversation, Turn
from kukri.cli.chat.looking import alternatives, explain
from kukri.runtime.engine.sampling.params import SamplingParams


@pytest.fixture
def session(tiny: Path):
    """What /commands see of a session whose model has answered once; `answer` writes 4 tokens more."""
    with kukri.load(tiny, device="cpu", threads=1) as model:
        params = SamplingParams(temperature=0, max_tokens=4)
        conversation = Conversation()
        talk = SimpleNamespace(model=model, name="tiny", params=params, conversation=conversation)

        def answer() -> None:
            turn = conversation.turns[-1]
            request, _ = conversation.fit(model, 4)
            new = list(model.generate([*request.ids, *request.begun], params))
            turn.begun = [*request.begun, *new]
            turn.reply = (turn.reply or "") + model.tokenizer.decode(new)

        talk.answer = answer
        conversation.turns.append(Turn("the inn"))
        answer()
        yield talk


def test_explain(session, capfd: pytest.CaptureFixture[str]) -> None:
    explain(session, "")
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "Probabilities" in shown.err
    assert shown.err.count("100%") + shown.err.count("%") >= 4
    explain(session, "tokens lens")
    shown = capfd.readouterr().err
    assert "Tokens" in shown
    assert "Logit lens" in shown


def test_another_token(session, capfd: pytest.CaptureFixture[str]) -> None:
    turn = session.conversation.turns[-1]
    before = list(turn.begun)
    alternatives(session, "2")
    assert " 1  " in (shown := capfd.readouterr().err)
    assert "(taken)" in shown.splitlines()[0]
    alternatives(session, "2 2")
    assert turn.begun[:2] == before[:2]
    assert turn.begun[2] != before[2]
    assert len(turn.begun) == 7
    model = session.model
    prompt = model.encode_chat("the inn")
    assert turn.begun[3:] == list(model.generate([*prompt, *turn.begun[:3]], temperature=0, max_tokens=4))
    assert turn.reply == model.tokenizer.decode(turn.begun)


@pytest.mark.parametrize(
    ("rest", "words"),
    [("9", "the answer has 4 tokens"), ("1 99", "alternatives from 1"), ("x", "takes whole numbers")],
)
def test_what_is_not_there(session, rest: str, words: str) -> None:
    before = list(session.conversation.turns[-1].begun)
    with pytest.raises(ValueError, match=words):
        alternatives(session, rest)
    assert session.conversation.turns[-1].begun == before


def test_before_the_first_answer(session) -> None:
    session.conversation.turns.clear()
    with pytest.raises(ValueError, match="there is no answer yet"):
        explain(session, "")
