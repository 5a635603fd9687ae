"""What is typed or pasted while an answer is written, and keys of the prompt: in pseudo-terminals."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kukri.cli.chat.line_editor import EDITORS

from ...running import LLM
from .test_chat import RANDOM, Terminal, open_chat, terminals

if os.name != "nt":
    import termios

    from ptyprocess import PtyProcess

__all__ = ["terminals"]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")

Open = Callable[..., Terminal]


@pytest.fixture
def chat(terminals: list[Terminal], environment: dict[str, str], tiny: Path, endless: Path) -> Open:
    """chat(*flags, answers=False, **environment) → a terminal at its first prompt. With `answers` the model
    writes without end, otherwise two tokens."""

    def start(*flags: str, answers: bool = False, **more: str) -> Terminal:
        flags = (*flags, *((*RANDOM, "-c", "32768") if answers else ("-n", "2")))
        return open_chat(terminals, environment | more, endless if answers else tiny, *flags)

    return start


def said(terminal: Terminal, path: Path) -> list[str]:
    """All messages of the conversation so far."""
    terminal.ask(f"/save {path}", "saved")
    return [turn["user"] for turn in json.loads(path.read_text())["turns"]]


def start_answer(terminal: Terminal) -> None:
    terminal.line("hello")
    terminal.expect(r"hello\s+\S{5}")


def stop_answer(terminal: Terminal, then: str = ">>>") -> None:
    """Ctrl-C after a while; `then`: what the next prompt shows."""
    time.sleep(0.2)
    terminal.send("\x03")
    terminal.expect(r"\(interrupted; Enter", seconds=10)
    terminal.expect(then, seconds=10)
    time.sleep(0.2)  # the terminal may hold more of what the prompt shows
    terminal.drain()


LINES = "\n".join(f"def line_{n}(): return {'é' * 30} # {n}" for n in range(200))


@pytest.mark.parametrize("marked", [True, False], ids=["bracketed", "plain"])
def test_a_paste_during_an_answer_waits_as_one_message(chat: Open, tmp_path: Path, marked: bool) -> None:
    """200 lines were 200 questions. They are more than the 4096 bytes that a terminal's queue holds."""
    terminal = chat(answers=True)
    start_answer(terminal)
    pasted = LINES.replace("\n", "\r") + ("" if marked else "\r")
    terminal.send(f"\x1b[200~{pasted}\x1b[201~" if marked else pasted)
    stop_answer(terminal, "line_199")
    terminal.line("")
    terminal.expect(r"\(,\S\(")  # of the answer, which takes a while to begin
    stop_answer(terminal)
    assert said(terminal, tmp_path / "c.json") == ["hello", LINES]


def test_nothing_typed_shows_in_the_answer(chat: Open, tmp_path: Path) -> None:
    terminal = chat(answers=True)
    start_answer(terminal)
    seen = len(terminal.raw)
    terminal.send("~typed~\x1b[15~\x1b[A\x1b[B日本\r")
    time.sleep(0.3)
    terminal.send("\x03")
    terminal.expect(r"\(interrupted; Enter", seconds=10)
    answer = terminal.raw[seen : terminal.raw.index(b"(interrupted; Enter", seen)]
    assert b"~typed~" not in answer
    terminal.expect("~typed~日本")
    terminal.line("")
    stop_answer(terminal)
    assert said(terminal, tmp_path / "c.json") == ["hello", "~typed~日本"]


def test_a_line_is_edited_with_the_keys_that_were_typed_ahead(chat: Open, tmp_path: Path) -> None:
    terminal = chat(answers=True)
    start_answer(terminal)
    terminal.send("gone\x15ello\x01h\x05!!\x7f\x1b\rtwo")
    stop_answer(terminal, "two")
    terminal.line("")
    stop_answer(terminal)
    assert said(terminal, tmp_path / "c.json") == ["hello", "hello!\ntwo"]


def test_ctrl_d_during_an_answer_leaves_after_it(chat: Open) -> None:
    terminal = chat(answers=True)
    start_answer(terminal)
    terminal.send("\x04")
    time.sleep(0.2)
    assert terminal.process.isalive()
    terminal.send("\x03")
    assert terminal.end() == 0
    assert b"(interrupted; Enter" in terminal.raw


def test_the_modes_come_back_however_it_ends(terminals: list[Terminal], environment: dict[str, str],
                                             endless: Path) -> None:  # fmt: skip
    for how in ("error", "SIGTERM", "SIGTERM at the prompt", "Ctrl-C twice"):
        terminal = Terminal(environment, "chat", "-m", str(endless), *RANDOM)
        terminals.append(terminal)
        before = termios.tcgetattr(terminal.process.fd)
        terminal.expect(">>>")
        if how != "SIGTERM at the prompt":
            start_answer(terminal)
            assert not termios.tcgetattr(terminal.process.fd)[3] & (termios.ECHO | termios.ICANON)
            terminal.send("typed")
            time.sleep(0.1)
        if how == "error":
            terminal.send("\x03")
            terminal.expect(">>>")
            terminal.line("\x15/set repeat_penalty x")
            terminal.expect("no value for")
            terminal.expect(">>>")
            terminal.line("/bye")
        elif how == "Ctrl-C twice":
            terminal.send("\x03\x03")
            time.sleep(1)
            terminal.drain()
            terminal.send("\x15\x04")
        else:
            terminal.process.kill(signal.SIGTERM)
        terminal.read_while_it_lives(20)
        after = termios.tcgetattr(terminal.process.fd)
        terminal.drain()
        assert after[:4] == before[:4], how
        assert terminal.raw.rfind(b"\x1b[?2004l") > terminal.raw.rfind(b"\x1b[?2004h"), how


def shell(environment: dict[str, str], *arguments: str) -> Terminal:
    """A shell with job control that has started `llm` with these arguments."""
    terminal = Terminal.__new__(Terminal)
    environment = environment | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "PS1": "shell$ "}
    environment.pop("COLUMNS", None)
    terminal.process = PtyProcess.spawn(
        ["bash", "--norc", "--noprofile", "-i"], env=environment, dimensions=(30, 100)
    )
    terminal.raw, terminal._seen = b"", 0
    terminal.expect(r"shell\$ ")
    terminal.send(" ".join([*LLM, *arguments]) + "\n")
    return terminal


def test_ctrl_z_stops_and_fg_goes_on(
    terminals: list[Terminal], environment: dict[str, str], endless: Path, tmp_path: Path
) -> None:
    terminal = shell(environment, "chat", "-m", str(endless), *RANDOM)
    terminals.append(terminal)
    terminal.expect(">>>")
    terminal.send("half a \x1a")  # at the prompt: the line is kept
    terminal.expect(r"Stopped[^$]*shell\$ ")
    terminal.send("echo $((6*7)); fg\n")
    terminal.expect("42")
    terminal.expect(">>> half a")
    terminal.line("line")
    terminal.expect(r"line\s+\S{5}")
    terminal.send("\x1a")  # while it writes
    terminal.expect(r"Stopped[^$]*shell\$ ")
    modes = "import termios; print(termios.tcgetattr(0)[3] & termios.ICANON)"
    terminal.send(f"{sys.executable} -c '{modes}'; fg\n")
    terminal.expect(rf"\n\r?{termios.ICANON}\r")
    terminal.expect(r"chat -m \S+ [^\n]*\n[^\n]*\S{5}")
    terminal.send("typed")
    stop_answer(terminal, "typed")
    terminal.send("\x15")
    assert said(terminal, tmp_path / "c.json") == ["half a line"]
    terminal.send("\x04")
    terminal.expect(r"shell\$ ")
    assert b"Traceback" not in terminal.raw


@pytest.mark.parametrize("key", ["\n", "\x1b\r"], ids=["Ctrl-J", "Alt-Enter"])
def test_a_new_line_in_a_message(chat: Open, tmp_path: Path, key: str) -> None:
    terminal = chat()
    terminal.send(f"one{key}two{key}{key}four")
    terminal.ask("", "cut after")
    assert said(terminal, tmp_path / "c.json") == ["one\ntwo\n\nfour"]


def test_lines_pasted_without_marks_are_one_message(
    chat: Open, environment: dict[str, str], tmp_path: Path
) -> None:
    terminal = chat()
    pasted = "\n".join(f"\tline {n} of a paste on a terminal that does not mark it" for n in range(60))
    terminal.send(pasted.replace("\n", "\r"))
    terminal.expect("59 of a paste")
    time.sleep(0.3)
    terminal.line("")
    terminal.expect("context holds")  # the tiny model has room for 512 tokens
    terminal.send("one\rtwo")
    time.sleep(0.3)
    terminal.ask("", "cut after")
    assert said(terminal, tmp_path / "c.json") == ["one\ntwo"]
    history = Path(environment["KUKRI_HOME"], "chat_history").read_text()
    assert "+" + pasted.replace("\n", "\n+") in history


def test_a_message_of_several_lines_is_one_entry_of_the_history(chat: Open, tmp_path: Path) -> None:
    first = chat()
    first.line('"""one')
    first.expect(r"\.\.\.")
    first.ask('two"""', "cut after")
    first.line("/bye")
    assert first.end() == 0
    later = chat()
    later.send("\x1b[A\x1b[A")  # past /bye
    later.expect("two")
    later.ask("", "cut after")
    assert said(later, tmp_path / "c.json") == ["one\ntwo"]


def test_histories_of_older_versions_are_read(
    chat: Open, environment: dict[str, str], tmp_path: Path
) -> None:
    Path(environment["KUKRI_HOME"], "chat_history").write_text(
        '\n# 2026-01-01 00:00:00.000000\n+"""first\n\n# 2026-01-01 00:00:01.000000\n+second"""\n'
        "\n# 2026-01-01 00:00:02.000000\n+pasted\n+lines\n"
    )
    terminal = chat()
    terminal.send("\x1b[A")
    terminal.ask("", "cut after")
    assert said(terminal, tmp_path / "c.json") == ["pasted\nlines"]


def test_names_of_files_that_tab_shows_are_safe(tmp_path: Path) -> None:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from kukri.cli.chat.completer import ChatCompleter

    name = "a\x1b[31m\u202eb"
    (tmp_path / name).write_text("")
    found = ChatCompleter({"/load": None}).get_completions(Document(f"/load {tmp_path}/a"), CompleteEvent())
    assert [(each.text, each.display_text) for each in found] == [(name[1:], "a\ufffd[31m\ufffdb")]


def test_a_file_that_stderr_is_gets_no_escapes(
    terminals: list[Terminal], environment: dict[str, str], endless: Path, tmp_path: Path
) -> None:
    """The terminal itself is asked to mark what is pasted, whichever of the streams it is."""
    program = f"exec \"$@\" 2> '{tmp_path}/log'"
    command = ["sh", "-c", program, "sh", *LLM, "chat", "-m", str(endless), *RANDOM]
    terminal = Terminal(environment, command=command)
    terminals.append(terminal)
    terminal.expect(">>>")
    terminal.line("hello")
    terminal.expect(r"hello\s+\S{5}")
    assert terminal.raw.rindex(b"\x1b[?2004h") > terminal.raw.rindex(b"hello")
    terminal.send("\x03")
    terminal.expect(">>>")
    terminal.line("\x15/bye")
    assert terminal.end() == 0
    assert "interrupted" in (log := (tmp_path / "log").read_text())
    assert "\x1b" not in log


@pytest.fixture
def editor(tmp_path: Path) -> dict[str, str]:
    """The environment for an editor that notes its file, the file's mode and text, and appends a line."""
    program = tmp_path / "my editor.sh"
    program.write_text(
        f'#!/bin/sh\necho "$1" > "{tmp_path}/file"\nls -l "$1" >> "{tmp_path}/file"\n'
        f'cat "$1" > "{tmp_path}/before"\necho "\nadded in the editor" >> "$1"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"VISUAL": f"'{program}'"}


@pytest.mark.parametrize("way", ["keys", "command"])
def test_an_editor_for_the_message(chat: Open, editor: dict[str, str], tmp_path: Path, way: str) -> None:
    terminal = chat(**editor)
    if way == "keys":
        terminal.send("begun\x18\x05")
    else:
        terminal.line("/edit begun")
        terminal.expect(">>>")
    terminal.expect("added in the editor")
    terminal.ask("", "cut after")
    assert said(terminal, tmp_path / "c.json") == ["begun\nadded in the editor"]
    assert (tmp_path / "before").read_text() == "begun"
    name, listing = (tmp_path / "file").read_text().splitlines()
    assert listing.startswith("-rw------- ")
    assert not Path(name).exists()


def test_no_editor_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editor: dict[str, str]) -> None:
    """Nor is one looked for in the current folder, whatever PATH says; a path is the user's own word."""
    from kukri.cli.chat import line_editor

    (tmp_path / "my editor.sh").rename(tmp_path / "ed-here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(line_editor, "EDITORS", ())
    monkeypatch.setenv("VISUAL", "")
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}/usr/bin")
    for missing in ("", "ed-here", "no-such-editor -w", "./no-such-editor"):
        monkeypatch.setenv("EDITOR", missing)
        with pytest.raises(ValueError, match="there is no editor"):
            line_editor._check_editor()
    for found in ("./ed-here", f"'{tmp_path}/ed-here' -w", "env"):
        monkeypatch.setenv("EDITOR", found)
        line_editor._check_editor()


@pytest.mark.skipif(any(map(os.path.exists, EDITORS)), reason="an editor is installed")
def test_no_editor_is_said_in_a_chat(chat: Open, tmp_path: Path) -> None:
    terminal = chat(VISUAL="", EDITOR="", PATH=str(tmp_path))
    terminal.ask("/edit", "there is no editor")


def test_completion_of_commands_and_their_arguments(
    chat: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the chat's folder too: a short path fits into a line of the terminal
    folder = Path("some folder")
    folder.mkdir()
    (folder / "talk.json").write_text('{"system": "s", "turns": []}')
    terminal = chat()
    terminal.send("/set repeat_p\t")
    terminal.expect("enalty")
    terminal.ask(" 1.5", "repeat_penalty = 1.5")
    terminal.send(f"/load {folder}/ta\t")
    terminal.expect("lk.json")
    terminal.ask("", "loaded 0 turns")
    terminal.send("a\tb")  # Tab in a message is a tab
    terminal.ask("", "cut after")
    assert said(terminal, tmp_path / "c.json") == ["a\tb"]


def test_text_typed_while_the_model_loads_waits(
    terminals: list[Terminal], environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    terminal = Terminal(environment, "chat", "-m", str(tiny), "-n", "2")
    terminals.append(terminal)
    terminal.send("one\rtwo\rthree")
    terminal.expect(r">>>[^>]*three")
    terminal.ask("", "cut after")
    assert said(terminal, tmp_path / "c.json") == ["one\ntwo\nthree"]


def test_keys_that_are_typed_ahead() -> None:
    from prompt_toolkit.keys import Keys

    from kukri.cli.chat.keyboard import as_keys

    paste = Keys.BracketedPaste
    for typed, expected in (
        (b"", []),
        (b"\r\r", []),
        (b"abc\r", [(paste, "abc")]),
        (b"\ra\r\nb\n", [(paste, "a\n\nb")]),
        (b"\x1b[200~a\r\nb\x1b[201~ c", [(paste, "a\nb c")]),
        (b"\x1b[200~never ended", [(paste, "never ended")]),
        (b"\x1b[12;1Ra\x1b[<0;1;1M", [(paste, "a")]),
        ("日本\t€".encode() + b"\xff", [(paste, "日本\t€\ufffd")]),
        (b"a\x7fb", [(paste, "a"), (Keys.ControlH, "\x7f"), (paste, "b")]),
        (b"\x04", [(Keys.ControlD, "\x04")]),
        (b"a\x1b\rb", [(paste, "a\nb")]),
        (b"a\x1bb", [(paste, "a"), (Keys.Escape, "\x1b"), ("b", "b")]),
    ):
        assert [(press.key, press.data) for press in as_keys(typed)] == expected, typed
    assert re.fullmatch("[a]{9999}", as_keys(b"a" * 9999)[0].data)
