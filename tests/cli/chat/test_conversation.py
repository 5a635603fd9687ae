"""What happens when a conversation outgrows the window, and saved conversations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kukri.cli.chat import conversation as conversation_module
from kukri.cli.chat.conversation import LONGEST_FILE, Conversation, Turn, load, save
from kukri.runtime.answers.request import GenerationRequest


class Letters:
    """A model whose tokens are letters and whose template is "role:content;"."""

    context = 60
    tokenizer = SimpleNamespace(encode=lambda text: [ord(c) for c in text])

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [ord(c) for c in text]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode("".join(f"{m['role'][0]}:{m['content']};" for m in messages) + "a:")

    def encode_request(self, request: GenerationRequest) -> list[int]:
        assert request.messages is not None
        assert not isinstance(request.messages, str)
        return self.encode_chat(request.messages)


def fit(conversation: Conversation, max_tokens: int | None = None) -> tuple[str, int]:
    request, gone = conversation.fit(Letters(), max_tokens)  # type: ignore[arg-type]
    return "".join(map(chr, [*(request.ids or ()), *request.begun])), gone


def turns(*texts: str) -> list[Turn]:
    return [Turn(text, text.upper()) for text in texts[:-1]] + [Turn(texts[-1])]


def test_all_turns_stay_while_they_fit() -> None:
    conversation = Conversation("sys", turns=turns("one", "two", "six"))
    text, gone = fit(conversation)
    assert (text, gone) == ("s:sys;u:one;a:ONE;u:two;a:TWO;u:six;a:", 0)
    assert len(conversation.turns) == 3


def test_the_oldest_turns_go_first_and_the_system_prompt_stays() -> None:
    conversation = Conversation("s", turns=turns("one", "twoo", "q", "four"))
    text, gone = fit(conversation)
    assert text == "s:s;u:q;a:Q;u:four;a:"
    assert gone == len("u:one;a:ONE;u:twoo;a:TWOO;")
    assert [turn.user for turn in conversation.turns[conversation.dropped :]] == ["q", "four"]
    assert len(conversation.turns) == 4  # they are kept, though not part of prompts
    assert fit(conversation) == (text, 0)
    conversation.take_back_dropped(Letters(), None)  # type: ignore[arg-type]
    assert conversation.dropped == 2
    del conversation.turns[1:]  # as /undo does
    assert fit(conversation)[0] == "s:s;u:one;a:ONE"
    wide = Letters()
    wide.context = 200
    conversation = Conversation("s", turns=turns("one", "twoo", "q", "four"), dropped=2)
    conversation.take_back_dropped(wide, None)  # type: ignore[arg-type]
    assert conversation.dropped == 0


def test_after_turns_have_gone_the_prompt_stays_the_same_for_several_turns() -> None:
    conversation, prompts, steps = Conversation("s"), [""], []
    for i in range(40):
        conversation.turns.append(Turn(f"{i % 10}"))
        text, gone = fit(conversation)
        assert len(text) <= 45
        assert bool(gone) != text.startswith(prompts[-1].removesuffix("a:")) or i == 0
        steps += [i] if gone else []
        prompts.append(text)
        conversation.turns[-1].reply = "x"
    assert len(steps) == 9  # and not each of the 40: a turn has 8 letters, and 22 of 45 are freed


@pytest.mark.parametrize("n", [2, 3, 100, 2000])
def test_fitting_renders_a_prompt_a_few_times(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    rendered = []

    def encode_chat(self: Letters, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        rendered.append(len(messages))
        return [0] * (10 * len(messages))

    monkeypatch.setattr(Letters, "encode_chat", encode_chat)
    _, gone = fit(Conversation(turns=turns(*["x"] * n)), max_tokens=0)
    assert gone == (0 if n <= 3 else 10 * (2 * n - 1) - 30)
    assert len(rendered) <= 2 + 2 * n.bit_length()


def test_a_short_reply_needs_less_room() -> None:
    conversation = Conversation(turns=turns("one", "two", "three", "four"))
    assert fit(conversation, max_tokens=2)[1] == 0
    assert fit(conversation, max_tokens=1000)[1] > 0


def test_a_message_that_cannot_fit_costs_no_other_turn() -> None:
    conversation = Conversation(turns=turns("one", "x" * 100))
    text, _ = fit(conversation)
    assert len(text) > Letters.context
    assert len(conversation.turns) == 2


def test_a_message_that_fits_without_reserve_is_tried() -> None:
    conversation = Conversation(turns=turns("one", "x" * 50))
    text, gone = fit(conversation)
    assert (text, gone) == (f"u:{'x' * 50};a:", len("u:one;a:ONE;"))


def test_a_cut_answer_is_gone_on_from() -> None:
    conversation = Conversation(turns=[Turn("one", "ONE"), Turn("two", "TW", "length")])
    assert fit(conversation)[0] == "u:one;a:ONE;u:two;a:TW"


def test_raw_conversations_are_plain_text() -> None:
    conversation = Conversation("sys", raw=True, turns=[Turn("one", " and"), Turn("\ntwo", " or")])
    assert fit(conversation)[0] == "sys\n\none and\ntwo or"


def test_saved_conversations_come_back(tmp_path: Path) -> None:
    conversation = Conversation("sÿs", turns=[Turn("a\nb", "☃", "length"), Turn("c", "d")])
    save(conversation, "tiny", tmp_path / "c.json")
    assert load(tmp_path / "c.json") == (conversation.system, conversation.turns)
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"turns": [], "system": 3}',
        '{"system": "", "turns": [{"user": 1, "assistant": ""}]}',
        '{"system": "", "turns": [["user"]]}',
        '{"system": "", "turns": [{"user": "x"}]}',
        "[" * 100000,
    ],
    ids=range(8),
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(ValueError, match="not a saved conversation"):
        load(tmp_path / "c.json")


def test_what_is_no_ordinary_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="no ordinary file"):
        save(Conversation(), "tiny", tmp_path / "pipe")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    for other in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises((OSError, ValueError)):
            load(other)


def test_a_save_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*paths: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no room"):
        save(Conversation(), "tiny", tmp_path / "c.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("max_tokens", "room"), [(None, 45), (1000, 45), (15, 45), (14, 46), (2, 58), (0, 60)]
)
def test_the_room_that_a_reply_leaves(max_tokens: int | None, room: int) -> None:
    """A quarter of the context of 60 is kept free, or as much of it as the reply may take."""
    others = len("u:one;a:ONE;" + "u:;a:")
    full = Conversation(turns=turns("one", "x" * (room - others)))
    text, gone = fit(full, max_tokens)
    assert (len(text), gone, len(full.turns)) == (room, 0, 2)
    over = Conversation(turns=turns("one", "x" * (room - others + 1)))
    text, gone = fit(over, max_tokens)
    assert (len(text), gone, len(over.turns) - over.dropped) == (room + 1 - 12, 12, 1)


def test_a_message_of_the_whole_context_fits() -> None:
    whole = Conversation(turns=turns("one", "x" * 55))
    text, gone = fit(whole)
    assert (len(text), gone, len(whole.turns) - whole.dropped) == (60, 12, 1)
    too_long = Conversation(turns=turns("one", "x" * 56))
    text, gone = fit(too_long)
    assert (len(text), gone, len(too_long.turns)) == (61, 0, 2)


def test_several_turns_go_at_once() -> None:
    conversation = Conversation("sys", turns=turns("one", "two", "six", "x" * 30))
    assert fit(conversation) == (f"s:sys;u:{'x' * 30};a:", 36)
    assert conversation.turns[conversation.dropped :] == [Turn("x" * 30)]


def test_only_the_newest_of_equal_turns_is_gone_on_from() -> None:
    conversation = Conversation(turns=[Turn("one", "ONE"), Turn("one", "ONE")])
    assert fit(conversation)[0] == "u:one;a:ONE;u:one;a:ONE"


def test_a_turn_without_reply_in_the_middle() -> None:
    conversation = Conversation(turns=[Turn("one"), Turn("two")])
    assert fit(conversation)[0] == "u:one;a:;u:two;a:"
    raw = Conversation(raw=True, turns=[Turn("one"), Turn("\ntwo")])
    assert fit(raw)[0] == "one\ntwo"


def test_raw_conversations_may_hold_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(self: Letters, text: str, special: bool = False) -> list[int]:
        return [ord(c) for c in ("special " if special else "plain ") + text]

    monkeypatch.setattr(Letters, "encode", encode)
    assert fit(Conversation(raw=True, turns=[Turn("<s>one", " and")]))[0] == "special <s>one and"
    assert fit(Conversation(turns=[Turn("<s>one")]))[0] == "plain u:<s>one;a:"


def test_conversations_begin_empty_and_with_a_template() -> None:
    assert Conversation() == Conversation(system="", raw=False, turns=[])
    assert Turn("one") == Turn("one", reply=None, cut="")


def test_saved_text_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("an older one")
    save(Conversation("sÿs", turns=[Turn("☃", "yes", "length")]), "tiny", path)
    assert path.read_text(encoding="utf-8") == (
        '{\n "model": "tiny",\n "system": "sÿs",\n "turns": [\n'
        '  {\n   "user": "☃",\n   "assistant": "yes",\n   "cut": "length"\n  }\n ]\n}\n'
    )


def test_a_save_that_cannot_begin_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "no room", "a name that nobody knows")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="no room") as problem:
        save(Conversation(), "tiny", tmp_path / "c.json")
    assert problem.value.filename == str(tmp_path / "c.json")


@pytest.mark.skipif(os.name == "nt", reason="no modes")
@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_saved_conversations_are_private(tmp_path: Path, umask: int) -> None:
    """Whatever the umask, and also where a file stood that all could read."""
    path, shared = tmp_path / "new.json", tmp_path / "shared.json"
    shared.write_text("")
    shared.chmod(0o644)
    before = os.umask(umask)
    try:
        for each in (path, shared):
            save(Conversation("secret"), "tiny", each)
            assert each.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_turns_saved_without_a_cut_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"system": "s", "turns": [{"user": "one", "assistant": "ONE"}]}')
    assert load(path) == ("s", [Turn("one", "ONE", "")])
    path.write_text('{"system": "s", "turns": [{"user": "one", "assistant": "ONE", "cut": 1}]}')
    with pytest.raises(ValueError, match="not a saved conversation"):
        load(path)


def test_files_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LONGEST_FILE == 32 * 1024 * 1024
    path = tmp_path / "c.json"
    path.write_text('{"system": "s", "turns": []}')
    monkeypatch.setattr(conversation_module, "LONGEST_FILE", 28)
    assert load(path) == ("s", [])
    monkeypatch.setattr(conversation_module, "LONGEST_FILE", 27)
    with pytest.raises(ValueError, match="not a saved conversation"):
        load(path)
