"""Conversations that are kept: `--session`, `--resume`, and what `llm chat` keeps by itself."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import kukri
from kukri.cli.chat.conversation import Turn
from kukri.cli.keeping.keeper import Keeper, at_rest, open_keeper
from kukri.quant.cache_folder import CONVERSATIONS
from kukri.runtime.sessions.session_file import (
    SavedConversation,
    SavedSession,
    read_session,
    write_session,
)

from ...running import LLM, Run, failed
from ...tiny_model import write_tiny_model

if os.name != "nt":
    from ..chat.test_chat import Terminal

posix = pytest.mark.skipif(os.name == "nt", reason="terminals and signals of POSIX")
GREEDY = ("-t", "0", "-n", "8")


def answer(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr.decode()
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def texts(file: Path) -> list[str]:
    return [message["content"] for message in read_session(file).conversation.messages]


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "second.gguf", seed=3)


# ---- llm run --session


def test_each_prompt_goes_on_where_the_last_one_stopped(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    flags = ("run", "-m", tiny, *GREEDY, "-o", "json", "--session", file)
    one = answer(llm_inside(*flags, "-s", "be brief", "hello"))
    assert one["stats"]["cached_tokens"] == 0
    if os.name != "nt":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    two = answer(llm_inside(*flags, "and now?"))
    assert two["stats"]["cached_tokens"] > one["stats"]["prompt_tokens"]
    three = answer(llm_inside("run", *GREEDY, "-o", "json", "--session", file, input=b"piped\n"))
    assert three["stats"]["cached_tokens"] > two["stats"]["prompt_tokens"]
    assert three["model"] == str(tiny)  # the session's
    assert texts(file) == ["be brief", "hello", one["text"], "and now?", two["text"], "piped", three["text"]]
    without = tmp_path / "b.session"  # the same without a cache
    flags = ("run", "-m", tiny, *GREEDY, "-o", "json", "--session", without, "--kv-type", "f16")
    for text in ("hello", "and now?"):
        got = answer(llm_inside(*flags, "-s", "be brief", text))
    assert texts(without)[:4] == texts(file)[:4]
    assert got["stats"]["prompt_tokens"] == two["stats"]["prompt_tokens"]
    assert answer(llm_inside(*flags[:-2], "-s", "be brief", "x"))["stats"]["cached_tokens"] == 0  # q8_0


def test_another_model_reads_the_messages_anew(
    llm_inside: Run, tiny: Path, second: Path, tmp_path: Path
) -> None:
    file = tmp_path / "a.session"
    answer(llm_inside("run", "-m", tiny, *GREEDY, "-o", "json", "--session", file, "hello"))
    done = llm_inside("run", "-m", second, *GREEDY, "-o", "json", "--session", file, "again")
    assert answer(done)["stats"]["cached_tokens"] == 0
    assert done.stderr.decode().count("of another model, type") == 1
    assert len(texts(file)) == 4
    assert read_session(file).conversation.model == str(second)
    second.unlink()
    assert "second.gguf, which is not on disk; -m names" in failed(
        llm_inside("run", "--session", file, "more"), 3
    )


def test_a_model_in_a_file_of_somebody_is_not_downloaded(llm: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    assert llm("run", "-m", tiny, *GREEDY, "--session", file, "hello").returncode == 0
    raw = file.read_bytes()
    assert raw.count(str(tiny).encode()) == 1
    talk = SavedConversation(read_session(file).conversation.messages, "org/model:Q4_0")
    write_session(file, SavedSession(talk))
    assert "org/model:Q4_0, which is not on disk" in failed(llm("run", "--session", file, "more"), 3)


def test_plain_text_goes_on_as_it_is(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    flags = ("run", "-m", tiny, *GREEDY, "--raw", "-o", "json")
    one = answer(llm_inside(*flags, "--session", file, "the end in"))
    two = answer(llm_inside(*flags, "--session", file, " and then"))
    whole = answer(llm_inside(*flags, f"the end in{one['text']} and then"))
    assert (two["text"], two["stats"]["prompt_tokens"]) == (whole["text"], whole["stats"]["prompt_tokens"])
    assert two["stats"]["cached_tokens"] > 5
    assert read_session(file).conversation.raw
    three = answer(llm_inside("run", *GREEDY, "-o", "json", "--session", file, "."))  # the file knows
    assert three["stats"]["prompt_tokens"] > two["stats"]["prompt_tokens"]
    answer(llm_inside("run", "-m", tiny, *GREEDY, "-o", "json", "--session", tmp_path / "b", "hello"))
    assert "is a conversation, and --raw" in failed(llm_inside(*flags, "--session", tmp_path / "b", "x"), 2)


def test_what_does_not_go_together(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    run = ("run", "-m", tiny, *GREEDY, "--session", file)
    answer(llm_inside(*run, "-o", "json", "-s", "one", "hello"))
    before = file.read_bytes()
    assert "another system prompt" in failed(llm_inside(*run, "-s", "two", "x"), 2)
    assert "one answer" in failed(llm_inside(*run, "-N", 2, "x"), 2)
    assert "one answer" in failed(llm_inside(*run, "--logprobs", 2, "x"), 2)
    assert "two conversations" in failed(llm_inside(*run, "--resume", "x"), 2)
    assert "no prompt" in failed(llm_inside(*run), 2)
    # of a system prompt that only the settings have, the session's own goes before it
    answer(llm_inside(*run, "-o", "json", "x", env={"LLM_SYSTEM": "two"}))
    assert texts(file)[0] == "one"
    file.write_bytes(before)
    base = write_tiny_model(tmp_path / "base.gguf", template=None, name="raw-bytes")
    assert "no chat template" in failed(llm_inside("run", "-m", base, "--session", file, "x"), 2)
    assert file.read_bytes() == before


def test_two_processes_with_one_file(tiny: Path, tmp_path: Path) -> None:
    """The second one would replace what the first one has kept."""
    file = tmp_path / "a.session"
    for begun in (False, True):  # whether there is a file at first
        first, second = (open_keeper(str(file), resume=False) for _ in range(2))
        assert first is not None
        assert second is not None
        with kukri.load(tiny) as model:
            for keeper, message in ((first, "one"), (first, "two"), (second, "three")):
                conversation = keeper.begin(model, str(tiny), "", False, None)
                conversation.turns.append(Turn(message, reply="yes"))
                if keeper is second:
                    with pytest.raises(ValueError, match=r"a.session was changed by another process"):
                        keeper.save(conversation, model)
                else:
                    keeper.save(conversation, model)
        assert texts(file)[-2] == "two", begun


def test_files_that_cannot_be(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    run = ("run", "-m", tiny, *GREEDY, "--session")
    (tmp_path / "text").write_text("hello\n")
    assert "is no session" in failed(llm_inside(*run, tmp_path / "text", "x"), 5)
    assert "directory" in failed(llm_inside(*run, tmp_path, "x"), 1).lower()
    assert "No such file" in failed(llm_inside(*run, tmp_path / "none" / "a", "x"), 1)
    file = tmp_path / "a.session"
    answer(llm_inside(*run, file, "-o", "json", "hello"))
    good, draw = file.read_bytes(), random.Random(2)
    for n in range(12):
        bad = bytearray(good)
        if n < 3:
            del bad[draw.randrange(len(bad)) :]
        elif n < 6:
            bad[draw.randrange(600)] ^= 4  # in the header
        else:
            bad[len(bad) - 1 - draw.randrange(2000)] ^= 4  # in the pages
        file.write_bytes(bad)
        failed(llm_inside(*run, file, "x"), 5)
        assert file.read_bytes() == bad


def test_the_oldest_turns_stay_in_the_file(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    run = ("run", "-m", tiny, *GREEDY, "-o", "json", "-c", 256, "--session", file)
    prompts, gone = [], 0
    for i in range(6):
        done = llm_inside(*run, f"{i}: " + "word " * 12)
        prompts.append(answer(done)["stats"])
        gone += b"the oldest turns no longer fit" in done.stderr
    assert gone >= 1
    assert all(stats["prompt_tokens"] <= 256 - 8 for stats in prompts)
    assert any(stats["cached_tokens"] > 50 for stats in prompts[-2:])  # what is left is not read anew
    assert len(texts(file)) == 12
    assert read_session(file).conversation.dropped > 0
    run = ("run", "-m", tiny, *GREEDY, "-o", "json", "-c", 1024, "--session", file)
    assert answer(llm_inside(*run, "all?"))["stats"]["prompt_tokens"] > 300
    assert read_session(file).conversation.dropped == 0
    before = file.read_bytes()
    assert "but the context holds 64" in failed(llm_inside(*run[:-4], "-c", 64, *run[-2:], "z" * 264), 4)
    assert file.read_bytes() == before


@posix
def test_an_interrupted_answer_is_kept_as_far_as_it_came(
    environment: dict[str, str], endless: Path, tmp_path: Path
) -> None:
    file = tmp_path / "a.session"
    command = [*LLM, "run", "-m", str(endless), "-t", "0.8", "--seed", "1", "--session", str(file), "hello"]
    process = subprocess.Popen(
        command,
        env=environment,
        bufsize=0,  # `communicate` does not know what a buffer has read ahead
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    first = b""
    while len(first) < 40:
        first += process.stdout.read(40)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert texts(file)[1] == (first + rest).decode().removesuffix("\n")
    assert read_session(file).conversation.cut == "interrupted"


def test_what_a_model_thought_and_called_is_kept(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "content": "three", "reasoning_content": "hm"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "fou"},
    ]
    talk = SavedConversation(messages, "", cut="length", begun=[4, 5])
    write_session(tmp_path / "a", SavedSession(talk))
    keeper = Keeper(tmp_path / "a", read_session(tmp_path / "a"))
    keeper.check("", raw=False)
    model = SimpleNamespace(chat_template="x")
    conversation = keeper.begin(model, "smollm2", "", False, None)  # type: ignore[arg-type]
    assert [turn.user for turn in conversation.turns] == ["one", "two"]
    assert conversation.turns[0].steps == messages[2:4]
    assert (conversation.turns[0].reply, conversation.turns[0].thinking) == ("three", "hm")
    assert (conversation.turns[1].reply, conversation.turns[1].begun) == ("fou", [4, 5])
    kept_again = at_rest(conversation, "m")
    assert (kept_again.messages, kept_again.cut, kept_again.begun) == (messages, "length", [4, 5])
    wrong = SavedConversation([{"role": "tool", "content": "x"}])
    with pytest.raises(typer.BadParameter, match="begins with a message of the tool"):
        Keeper(tmp_path / "a", SavedSession(wrong)).check("", raw=False)


# ---- llm chat


@pytest.fixture
def open_chat(environment: dict[str, str]) -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*arguments: object, **more: str) -> Terminal:
        terminal = Terminal(environment | more, "chat", *map(str, arguments))
        opened.append(terminal)
        terminal.expect(">>>")
        return terminal

    yield start
    for terminal in opened:
        terminal.process.terminate(force=True)


def kept(environment: dict[str, str]) -> list[Path]:
    return sorted((Path(environment["KUKRI_HOME"]) / CONVERSATIONS.name).glob("*"))


@posix
def test_a_killed_chat_is_resumed(
    environment: dict[str, str], open_chat: Any, tiny: Path, second: Path, llm: Run
) -> None:
    chat = open_chat("-m", tiny, *GREEDY)
    assert kept(environment) == []  # there is nothing to keep yet
    chat.ask("hello", "cut after 8 tokens")
    chat.ask("and now?", "cut after 8 tokens")
    chat.process.kill(signal.SIGKILL)
    (file,) = kept(environment)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    before = texts(file)
    assert before[::2] == ["hello", "and now?"]

    chat = open_chat("--resume", *GREEDY)
    assert b"going on behind 2 turns; the last: and now?" in chat.raw
    chat.ask("", "cut after 8 tokens")  # the last answer goes on
    assert re_search(r"prompt: (\d+) tokens, (\d+) of them cached", chat.ask("/stats", "ended by"), apart=2)
    assert texts(file)[:3] == before[:3]
    assert texts(file)[3].startswith(before[3])
    assert len(texts(file)[3]) > len(before[3])
    chat.ask("/undo", "took back")
    assert texts(file) == before[:2]
    chat.send("\x04")
    assert chat.end() == 0
    assert kept(environment) == [file]

    told = llm("run", "--resume", *GREEDY, "-o", "json", "more")
    assert answer(told)["stats"]["cached_tokens"] > 10
    assert len(texts(file)) == 4

    chat = open_chat("--resume", "-m", second, *GREEDY)
    assert chat.raw.count(b"of another model, type") == 1
    chat.send("\x04")
    assert chat.end() == 0
    assert read_session(file).conversation.model == str(tiny)  # nothing was said
    assert read_session(file).kept.ids


def re_search(pattern: str, text: str, apart: int) -> bool:
    """Whether all but `apart` tokens of a prompt were cached."""
    import re

    found = re.search(pattern, text)
    assert found is not None, text
    return int(found[1]) - int(found[2]) <= apart


@posix
def test_commands_of_a_chat_with_a_session(open_chat: Any, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    chat = open_chat("-m", tiny, *GREEDY, "--session", file, "-s", "sys")
    assert not file.exists()
    chat.ask("one", "cut after 8 tokens")
    chat.ask("two", "cut after 8 tokens")
    assert texts(file)[:1] + texts(file)[1::2] == ["sys", "one", "two"]
    chat.ask("/regen", "cut after 8 tokens")
    assert len(texts(file)) == 5
    chat.ask("/system new", r"new\s+new")
    assert texts(file)[0] == "new"
    chat.ask(f"/save {tmp_path}/talk.json", "saved 2 turns")
    chat.ask("/clear", "starts anew")
    assert texts(file) == ["new"]
    chat.ask(f"/load {tmp_path}/talk.json", "loaded 2 turns")
    assert texts(file)[1::2] == ["one", "two"]
    chat.ask("/undo", "took back: two")
    assert texts(file)[1::2] == ["one"]
    size = file.stat().st_size
    chat.send("\x04")
    assert chat.end() == 0
    assert texts(file)[1::2] == ["one"]
    assert file.stat().st_size >= size
    chat = open_chat("--session", file, *GREEDY)
    chat.ask("three", "cut after 8 tokens")
    assert texts(file)[1::2] == ["one", "three"]


@posix
def test_what_keeps_no_conversation(environment: dict[str, str], open_chat: Any, tiny: Path) -> None:
    chat = open_chat("-m", tiny, *GREEDY, "--no-autosave")
    chat.ask("one", "cut after 8 tokens")
    chat = open_chat("-m", tiny, *GREEDY, LLM_NO_AUTOSAVE="1")
    chat.ask("one", "cut after 8 tokens")
    assert kept(environment) == []
    chat = open_chat("-m", tiny, *GREEDY, "--resume")
    assert b"no conversation is kept yet" in chat.raw
    chat.ask("one", "cut after 8 tokens")
    (file,) = kept(environment)
    chat.ask("/clear", "starts anew")
    assert kept(environment) == []
    chat.ask("two", "cut after 8 tokens")
    assert kept(environment) == [file]
    chat.send("\x04")
    chat.end()
    before = file.read_bytes()
    chat = open_chat("--resume", "--no-autosave", *GREEDY)
    chat.ask("three", "cut after 8 tokens")
    chat.send("\x04")
    assert chat.end() == 0
    assert file.read_bytes() == before
    if os.geteuid():
        file.parent.chmod(0o500)
        chat = open_chat("-m", tiny, *GREEDY)
        chat.ask("four", "no longer kept")
        file.parent.chmod(0o700)


@posix
def test_a_conversation_without_its_cache(environment: dict[str, str], open_chat: Any, tiny: Path) -> None:
    chat = open_chat("-m", tiny, *GREEDY, "--autosave-size", 0)
    chat.ask("one", "cut after 8 tokens")
    chat.send("\x04")
    assert chat.end() == 0
    (file,) = kept(environment)
    assert read_session(file).kept.ids == []
    chat = open_chat("--resume", *GREEDY)
    assert b"another model" not in chat.raw
    chat.ask("two", "cut after 8 tokens")
    assert len(texts(file)) == 4


SAVE = """
import sys
from kukri.runtime.sessions.session_file import SavedSession, read_session, write_session
from dataclasses import replace
from pathlib import Path
file = Path(sys.argv[1])
saved = read_session(file)
talk, n = saved.conversation, 0
print("ready", flush=True)
while True:
    n += 1
    messages = [{"role": "user", "content": f"message {n}"}]
    write_session(file, replace(saved, conversation=replace(talk, messages=messages)))
"""


@posix
def test_a_kill_while_saving_leaves_the_old_or_the_new_file(
    llm_inside: Run, tiny: Path, tmp_path: Path
) -> None:
    """A few of the kills of scripts/kill_test.py."""
    file, draw = tmp_path / "a.session", random.Random(0)
    answer(llm_inside("run", "-m", tiny, *GREEDY, "-o", "json", "--session", file, "hello " * 60))
    size = len(read_session(file).kept.ids)
    for _ in range(6):
        process = subprocess.Popen(
            [LLM[0], "-c", SAVE, str(file)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.05 * draw.random())
        process.kill()
        process.communicate()
        saved = read_session(file)  # in which every part has the right checksum
        assert len(saved.kept.ids) == size
    assert saved.conversation.messages[0]["content"].startswith("message ")
    assert len([name for name in os.listdir(tmp_path) if "partial" in name]) <= 1
