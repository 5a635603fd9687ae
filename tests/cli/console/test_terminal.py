"""`llm chat` in pseudo-terminals of all kinds: keys, sizes, scripts, signals; and what stdin may be."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kukri.cli.generation.repetition import ends_in_repetition

from ...running import LLM, Run, failed
from ..chat.test_chat import RANDOM, Terminal, open_chat, terminals
from ..traps.models import write_script

__all__ = ["terminals"]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")

Open = Callable[..., Terminal]
LINE_MODES = termios.ICANON | termios.ECHO | termios.ISIG


@pytest.fixture
def chat(terminals: list[Terminal], environment: dict[str, str], tiny: Path) -> Open:
    """chat(*flags, model=tiny, **environment) → a terminal at its first prompt."""

    def start(*flags: str, model: Path = tiny, **more: str) -> Terminal:
        return open_chat(terminals, environment | more, model, *flags)

    return start


def modes(terminal: Terminal) -> int:
    """Echo, lines and signals, as a shell wants to find them again."""
    return int(termios.tcgetattr(terminal.process.fd)[3]) & LINE_MODES


def said(terminal: Terminal, path: Path) -> list[str]:
    """All messages of the conversation so far."""
    terminal.ask(f"/save {path}", "saved")
    return [turn["user"] for turn in json.loads(path.read_text())["turns"]]


def test_editing_keys(chat: Open, tmp_path: Path) -> None:
    terminal = chat("-n", "2")
    for keys, message in (
        ("hellp\x7fo", "hello"),
        ("ello\x01h", "hello"),
        ("helo\x1b[Dl", "hello"),
        ("xhello\x1b[H\x1b[3~", "hello"),
        ("hello world\x17\x7f", "hello"),
        ("gone\x15hello", "hello"),
        ("hello, gone\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x0b", "hello"),
        ("hel\x0b\x05lo", "hello"),
        ("/un\x15hello", "hello"),
    ):
        terminal.send(keys)
        terminal.ask("", "cut after")
        assert said(terminal, tmp_path / "c.json")[-1] == message, keys


def test_history_within_a_session_and_completion(chat: Open, tmp_path: Path) -> None:
    terminal = chat("-n", "2")
    terminal.ask("first", "cut after")
    terminal.ask("second", "cut after")
    terminal.send("\x1b[A\x1b[A")
    terminal.ask("!", "cut after")
    assert said(terminal, tmp_path / "c.json") == ["first", "second", "first!"]
    terminal.send("/sta\t")
    terminal.expect("/stats")
    terminal.ask("", "ended by length")


@pytest.mark.parametrize(
    "pasted",
    ["one\ntwo\n\nfour", "tabs\tand  spaces", "x" * 200, " /help\n/bye", "日本\nשלום", ' """no fence'],
)
def test_paste(chat: Open, tmp_path: Path, pasted: str) -> None:
    terminal = chat("-n", "2")
    terminal.send(f"\x1b[200~{pasted}\x1b[201~ end")
    terminal.ask("", "cut after")
    assert said(terminal, tmp_path / "c.json") == [f"{pasted} end"]


def test_several_lines_can_be_given_up(chat: Open, tmp_path: Path) -> None:
    terminal = chat("-n", "2")
    terminal.line('"""one')
    terminal.expect(r"\.\.\.")
    terminal.send("\x03")
    terminal.expect("Ctrl-D or /bye leaves")
    terminal.expect(">>>")
    terminal.line('"""a')
    terminal.expect(r"\.\.\.")
    terminal.line("")
    terminal.expect(r"\.\.\.")
    terminal.ask('b"""', "cut after")
    assert said(terminal, tmp_path / "c.json") == ["a\n\nb"]


@pytest.mark.parametrize(
    "text",
    [
        "日本語のテキスト",
        "e\u0301a\u0308\u0323 n\u0303",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
        "שלום עולם",
        "مرحبا بالعالم",
        "zero\u200bwidth",
    ],
    ids=["wide", "combining", "emoji", "Hebrew", "Arabic", "zero width"],
)
def test_characters_of_all_kinds(chat: Open, tmp_path: Path, text: str) -> None:
    terminal = chat("-n", "2")
    terminal.send(text + "x\x7f")
    terminal.ask("", "cut after")
    assert said(terminal, tmp_path / "c.json") == [text]


def test_answers_of_all_kinds_are_shown_as_they_are(chat: Open, llm: Run, tmp_path: Path) -> None:
    """Nothing is rendered: `**`, `#` and tables reach a terminal and a pipe alike."""
    text = "*a`#[x](y)|"
    model = write_script(tmp_path / "m.gguf", text.encode())
    terminal = chat("-t", "0", model=model)
    terminal.line("hi")
    terminal.expect(re.escape(text))
    assert llm("run", "-m", model, "-t", 0, "hi").stdout.decode() == text + "\n"


def test_an_answer_in_another_script(chat: Open, llm: Run, tmp_path: Path) -> None:
    text = "a\u05e9\U0001f98a"
    model = write_script(tmp_path / "m.gguf", text.encode())
    terminal = chat("-t", "0", model=model)
    terminal.line("hi")
    terminal.expect(text)
    assert llm("run", "-m", model, "-t", 0, "hi").stdout.decode() == text + "\n"


@pytest.mark.parametrize(("rows", "columns"), [(24, 10), (5, 20), (2, 4), (60, 300)])
def test_narrow_terminals_and_changing_sizes(
    chat: Open, endless: Path, tmp_path: Path, rows: int, columns: int
) -> None:
    terminal = chat(*RANDOM, model=endless)
    terminal.process.setwinsize(rows, columns)
    terminal.send("hello")
    terminal.process.setwinsize(30, 100)
    terminal.line("")
    terminal.expect(r"\S{5}")
    terminal.process.setwinsize(rows, columns)
    time.sleep(0.1)
    terminal.send("\x03")
    terminal.expect("interrupted", seconds=10)
    terminal.process.setwinsize(30, 100)
    terminal.line("/bye")
    assert terminal.end() == 0
    assert b"Traceback" not in terminal.raw


@pytest.mark.parametrize("term", ["dumb", "", "vt100", "no-such-terminal", "xterm"])
def test_kinds_of_terminals(environment: dict[str, str], tiny: Path, term: str) -> None:
    terminal = Terminal(environment, "chat", "-m", str(tiny), "-n", "2", term=term)
    terminal.expect(">>>")
    terminal.line("hello")
    terminal.expect("cut after")
    terminal.expect(">>>")
    terminal.line("/bye")
    assert terminal.end() == 0
    assert b"Traceback" not in terminal.raw
    if term == "dumb":
        assert b"\x1b" not in terminal.raw


def test_no_color(chat: Open) -> None:
    terminal = chat("-n", "2", NO_COLOR="1")
    terminal.ask("hello", "cut after")
    terminal.line("/bye")
    assert terminal.end() == 0
    assert not re.search(rb"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|2)m", terminal.raw)


def test_ctrl_c_in_each_phase(
    terminals: list[Terminal], environment: dict[str, str], endless: Path, tmp_path: Path
) -> None:
    loading = Terminal(environment, "chat", "-m", str(endless), *RANDOM)
    loading.expect("loading")
    loading.send("\x03")
    assert loading.end() == 130
    assert b"Traceback" not in loading.raw

    terminal = open_chat(terminals, environment, endless, *RANDOM)
    terminal.line("word " * 40)
    time.sleep(0.3)
    terminal.send("\x03")
    terminal.expect(r"interrupted", seconds=10)
    terminal.expect(">>>")
    for command in ("hello", "/regen", ""):  # a new answer, another one, more of it
        terminal.line(command)
        time.sleep(0.3)
        terminal.send("\x03")
        terminal.expect(r"interrupted", seconds=10)
        terminal.expect(">>>")
    terminal.send("\x04")
    assert terminal.end() == 0
    assert b"Traceback" not in terminal.raw


@pytest.mark.parametrize("how", ["/bye", "Ctrl-D", "SIGTERM", "SIGHUP", "SIGTERM while it writes"])
def test_the_terminal_is_as_it_was(environment: dict[str, str], endless: Path, how: str) -> None:
    terminal = Terminal(environment, "chat", "-m", str(endless), *RANDOM)
    before = modes(terminal)
    terminal.expect(">>>")
    time.sleep(0.2)
    assert modes(terminal) != before  # keys are read one by one now
    if how == "/bye":
        terminal.line("/bye")
    elif how == "Ctrl-D":
        terminal.send("\x04")
    else:
        if "writes" in how:
            terminal.line("hello")
            terminal.expect(r"hello\s+\S{5}")
        terminal.process.kill(getattr(signal, how.split()[0]))
    terminal.read_while_it_lives(10)
    terminal.process.wait()
    assert terminal.process.exitstatus == {"SIGTERM": 143, "SIGHUP": 129}.get(how.split()[0], 0)
    assert b"Traceback" not in terminal.raw
    assert terminal.raw.rfind(b"\x1b[?2004l") >= terminal.raw.rfind(b"\x1b[?2004h")


def test_a_window_that_is_closed(environment: dict[str, str], endless: Path) -> None:
    terminal = Terminal(environment, "chat", "-m", str(endless), *RANDOM)
    terminal.expect(">>>")
    terminal.line("hello")
    terminal.expect(r"hello\s+\S{5}")
    pid = terminal.process.pid
    os.close(terminal.process.fd)
    for _ in range(200):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("it goes on without a window")


def test_an_answer_that_turns_into_a_loop_is_stopped(chat: Open, endless: Path) -> None:
    terminal = chat("-t", "0", model=endless)
    terminal.line("hello")
    shown = terminal.expect(r"again and again; .*Enter on an empty line goes on")
    assert "repeat_penalty" in shown
    terminal.expect(">>>")
    terminal.ask("/set repeat_penalty 1.1", "repeat_penalty = 1.1")


def test_loops_are_told_from_texts() -> None:
    assert ends_in_repetition("so " * 400)
    assert ends_in_repetition("Once upon a time. " + "The same sentence, again. " * 40)
    assert ends_in_repetition("x" * 1000)
    assert not ends_in_repetition("=" * 400)
    assert not ends_in_repetition("The same sentence, again. " * 7)
    assert not ends_in_repetition("".join(f"{n}, " for n in range(2000)))
    assert not ends_in_repetition("".join(f"| {n:4} | {n * n:8} |\n" for n in range(300)))


def test_stdin_of_ten_megabytes(llm: Run, tiny: Path) -> None:
    start = time.monotonic()
    line = failed(llm("run", "-m", tiny, input=b"0123456789abcde\n" * (10 << 16)), 4)
    assert re.search(r"\b1048\d{4} tokens\b.*\b512\b", line)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("command", ["run", "chat"])
def test_empty_stdin_and_a_file(llm: Run, tiny: Path, tmp_path: Path, command: str) -> None:
    failed(llm(command, "-m", tiny, input=b""), 2)
    failed(llm(command, "-m", tiny, input=b"\n \n"), 2)
    assert "UTF-8" in failed(llm(command, "-m", tiny, input=bytes(range(256))), 2)
    (tmp_path / "prompt.txt").write_text("hello\n")
    with (tmp_path / "prompt.txt").open("rb") as file:
        done = llm(command, "-m", tiny, "-n", 3, stdin=file)
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 1


def test_pipes_that_never_close(environment: dict[str, str], tiny: Path) -> None:
    llm = " ".join(LLM)
    for line, code in (
        (f"yes | {llm} run -m {tiny} -n 3 --no-stdin hi", 0),
        (f"yes | {llm} run -m {tiny} hi", 2),
    ):
        done = subprocess.run(["bash", "-c", f"{line}; echo ${{PIPESTATUS[1]}}"], env=environment, timeout=60,
                              capture_output=True, check=False)  # fmt: skip
        assert done.stdout.endswith(b"%d\n" % code), done.stderr
    reading, writing = os.pipe()
    try:
        done = subprocess.run([*LLM, "run", "-m", str(tiny), "-n", "3", "--no-stdin", "hi"], env=environment,
                              stdin=reading, timeout=60, capture_output=True, check=False)  # fmt: skip
        assert done.returncode == 0
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("after", ["hello", "/regen", ""])
def test_ctrl_c_typed_right_behind_a_message(
    terminals: list[Terminal], environment: dict[str, str], endless: Path, after: str
) -> None:
    """It comes while the prompt still reads keys, which make no signals then."""
    terminal = open_chat(terminals, environment, endless, *RANDOM)
    terminal.line("hello")
    terminal.expect(r"hello\s+\S{5}")
    terminal.send("\x03")
    terminal.expect("interrupted", seconds=10)
    terminal.expect(">>>")
    terminal.send(after + "\r\x03")
    terminal.expect(r"\(interrupted", seconds=10)
    terminal.expect(">>>")
