"""Lines are broken between words, however a text is cut into pieces: checked on a small terminal."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wcwidth import wcswidth

from kukri.cli.console.word_wrap import WordWrap

from ...running import Run
from ...usual_machine import within
from ..chat.test_chat import Terminal
from ..traps.models import write_script


class Screen:
    """A terminal of `columns` columns that never scrolls: text, line feeds, CUB and EL."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[list[str]] = [[]]  # cells; behind a wide character there is an empty one

    def show(self, sent: str) -> None:
        for part in re.findall(
            r"\x1b\[(?:\d+D|K)|\n|[^\x1b\n](?:[\u0300-\u036f\ufe0f\u200d]|(?<=\u200d).)*", sent
        ):
            line = self.lines[-1]
            if part == "\n":
                self.lines.append([])
            elif part == "\x1b[K":
                pass  # nothing is right of the cursor: what CUB went over is cut off
            elif part.startswith("\x1b["):
                back = int(part[2:-1])
                assert back <= len(line) < self.columns, "behind the last column cursors differ"
                del line[len(line) - back :]
            else:
                cells = [part, *[""] * (max(1, wcswidth(part)) - 1)]
                if len(line) + len(cells) > self.columns:
                    self.lines.append([])
                self.lines[-1] += cells

    @property
    def text(self) -> list[str]:
        return ["".join(line) for line in self.lines]


def shown(text: str, columns: int = 20, piece: int = 3) -> list[str]:
    screen, wrap = Screen(columns), WordWrap(lambda: columns)
    screen.show("".join(wrap.push(text[start : start + piece]) for start in range(0, len(text), piece)))
    return screen.text


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a short line", ["a short line"]),
        ("The quick brown fox jumps over", ["The quick brown fox", "jumps over"]),
        ("exactly nineteen ch", ["exactly nineteen ch"]),
        ("exactly nineteen ch ", ["exactly nineteen ch"]),
        ("exactly nineteen ch  next", ["exactly nineteen ch", "next"]),
        ("exactly nineteen cha next", ["exactly nineteen ", "cha next"]),
        ("one\n\ntwo\n", ["one", "", "two", ""]),
        ("    indented words stay", ["    indented words ", "stay"]),
        ("see https://example.org/a/long/path ok", ["see", "https://example.org/", "a/long/path ok"]),
        ("日本語の文章は単語の間に空白がない。次", ["日本語の文章は単語", "の間に空白がない。", "次"]),
        ("日本語の文章は単語は。次", ["日本語の文章は単語", "は。次"]),
        ("あいうえおかきくけ。次", ["あいうえおかきく", "け。次"]),
        ("sixteen letters 👨‍👩‍👧👍🏽 x", ["sixteen letters 👨‍👩‍👧", "👍🏽 x"]),
        ("```\na line of code that is long\n```\nand text behind the block",
         ["```", "a line of code that ", "is long", "```", "and text behind the", "block"]),
        ("| a | table | row that is long |", ["| a | table | row th", "at is long |"]),
        ("cafe\u0301 two three 2 cafe\u0301 x", ["cafe\u0301 two three 2", "cafe\u0301 x"]),
    ],
)  # fmt: skip
def test_lines(text: str, expected: list[str], piece: int) -> None:
    assert [line.rstrip() for line in shown(text, piece=piece)] == [line.rstrip() for line in expected]


WORDS = st.text("ab1.,日本。「é👍\n\t |`", max_size=200)


@given(WORDS, st.integers(1, 9), st.integers(20, 30))
@example("a" * 19 + " b", 1, 20)
def test_nothing_is_lost_and_no_word_is_broken(text: str, piece: int, columns: int) -> None:
    lines = shown(text, columns, piece)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert lines == shown(text, columns, 1)


def test_an_endless_word_costs_no_more_than_others() -> None:
    wrap = WordWrap(lambda: 80)
    start = time.process_time()
    assert wrap.push("é" * 200_000) == "é" * 200_000
    assert within(time.process_time() - start, 20)


def test_a_terminal_that_changes_its_size() -> None:
    columns = 40
    wrap = WordWrap(lambda: columns)
    sent = wrap.push("The quick brown fox jumps ")
    columns = 20
    sent += wrap.push("over the lazy dog and away ")
    columns = 5
    sent += wrap.push("from here to there")
    columns = 60
    sent += wrap.push(" and back again")
    plain = re.sub(r"\x1b\[\d+D\x1b\[K", "", sent)
    assert " ".join(plain.split()).startswith("The quick brown fox jumps over the lazy dog")
    assert plain.endswith("from here to there and back again")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write_script(tmp_path / "m.gguf", b"abcdefgh ijklmnopqrstuvw")


def columns_of(environment: dict[str, str], model: Path, *flags: str, **more: str) -> bytes:
    """What `llm run` shows on a terminal of 22 columns."""
    terminal = Terminal(
        environment | more, "run", "-m", str(model), "-t", "0", "--no-stdin", *flags, "hi",
        term=more.get("TERM", "xterm"), columns=22,
    )  # fmt: skip
    assert terminal.end() == 0
    return terminal.raw.split(b"\x1b[2K")[-1]


@pytest.mark.slow
def test_only_a_terminal_gets_broken_lines(environment: dict[str, str], llm: Run, script: Path) -> None:
    whole = b"abcdefgh ijklmnopqrstuvw"
    shown_lines = Screen(22)
    shown_lines.show(columns_of(environment, script).decode().replace("\r", ""))
    assert [line.rstrip() for line in shown_lines.text] == ["abcdefgh", "ijklmnopqrstuvw", ""]
    assert columns_of(environment, script, "--no-wrap") == whole + b"\r\n"
    assert columns_of(environment, script, LLM_NO_WRAP="1") == whole + b"\r\n"
    assert columns_of(environment, script, TERM="dumb").endswith(whole + b"\r\n")
    assert llm("run", "-m", script, "-t", 0, "hi", env={"COLUMNS": "22"}).stdout == whole + b"\n"
