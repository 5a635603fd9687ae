"""How arguments and stdin make a prompt."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from kukri.cli.console import prompt
from kukri.cli.console.prompt import read_prompt

Feed = Callable[[bytes], None]


@pytest.fixture
def stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    """stdin(data): what is piped in."""

    def feed(data: bytes) -> None:
        path = tmp_path / "stdin"
        path.write_bytes(data)
        monkeypatch.setattr(sys, "stdin", path.open())

    feed(b"")
    yield feed
    sys.stdin.close()


@pytest.mark.parametrize(
    ("words", "piped", "expected"),
    [
        (["why", "not?"], b"", "why not?"),
        (["Summarise:"], b"a text\n", "Summarise:\n\na text"),
        (["Summarise:"], b"\n", "Summarise:"),
        ([], b"only this\n", "only this"),
        ([], b"two\nlines\n\n", "two\nlines\n"),
        ([], b"windows\r\n", "windows"),
        (["-"], b"only this", "only this"),
        (["Before", "-", "after"], b"piped", "Before after\n\npiped"),
        ([], b"\xef\xbb\xbfwith a mark", "with a mark"),
        ([], "é☃😀".encode(), "é☃😀"),
        ([], b"a\0b", "a\0b"),
    ],
)
def test_prompt(stdin: Feed, words: list[str], piped: bytes, expected: str) -> None:
    stdin(piped)
    assert read_prompt(words, no_stdin=False) == expected


def test_no_stdin_leaves_it_alone(stdin: Feed) -> None:
    stdin(b"never read")
    assert read_prompt(["x"], no_stdin=True) == "x"
    with pytest.raises(typer.BadParameter, match="no prompt"):
        read_prompt([], no_stdin=True)
    with pytest.raises(typer.BadParameter, match="--no-stdin"):
        read_prompt(["-"], no_stdin=True)


def test_no_stdin_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert read_prompt(["x"], no_stdin=False) == "x"
    with pytest.raises(typer.BadParameter, match="no prompt"):
        read_prompt(["-"], no_stdin=False)


@pytest.mark.parametrize("data", [b"", b" \n\n"])
def test_nothing_is_no_prompt(stdin: Feed, data: bytes) -> None:
    stdin(data)
    with pytest.raises(typer.BadParameter, match="no prompt"):
        read_prompt([], no_stdin=False)
    with pytest.raises(typer.BadParameter, match="no prompt"):
        read_prompt(["  "], no_stdin=False)


def test_what_is_not_utf_8_is_refused(stdin: Feed) -> None:
    for data in (b"\xff\xfe", b"x" * 70000 + b"\x80", b"cut \xe2\x98"):
        stdin(data)
        with pytest.raises(typer.BadParameter, match="UTF-8"):
            read_prompt([], no_stdin=False)


def test_a_pipe_cut_inside_a_character_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = os.pipe()

    def write() -> None:
        with open(ends[1], "wb") as pipe:
            pipe.write(b"x" * 65535 + "☃".encode())

    threading.Thread(target=write, daemon=True).start()
    with open(ends[0]) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert read_prompt([], no_stdin=False) == "x" * 65535 + "☃"


@pytest.mark.skipif(os.name == "nt", reason="select")
def test_a_pipe_that_stays_open_gets_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prompt, "_HINT_SECONDS", 0.05)
    ends = os.pipe()
    with open(ends[0]) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        prompt._hint_if_slow()
        assert "--no-stdin" in capsys.readouterr().err
        os.close(ends[1])
        prompt._hint_if_slow()
        assert capsys.readouterr().err == ""
