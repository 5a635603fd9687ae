"""`llm show`, `list`, `tokenize`, `doctor`, and the flags that commands share."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from kukri.cli.app import command_group
from kukri.cli.console.table import pairs, table
from kukri.cli.console.terminal import note, tell
from kukri.cli.generation import options as generation
from kukri.quant.units import human_bytes
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.hub import catalogue

from ...running import Run, failed
from ...tiny_model import write_tiny_model


def test_show(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    told = json.loads(llm_inside("show", tiny, "-o", "json").stdout)
    assert told["architecture"] == "llama"
    assert (told["parameters"], told["context"], told["vocabulary"]) == (107968, 512, 265)
    assert (told["formats"], told["quant"]) == ({"F32": 1.0}, "F32")
    assert (told["chat_template"], told["licence"], told["tokenizer"]) == (True, "apache-2.0", "gpt2 gpt-2")
    assert (told["files"], told["size"]) == ([str(tiny)], tiny.stat().st_size)
    shown = llm_inside("show", tiny).stdout.decode()
    assert re.search(r"(?m)^context +512 tokens$", shown)
    assert re.search(r"(?m)^chat template +yes$", shown)
    base = write_tiny_model(tmp_path / "base.gguf", template=None)
    assert json.loads(llm_inside("show", base, "-o", "json").stdout)["chat_template"] is False


def test_nothing_in_a_file_reaches_the_terminal_as_an_escape(
    llm_inside: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = "a\x1b]0;title\x07b\x9b2Jc\nlicence  none\x7f"
    path = write_tiny_model(tmp_path / "x.gguf", name=name)
    shown = llm_inside("show", path).stdout.decode()
    assert re.search(r"(?m)^name +a�\]0;title�b�2Jc licence  none�$", shown)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
    told = llm_inside("show", path, "-o", "json").stdout.decode()
    assert json.loads(told)["name"] == name
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", told)
    for flags in ((), ("-o", "json")):
        done = llm_inside("tokenize", "-m", path, *flags, "x\x9b2J\x7f")
        assert not re.search(r"[\x7f-\x9f]", done.stdout.decode())
    note("one\x1b[2J\nline\x9b")
    tell("two\x1b[2J\nlines\x9b")
    assert capfdbinary.readouterr().err.decode() == "one�[2J line�\ntwo�[2J\nlines�\n"
    assert table(("A",), [("x\x1b\ty\x85",)]) == "A\nx� y\n"


def test_show_of_a_model_that_is_not_here_downloads_nothing(llm: Run) -> None:
    told = json.loads(llm("show", "llama3.2:1b", "-o", "json").stdout)
    assert (told["size"], told["files"]) == (807694464, [])
    assert b"llm pull llama3.2:1b" in llm("show", "llama3.2:1b").stdout
    assert llm("show", "org/repo").returncode == 3


def test_list(llm: Run) -> None:
    empty = llm("list")
    assert (empty.returncode, empty.stdout) == (0, b"")
    assert b"no models yet" in empty.stderr
    assert json.loads(llm("list", "-o", "json").stdout) == []
    names = llm("list", "--all").stdout.decode()
    told = json.loads(llm("list", "--all", "-o", "json").stdout)
    assert [entry["name"] for entry in told] == [entry.name for entry in catalogue.ENTRIES]
    assert all(entry["name"] in names for entry in told)


def test_tokenize(llm_inside: Run, tiny: Path) -> None:
    told = json.loads(llm_inside("tokenize", "-m", tiny, "-o", "json", "in the <|im_end|>").stdout)
    assert told["tokens"][:2] == ["in", "Ġthe"] or told["tokens"][:2] == ["in", " the"]
    assert len(told["ids"]) == len(told["tokens"]) == 2 + len(" <|im_end|>")
    shown = llm_inside("tokenize", "-m", tiny, "in the")
    assert re.fullmatch(r'\d+  "in"\n\d+  ".the"\n', shown.stdout.decode())
    assert b"2 tokens" in shown.stderr
    assert json.loads(llm_inside("tokenize", "-m", tiny, "-o", "json", "").stdout)["ids"] == []
    assert json.loads(llm_inside("tokenize", "-m", tiny, "-o", "json", input=b"in").stdout)["tokens"] == [
        "in"
    ]


def test_doctor(llm: Run, environment: dict[str, str]) -> None:
    done = llm("doctor", env={"KUKRI_SIMD": "plain"})
    shown = done.stdout.decode()
    assert done.returncode == 0
    for name in (
        "kukri",
        "packages",
        "CPU",
        "cores",
        "SIMD",
        "memory",
        "GPU",
        "models",
        "Hub cache",
        "kernels",
    ):
        assert re.search(rf"(?m)^{name} +\S", shown)
    assert re.search(r"SIMD +plain, 8 lanes", shown)
    assert environment["KUKRI_HOME"] in shown
    assert "cannot tell" not in shown
    assert "cannot tell: ValueError" in llm("doctor", env={"KUKRI_SIMD": "nonsense"}).stdout.decode()


def test_defaults_in_the_help_are_those_of_the_sampler() -> None:
    hints = generation.GenerationOptions.__annotations__
    for field in fields(SamplingParams):
        if field.name in hints and (stated := re.search(r"default: ([\d.]+)", hints[field.name])):
            assert float(stated[1].rstrip(".")) == field.default, field.name


def test_all_flags_have_variables_and_run_and_chat_share_them() -> None:
    group = command_group()
    flags: dict[str, dict[str, str | None]] = {}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        flags[name] = {
            max(parameter.opts, key=len): parameter.envvar
            for parameter in command.params
            if parameter.opts[0][0] == "-"
        }
        for flag, variable in flags[name].items():
            # What a command is to do, unlike how, is never left in the environment.
            wanted = (
                None
                if flag in ("--model", "--help", "--unset", "--path")
                else "LLM_" + flag[2:].upper().replace("-", "_")
            )
            assert variable == wanted, (name, flag)
    only_run = {"--answers", "--logprobs", "--beams", "--length-penalty", "--early-stopping"}
    only_run |= {"--prompt-cache", "--fim", "--cache", "--cache-size"}
    only_run |= {"--route", "--route-threshold", "--route-calibration"}
    assert flags["run"].keys() - flags["chat"].keys() <= only_run
    only_chat = {"--autosave-size", "--no-autosave", "--resume", "--connect", "--api-key"}
    assert flags["chat"].keys() - flags["run"].keys() <= only_chat
    assert set(flags["run"]) >= {
        "--system", "--max-tokens", "--context", "--temperature", "--top-k", "--top-p", "--min-p", "--seed",
        "--repeat-penalty", "--repeat-last-n", "--stop", "--raw", "--speculate", "--kv-type", "--threads",
        "--device", "--stats", "--output",
    }  # fmt: skip


@pytest.mark.parametrize(
    "command", [("run", "hi", "-m"), ("bench", "-m"), ("serve",)], ids=lambda words: words[0]
)
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--cpu-moe", "-ngl", 1), "one card with all layers"),
        (("--devices", "0,0"), "each once"),
        (("--devices", "x"), "not 'x'"),
        (("--device", "cpu", "--devices", 0), "no cards to choose"),
        (("--speculate", "mtp", "-ngl", 1), "all layers on one device"),
    ],
)
def test_flags_that_do_not_go_together_are_wrong_usage(
    llm_inside: Run, tiny: Path, command: tuple[str, ...], flags: tuple[object, ...], message: str
) -> None:
    done = llm_inside(*command, tiny, *flags)
    assert (done.returncode, done.stdout) == (2, b"")
    assert message in done.stderr.decode()


def test_a_format_of_other_commands_in_the_environment_is_ignored(llm_inside: Run, tiny: Path) -> None:
    for value in ("md", "rich", "csv", ""):
        done = llm_inside("run", "-m", tiny, "-t", 0, "-n", 2, "hi", env={"LLM_OUTPUT": value})
        assert (done.returncode, done.stdout[:1] == b"{") == (0, False), done.stderr
    bench = ("bench", "-m", tiny, "-p", 4, "-n", 0, "-r", 1, "--no-cold")
    for value, start in (("text", b"|"), ("md", b"|"), ("json", b"[")):
        assert llm_inside(*bench, env={"LLM_OUTPUT": value}).stdout.startswith(start), value
    assert llm_inside("tokenize", "-m", tiny, "hi", env={"LLM_OUTPUT": "text"}).returncode == 0
    for command in (("run", "-m", tiny, "hi"), bench, ("tokenize", "-m", tiny, "hi")):
        assert "xml" in failed(llm_inside(*command, env={"LLM_OUTPUT": "xml"}), 2)
        assert "text" in failed(llm_inside("bench", "-o", "text"), 2)


def test_sizes_and_tables() -> None:
    assert [human_bytes(n) for n in (0, 999, 1000, 98_362_432, 999_950_000, 4_920_739_232, 2e12)] == [
        "0 B", "999 B", "1.0 kB", "98.4 MB", "1.0 GB", "4.9 GB", "2.0 TB"]  # fmt: skip
    assert table(("NAME", "SIZE"), [("a", "10 B"), ("longer", "2 B")], right=(1,)) == (
        "NAME    SIZE\na       10 B\nlonger   2 B\n"
    )
    assert pairs([("a", "x"), ("bcd", "y")]) == "a    x\nbcd  y\n"
