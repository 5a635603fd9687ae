"""Help texts and tables in narrow terminals, and what is said in words."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from kukri.cli.app import COMMANDS
from kukri.cli.bench.report import as_markdown, for_terminal
from kukri.cli.chat.settings import parsed, shown
from kukri.cli.commands.models import list as list_
from kukri.cli.console.table import columns_that_fit, records, table
from kukri.cli.console.wording import count
from kukri.runtime.hub.installed import Installed

from ...running import Run

RESULT = {
    "model_type": "llama 134.5M Q4_K_M", "model_size": 1 << 27, "model_n_params": 134515008, "backend": "CPU",
    "n_threads": 1, "test": "pp512", "avg_ts": 1234.5, "stddev_ts": 1.0, "median_ts": 1234.4,
    "type_k": "q8_0", "ttft_seconds": 0.4, "compile_seconds": 0, "load_seconds": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("columns", [24, 40, 60, 80])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_and_has_every_word(
    llm_inside: Run, monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    """Words are broken at their own hyphens at most, and flags not at all."""

    def lines(width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        return llm_inside(*filter(None, [command]), "--help").stdout.decode().splitlines()

    flags = [word for word in " ".join(lines(200)).split() if re.fullmatch(r"--?[a-z][a-z-]*,?", word)]
    shown = lines(columns)
    assert not set(flags) - set(" ".join(shown).split())
    if columns >= 40:
        assert whole_words(shown) == whole_words(lines(80))
        too_wide = [line for line in shown if len(line) > columns]
        assert all(re.fullmatch(r" +-\S+(, \S+)* \S+", line) for line in too_wide), too_wide


def whole_words(lines: list[str]) -> list[str]:
    return re.sub(r"(?<=\w-)\n +(?=[a-zA-Z])", "", "\n".join(lines)).split()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lists_give_up_columns_only_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [Installed("some-organisation/Some-Model-GGUF:Q4_K_M", Path("p"), 10**8, "Q4_K_M", 0.0)]
    monkeypatch.setattr(list_, "installed", lambda: models)

    def listed(stream: io.StringIO, columns: int) -> tuple[str, str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        list_.list_models()
        return stream.getvalue().splitlines()[0], sys.stderr.getvalue()

    assert listed(Terminal(), 80) == ("NAME" + " " * 42 + "SIZE  QUANT   MODIFIED", "")
    header, remark = listed(Terminal(), 60)
    assert header.split() == ["NAME", "SIZE", "QUANT"]
    assert remark == "(no room for MODIFIED in 60 columns; -o json has all)\n"
    assert listed(Terminal(), 40)[0].split() == ["NAME", "SIZE"]
    assert listed(io.StringIO(), 40) == listed(io.StringIO(), 200)  # a file has no width


def test_columns_are_given_up_in_order() -> None:
    header, rows = ("A", "B", "C"), [("aaaa", "bbbb", "cccc")]
    assert columns_that_fit(header, rows, (2, 1), 16) == [0, 1, 2]
    assert columns_that_fit(header, rows, (2, 1), 15) == [0, 1]
    assert columns_that_fit(header, rows, (2, 1), 9) == [0]
    assert columns_that_fit(header, rows, (2, 1), 1) == [0]  # never all
    assert columns_that_fit(header, rows, (2, 1), None) == [0, 1, 2]


def test_wide_characters_do_not_push_columns_aside() -> None:
    lines = table(("NAME", "N"), [("日本語", "1"), ("abc", "22")], right=(1,)).splitlines()
    assert {cell_len(line) for line in lines} == {10}


def test_benchmarks_become_records_on_a_narrow_terminal() -> None:
    assert for_terminal([RESULT], None) == for_terminal([RESULT], 200) == as_markdown([RESULT])
    shown = for_terminal([RESULT, RESULT | {"test": "tg128"}], 60)
    assert all(cell_len(line) <= 60 for line in shown.splitlines())
    first, second, notes = shown.split("\n\n")
    assert re.search(r"(?m)^t/s +1234\.50 ± 1\.00$", first)
    assert re.search(r"(?m)^first token +0\.400 s$", first)
    assert first.count("model ") == 1
    assert re.search(r"(?m)^test +tg128$", second)
    assert notes == "llama 134.5M Q4_K_M, 1 thread, q8_0 cache: loaded in 0.10 s\n"


def test_records_leave_empty_cells_out() -> None:
    assert records(("a", "bb"), [("1", ""), ("2", "3\n4")]) == "a  1\n\na   2\nbb  3 4\n"


def test_one_turn_and_two_turns() -> None:
    assert [count(n, "turn") for n in (0, 1, 2)] == ["0 turns", "1 turn", "2 turns"]


@pytest.mark.parametrize(
    ("name", "kind", "text", "value", "words"),
    [
        ("seed", "int | None", "none", None, "random"),
        ("seed", "int | None", "-1", None, "random"),
        ("seed", "int | None", "7", 7, "7"),
        ("max_tokens", "int | None", "-1", None, "no limit"),
        ("max_tokens", "int | None", "default", None, "no limit"),
        ("stop", "tuple[str, ...]", "", (), "none"),
        ("stop", "tuple[str, ...]", "None", (), "none"),
        ("stop", "tuple[str, ...]", "'a b' c", ("a b", "c"), "'a b' c"),
        ("ignore_eos", "bool", "yes", True, "on"),
        ("ignore_eos", "bool", "off", False, "off"),
        ("top_p", "float", "0.5", 0.5, "0.5"),
    ],
)
def test_settings_in_words(name: str, kind: str, text: str, value: object, words: str) -> None:
    assert parsed(name, kind, text) == value
    assert shown(name, value) == words
    assert parsed(name, kind, words) == value


def test_a_wrong_setting_says_what_goes() -> None:
    for name, kind, what in (
        ("seed", "int | None", r"a whole number, or none \(random\)"),
        ("top_p", "float", "a number$"),
        ("ignore_eos", "bool", "on or off$"),
    ):
        with pytest.raises(ValueError, match=f"'x' is no value for {name}: {what}"):
            parsed(name, kind, "x")


def test_numbers_as_llama_cpp_has_them(llm_inside: Run, tiny: Path) -> None:
    flags = ("run", "-m", tiny, "-c", 32, "-o", "json", "hi", "-t", 2, "--min-p", 0)
    first, second = (json.loads(llm_inside(*flags, "-n", -1, "--seed", -1).stdout) for _ in range(2))
    assert first["finish_reason"] == second["finish_reason"] == "context"
    assert first["text"] != second["text"]


def test_threads_given_as_a_temperature(llm_inside: Run, tiny: Path) -> None:
    for flags, hint in (
        (("-t", 8), True), (("-t", "3"), True), (("-t", 2), False), (("-t", "3.5"), False),
        (("-t", 8, "--threads", 2), False),
    ):  # fmt: skip
        done = llm_inside("run", "-m", tiny, "-n", 1, *flags, "hi")
        assert done.returncode == 0
        assert (b"--threads" in done.stderr) == hint, flags
        assert done.stderr.count(b"\n") == 1 + hint  # the other line is about -n
    assert b"(-t 8 is the temperature" in llm_inside("run", "-m", tiny, "-n", 1, "-t", 8, "hi").stderr
