"""`llm chat`: in a terminal of its own, and with piped text."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from ...running import LLM, Run, failed
from ...tiny_model import write_tiny_model

if os.name != "nt":
    from ptyprocess import PtyProcess

pytestmark = pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")

ESCAPES = re.compile(rb"\x1b\[[0-9;?<>=]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")

# Answers without end that never turn into a loop; by this seed they begin with a long word.
RANDOM = ("-t", "2", "--min-p", "0.01", "--seed", "6")


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(
        self,
        environment: dict[str, str],
        *arguments: str,
        command: Sequence[str] = LLM,
        term: str = "xterm-256color",
        columns: int = 100,
    ) -> None:
        environment = environment | {"TERM": term, "PROMPT_TOOLKIT_NO_CPR": "1"}
        environment.pop("COLUMNS", None)
        self.process = PtyProcess.spawn([*command, *arguments], env=environment, dimensions=(30, columns))
        self.raw = b""
        self._seen = 0

    def expect(self, pattern: str, seconds: float = 30) -> str:
        """Read until `pattern` shows up in what is new, without escape codes; returns that."""
        deadline = time.monotonic() + seconds
        while True:
            new = ESCAPES.sub(b"", self.raw)[self._seen :].decode("utf-8", "replace")
            if match := re.search(pattern, new):
                self._seen += len(new[: match.end()].encode())
                return new[: match.end()]
            assert time.monotonic() < deadline, f"no {pattern!r} in {new!r}"
            if self.process.fd_ready(0.1):
                try:
                    self.raw += self.process.read(65536)
                except EOFError:
                    raise AssertionError(f"it ended without {pattern!r}: {new!r}") from None

    def drain(self) -> None:
        """Read what is there, and expect none of it."""
        with suppress(EOFError):
            while self.process.fd_ready(0):
                self.raw += self.process.read(65536)
        self._seen = len(ESCAPES.sub(b"", self.raw))

    def send(self, text: str) -> None:
        self.process.write(text.encode())

    def line(self, text: str) -> None:
        self.send(text + "\r")

    def ask(self, text: str, pattern: str) -> str:
        """Type a line at the prompt and wait for `pattern`, then for the next prompt."""
        self.line(text)
        shown = self.expect(pattern)
        self.expect(">>>")
        return shown

    def read_while_it_lives(self, seconds: float) -> None:
        """Read until the process has ended or hung up, for so many seconds at most."""
        deadline = time.monotonic() + seconds
        while self.process.isalive() and time.monotonic() < deadline:
            if self.process.fd_ready(0.05):
                try:
                    self.raw += self.process.read(65536)
                except EOFError:
                    break

    def end(self) -> int:
        """Read to the end; the exit code."""
        while True:
            try:
                self.raw += self.process.read(65536)
            except EOFError:
                self.process.wait()
                return int(self.process.exitstatus)


if os.name != "nt":

    def fd_ready(self: PtyProcess, seconds: float) -> bool:
        import select

        return bool(select.select([self.fd], [], [], seconds)[0])

    PtyProcess.fd_ready = fd_ready


@pytest.fixture
def terminals(environment: dict[str, str]) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.process.terminate(force=True)


def open_chat(terminals: list[Terminal], environment: dict[str, str], model: Path, *flags: str) -> Terminal:
    terminal = Terminal(environment, "chat", "-m", str(model), *flags)
    terminals.append(terminal)
    terminal.expect("/help")
    terminal.expect(">>>")
    return terminal


def test_three_turns_reuse_the_cached_prefix(
    terminals: list[Terminal], environment: dict[str, str], tiny: Path
) -> None:
    chat = open_chat(terminals, environment, tiny, "-t", "0", "-n", "8", "-s", "sys")
    chat.ask("/stats", "no answer yet")
    cached = []
    for text in ("hello", "again", "more"):
        chat.ask(text, "cut after 8 tokens")
        stats = re.search(
            r"prompt: (\d+) tokens, (\d+) of them cached", chat.ask("/stats", "ended by length")
        )
        assert stats is not None
        cached.append((int(stats[1]), int(stats[2])))
    assert cached[0][1] == 0
    for (total, _), (longer, common) in pairwise(cached):
        assert total <= common < longer
    chat.send("\x04")
    assert chat.end() == 0
    assert b"Traceback" not in chat.raw


def test_commands(terminals: list[Terminal], environment: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    chat = open_chat(terminals, environment, tiny, "-t", "0", "-n", "8")
    for command in (
        "/clear",
        "/system",
        "/set",
        "/show",
        "/save",
        "/load",
        "/regen",
        "/undo",
        "/stats",
        "/bye",
    ):
        assert command in chat.ask("/help", "ends it")
    first = chat.ask("hello", "cut after 8 tokens")
    assert first.splitlines()[1:2] == chat.ask("/regen", "cut after 8 tokens").splitlines()[1:2]
    assert "max_tokens = 3" in chat.ask("/set max-tokens 3", "max_tokens = 3")
    chat.ask("more", "cut after 3 tokens")
    chat.ask("/set top_k lots", "no value for top_k")
    chat.ask("/set top_p 7", "top_p must be between 0 and 1")
    chat.ask("/set nonsense 1", "no setting nonsense")
    chat.ask("/set stop 'a b' c", "stop = 'a b' c")
    chat.ask("/set stop", "stop = none")
    chat.ask("/set logit_bias 5=-2 ' the=1'", "logit_bias = 5=-2 ' the=1'")
    chat.ask("/set logit_bias none", "logit_bias = none")
    chat.ask("/set samplers top_k;temp", "samplers = top_k temperature")
    chat.ask("/set logprobs 2", "no setting logprobs")
    chat.ask("/set", "ignore_eos")
    chat.ask("/system be brief", "be brief")
    assert re.search(r"turns +2", chat.ask("/show", "ignore_eos"))
    chat.ask(f"/save {tmp_path / 'c.json'}", "saved 2 turns")
    chat.ask("/undo", "took back: more")
    chat.ask("/clear", "starts anew")
    chat.ask("/undo", "no turn to take back")
    chat.ask("/regen", "no answer to write anew")
    chat.ask(f"/load {tmp_path / 'c.json'}", "loaded 2 turns")
    chat.ask(f"/load {tmp_path / 'none.json'}", "No such file")
    chat.ask("/nonsense", "no command /nonsense")
    saved = json.loads((tmp_path / "c.json").read_text())
    assert [turn["user"] for turn in saved["turns"]] == ["hello", "more"]
    assert saved["system"] == "be brief"
    chat.line("/bye")
    assert chat.end() == 0


def test_an_empty_line_continues_a_cut_answer(
    terminals: list[Terminal], environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    chat = open_chat(terminals, environment, tiny, "-t", "0", "-n", "6")
    chat.ask("hello", "cut after 6 tokens.*; Enter on an empty line goes on")
    chat.ask("", "cut after 6 tokens")
    chat.ask(f"/save {tmp_path / 'c.json'}", "saved 1 turn ")
    reply = json.loads((tmp_path / "c.json").read_text())["turns"][0]["assistant"]
    whole = open_chat(terminals, environment, tiny, "-t", "0", "-n", "12")
    assert reply in whole.ask("hello", "cut after 12 tokens")


def test_ctrl_c_keeps_the_partial_answer_and_marks_it(
    terminals: list[Terminal], environment: dict[str, str], endless: Path, tmp_path: Path
) -> None:
    chat = open_chat(terminals, environment, endless, *RANDOM)
    chat.send("\x03")
    chat.expect("Ctrl-D or /bye leaves")
    chat.expect(">>>")
    chat.send("never sent\x03")
    chat.expect("Ctrl-D or /bye leaves")
    chat.expect(">>>")
    chat.line("hello")
    chat.expect(r"hello\s+\S{20}")
    chat.send("\x03")
    chat.expect(r"\(interrupted; Enter", seconds=5)
    chat.expect(">>>")
    chat.ask(f"/save {tmp_path / 'c.json'}", "saved 1 turn ")
    (turn,) = json.loads((tmp_path / "c.json").read_text())["turns"]
    assert turn["user"] == "hello"
    assert turn["cut"] == "interrupted"
    assert len(turn["assistant"]) >= 20
    chat.send("\x04")
    assert chat.end() == 0


def test_the_oldest_turns_go_when_the_window_is_full(
    terminals: list[Terminal], environment: dict[str, str], tiny: Path
) -> None:
    chat = open_chat(terminals, environment, tiny, "-t", "0", "-n", "8", "-c", "256", "-s", "system prompt")
    chat.ask("x" * 60, "cut after")
    chat.ask("y" * 60, "cut after")
    assert re.search(r"the oldest turns no longer fit: \d+ tokens went", chat.ask("z" * 80, "cut after"))
    left = r"turns +3, 2 of them no longer in prompts"
    assert re.search(left, chat.ask("/show", "ignore_eos"))
    chat.ask("w" * 300, r"the prompt has 3\d\d tokens, but the context holds 256")
    assert re.search(left, chat.ask("/show", "ignore_eos"))


def test_several_lines_and_history(
    terminals: list[Terminal], environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    chat = open_chat(terminals, environment, tiny, "-t", "0", "-n", "2")
    chat.line('"""one')
    chat.expect(r"\.\.\.")
    chat.ask('two"""', "cut after")
    chat.send("\x1b[200~pasted\nlines\x1b[201~")
    chat.ask("", "cut after")
    chat.ask(f"/save {tmp_path / 'c.json'}", "saved 2 turns")
    turns = json.loads((tmp_path / "c.json").read_text())["turns"]
    assert [turn["user"] for turn in turns] == ["one\ntwo", "pasted\nlines"]
    chat.line("/bye")
    assert chat.end() == 0

    later = open_chat(terminals, environment, tiny, "-t", "0", "-n", "2")
    later.send("\x1b[A")  # up: /bye of the session before
    later.send("\x1b[A")
    later.line("")
    later.expect("saved 0 turns")
    assert "pasted" in Path(environment["KUKRI_HOME"], "chat_history").read_text()


def test_files_go_in_front_of_the_first_message(
    terminals: list[Terminal], environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("text\n")
    (tmp_path / "s").write_text("be brief\n")
    chat = open_chat(
        terminals, environment, tiny, "-n", "2", "-f", str(tmp_path / "a"), "-s", f"@{tmp_path / 's'}"
    )
    chat.ask("one", "cut after")
    chat.ask("two", "cut after")
    chat.ask(f"/save {tmp_path / 'c.json'}", "saved 2 turns")
    saved = json.loads((tmp_path / "c.json").read_text())
    assert saved["system"] == "be brief"
    assert [turn["user"] for turn in saved["turns"]] == [f"--- {tmp_path / 'a'} ---\ntext\n\none", "two"]


def test_a_dumb_terminal_gets_no_escape_codes(environment: dict[str, str], tiny: Path) -> None:
    terminal = Terminal(
        environment, "run", "-m", str(tiny), "-t", "0", "-n", "4", "--no-stdin", "hi", term="dumb"
    )
    assert terminal.end() == 0
    assert b"\x1b" not in terminal.raw
    terminal = Terminal(environment, "chat", "-m", str(tiny), "-t", "0", "-n", "4", term="dumb")
    terminal.expect(">>>")
    terminal.line("hello")
    terminal.expect("cut after")
    terminal.expect(">>>")
    terminal.send("\x04")
    assert terminal.end() == 0
    assert b"\x1b" not in terminal.raw


def test_no_color_takes_the_colours_away(environment: dict[str, str]) -> None:
    coloured = Terminal(environment, "run", "--no-stdin", "-m", "no-such-name", "hi")
    assert coloured.end() == 3
    assert b"\x1b[1;31merror:" in coloured.raw
    plain = Terminal(environment | {"NO_COLOR": "1"}, "run", "--no-stdin", "-m", "no-such-name", "hi")
    assert plain.end() == 3
    assert re.search(rb"(?m)^error: no model is named", plain.raw)
    assert b"\x1b[1;31m" not in plain.raw


def test_piped_text_is_answered_once(llm: Run, tiny: Path) -> None:
    done = llm("chat", "-m", tiny, "-t", 0, "-n", 8, input=b"hello\n/help\n")
    assert done.returncode == 0
    assert re.fullmatch(rb"[ -~]{4,}\n", done.stdout)
    assert done.stdout == llm("run", "-m", tiny, "-t", 0, "-n", 8, "hello\n/help").stdout


def test_other_ways_into_chat(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    told = json.loads(llm_inside("chat", "-m", tiny, "-n", 2, "-o", "json", input=b"hello").stdout)
    assert told["finish_reason"] == "length"
    failed(llm_inside("chat", "-m", tiny), 2)
    failed(llm_inside("chat", "-m", tiny, "-c", 8, input=b"hello"), 4)
    base = write_tiny_model(tmp_path / "base.gguf", template=None)
    assert "no chat template" in llm_inside("chat", "-m", base, "-n", 2, input=b"hello").stderr.decode()


def test_a_history_that_cannot_be_kept_is_no_obstacle(
    terminals: list[Terminal], environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    home = Path(environment["KUKRI_HOME"])
    (home / "chat_history").mkdir()
    terminal = Terminal(environment, "chat", "-m", str(tiny), "-n", "2")
    terminals.append(terminal)
    terminal.expect("history is not kept")
    terminal.expect(">>>")
    terminal.ask("hello", "cut after")


def test_model_text_cannot_command_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from kukri.cli.console import terminal

    written: list[str] = []
    monkeypatch.setattr(terminal, "_write", written.append)
    for shown, on_terminal in (("a\ufffd[31mb\tc\n\nd", True), ("a\x1b[31mb\tc\n\nd", False)):
        monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda value=on_terminal: value))
        sink = terminal.ModelText()
        written.clear()
        for piece in ("a\x1b[31m", "b\tc\n", "\n", "d\n\n", "\n"):
            sink.write(piece)
        sink.finish()
        assert "".join(written) == shown + "\n"
