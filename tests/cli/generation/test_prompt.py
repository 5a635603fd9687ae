"""How arguments and stdin make a prompt."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from kukri.cli.generation import input_files as prompt_files
from kukri.cli.generation import prompt
from kukri.cli.generation.prompt import read_prompt

from ...running import LLM

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


def test_files_come_first_with_their_names(stdin: Feed, tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.md"
    one.write_text("print(1)\n")
    two.write_bytes(b"\xef\xbb\xbfna\xc3\xafve\r\n")
    files = [str(one), str(two)]
    both = f"--- {one} ---\nprint(1)\n\n--- {two} ---\nnaïve"
    stdin(b"piped\n")
    assert read_prompt(["Compare."], no_stdin=False, files=files) == f"{both}\n\nCompare.\n\npiped"
    stdin(b"piped\n")
    assert read_prompt([], no_stdin=True, files=files) == both
    assert read_prompt([], no_stdin=True, files=files[:1]) == "print(1)"  # it is the prompt
    assert read_prompt(["x"], no_stdin=False, files=["-"]) == "--- stdin ---\npiped\n\nx"
    with pytest.raises(typer.BadParameter, match="twice"):
        read_prompt(["-"], no_stdin=False, files=["-"])
    with pytest.raises(typer.BadParameter, match="twice"):
        read_prompt([], no_stdin=False, files=["-", "-"])
    with pytest.raises(typer.BadParameter, match="forbids"):
        read_prompt([], no_stdin=True, files=["-"])


@pytest.mark.parametrize(
    ("beginning", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "a PNG image"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG image"),
        (b"%PDF-1.7\nall of it is ASCII", "a PDF document"),
        (b"PK\x03\x04rest", "a ZIP archive"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"GIF89a\xff", "a GIF image"),
        (b"GGUF\x03\0\0\0\xff", "a model"),
        (b"RIFF\0\0\0\xf0WEBPVP8 ", "a WebP image"),
        (b"\xff\xfeh\0i\0", "UTF-16"),
        (b"caf\xe9", "not UTF-8 text"),
        (b"x" * (1 << 20) + b"\xe9", "not UTF-8 text"),
        (b"x" * (prompt_files.LONGEST_INPUT + 1), "too much for a prompt"),
    ],
)
def test_files_that_are_no_text_are_named(stdin: Feed, tmp_path: Path, beginning: bytes, kind: str) -> None:
    path = tmp_path / "some file"
    path.write_bytes(beginning)
    for files in ([str(path)], ["-"]):
        stdin(beginning)
        with pytest.raises(typer.BadParameter, match=f"{'stdin' if files == ['-'] else path} .*{kind}"):
            read_prompt(["x"], no_stdin=files != ["-"], files=files)
    with pytest.raises(typer.BadParameter, match=f"{path} .*{kind}"):
        prompt_files.text_or_file(f"@{path}")


@pytest.mark.parametrize(
    "text", ["GGUF is a format", "GIF89a", "the ftyp box", "ID3 tags", "BZh", "PK and PDF"]
)
def test_text_that_begins_like_another_kind_is_text(stdin: Feed, text: str) -> None:
    stdin(text.encode())
    assert read_prompt([], no_stdin=False) == text


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(typer.BadParameter, match=f"{path} cannot be read: {why}"):
            read_prompt(["x"], no_stdin=True, files=[str(path)])


def test_options_that_name_a_file(tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("be brief\n")
    assert prompt_files.text_or_file(f"@{tmp_path}/system.txt") == "be brief"
    assert prompt_files.text_or_file("@@home") == "@home"
    assert prompt_files.text_or_file("a@b") == "a@b"
    assert prompt_files.text_or_file("") == ""


def test_a_file_that_is_partly_read_belongs_to_a_loop(
    stdin: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    def begin() -> None:
        stdin(b"first\nsecond\nthird\n")
        os.lseek(sys.stdin.fileno(), 6, os.SEEK_SET)

    begin()
    assert read_prompt(["first"], no_stdin=False) == "first"
    assert "left alone; - reads it" in capsys.readouterr().err
    assert os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) == 6
    assert read_prompt(["first", "-"], no_stdin=False) == "first\n\nsecond\nthird"
    begin()
    assert read_prompt([], no_stdin=False) == "second\nthird"
    begin()
    os.lseek(sys.stdin.fileno(), 0, os.SEEK_END)
    capsys.readouterr()
    assert read_prompt(["last"], no_stdin=False) == "last"
    assert capsys.readouterr().err == ""


LOOP = 'while read -r line; do {llm} run -m {model} -t 0 -n 1 {flags} -- "$line"; done {end}'


@pytest.mark.skipif(os.name == "nt", reason="shells")
@pytest.mark.parametrize(
    ("begin", "flags", "end", "answers"),
    [("", "", "< list", 3), ("cat list | ", "--no-stdin", "", 3), ("cat list | ", "", "", 1)],
)
def test_loops_of_a_shell(
    environment: dict[str, str], tiny: Path, tmp_path: Path, begin: str, flags: str, end: str, answers: int
) -> None:
    (tmp_path / "list").write_text("one\ntwo\nthree\n")
    script = begin + LOOP.format(llm=" ".join(LLM), model=tiny, flags=flags, end=end)
    for variables in ({}, {"LLM_NO_STDIN": "1"}):
        done = subprocess.run(
            ["bash", "-c", script], env=environment | variables, cwd=tmp_path, capture_output=True, check=True
        )
        assert done.stdout.count(b"\n") == (3 if variables else answers)
        if answers == 1 and sys.platform == "linux":
            assert (b"2 lines of stdin joined the prompt" in done.stderr) == (not variables)
