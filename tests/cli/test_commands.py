"""`llm bench`, `show`, `list`, `tokenize`, `doctor`, and the flags that commands share."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from kukri.cli import catalogue, options
from kukri.cli.bench import Test as Case
from kukri.cli.main import app
from kukri.cli.terminal import human_bytes, note, pairs, table
from kukri.runtime.sampler import SamplingParams

from ..tiny_model import write_tiny_model
from .conftest import Run, failed

BENCH_KEYS = {
    "model_type",
    "model_size",
    "model_n_params",
    "n_threads",
    "n_prompt",
    "n_gen",
    "n_depth",
    "avg_ts",
    "stddev_ts",
    "samples_ts",
}


def test_bench_json_has_the_keys_of_llama_bench(llm_inside: Run, tiny: Path) -> None:
    done = llm_inside("bench", "-m", tiny, "-p", 20, "-n", 3, "-r", 2, "-d", 7, "-t", 1, "-o", "json")
    prefill, decode = json.loads(done.stdout)
    assert set(prefill) >= BENCH_KEYS
    assert set(decode) >= BENCH_KEYS
    assert (prefill["n_prompt"], prefill["n_gen"], prefill["n_depth"], prefill["n_threads"]) == (20, 0, 7, 1)
    assert (decode["n_prompt"], decode["n_gen"]) == (0, 3)
    assert len(decode["samples_ts"]) == 2
    assert decode["avg_ts"] == pytest.approx(sum(decode["samples_ts"]) / 2)
    assert prefill["ttft_seconds"] > 0
    assert (prefill["model_type"], prefill["model_n_params"]) == ("llama 108.0k F32", 107968)
    lines = llm_inside("bench", "-m", tiny, "-p", 4, "-n", 2, "-r", 1, "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["stddev_ts"] for line in lines] == [0.0, 0.0]


def test_bench_tables(llm_inside: Run, tiny: Path) -> None:
    shown = llm_inside("bench", "-m", tiny, "-p", 20, "-n", 3, "-r", 2, "-d", 7).stdout.decode()
    header, rule, prefill, decode, _, first, loaded = shown.splitlines()
    assert [cell.strip() for cell in header.strip("|").split("|")] == [
        "model", "size", "params", "backend", "threads", "test", "t/s"]  # fmt: skip
    assert len({len(header), len(rule), len(prefill), len(decode)}) == 1
    assert re.search(r"\| +pp20 @ d7 \| +[\d.]+ ± [\d.]+ \|", prefill)
    assert re.search(r"\| +tg3 @ d7 \| +[\d.]+ ± [\d.]+ \|", decode)
    assert first.startswith("time to first token after 20 tokens: ")
    assert loaded.startswith("loaded in ")
    rows = list(
        csv.DictReader(
            llm_inside("bench", "-m", tiny, "-p", 4, "-n", 0, "-r", 1, "-o", "csv")
            .stdout.decode()
            .splitlines()
        )
    )
    assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [("4", "0")]


def test_bench_names_tests_as_llama_bench_does() -> None:
    assert [Case(512, 0, 0).name, Case(0, 128, 0).name, Case(0, 128, 64).name] == [
        "pp512",
        "tg128",
        "tg128 @ d64",
    ]


def test_bench_measures_what_it_says(tiny: Path) -> None:
    """On a machine that only counts: chunks of prefill, single tokens of decode, after the depth."""
    import numpy as np

    from kukri.cli.bench import measure
    from kukri.runtime.cache import Batch, PageTable

    steps: list[tuple[int, int, int]] = []

    class Counting:
        max_rows = 8
        max_wanted = 8

        def step(self, batch: Batch, table: PageTable) -> np.ndarray:
            steps.append((int(batch.positions[0]), len(batch.tokens), len(batch.wanted)))
            assert table.lengths[0] == batch.positions[-1] + 1
            return np.zeros((len(batch.wanted), 16), np.float32)

    table = PageTable(4)
    seconds = measure(Counting(), table, 16, Case(10, 0, 5), repetitions=2)
    assert len(seconds) == 2
    assert steps == [(0, 5, 1), *[(5, 8, 0), (13, 2, 1)] * 3]
    steps.clear()
    measure(Counting(), table, 16, Case(0, 2, 0), repetitions=1)
    assert steps == [(0, 1, 1), (1, 1, 1)] * 2


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
    assert re.search(r"(?m)^name +a\]0;titleb2Jc licence none$", shown)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
    told = llm_inside("show", path, "-o", "json").stdout.decode()
    assert json.loads(told)["name"] == name
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", told)
    for flags in ((), ("-o", "json")):
        done = llm_inside("tokenize", "-m", path, *flags, "x\x9b2J\x7f")
        assert not re.search(r"[\x7f-\x9f]", done.stdout.decode())
    note("two\x1b[2J\nlines\x9b")
    assert capfdbinary.readouterr().err == b"two[2J\nlines\n"
    assert table(("A",), [("x\x1b\ty\x85",)]) == "A\nx y\n"


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
    hints = options.GenerationOptions.__annotations__
    for field in fields(SamplingParams):
        if field.name in hints and (stated := re.search(r"default: ([\d.]+)", hints[field.name])):
            assert float(stated[1].rstrip(".")) == field.default, field.name


def test_all_flags_have_variables_and_run_and_chat_share_them() -> None:
    group = typer.main.get_command(app)
    flags: dict[str, dict[str, str | None]] = {}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        flags[name] = {
            max(parameter.opts, key=len): parameter.envvar
            for parameter in command.params
            if parameter.opts[0][0] == "-"
        }
        for flag, variable in flags[name].items():
            wanted = None if flag in ("--model", "--help") else "LLM_" + flag[2:].upper().replace("-", "_")
            assert variable == wanted, (name, flag)
    assert flags["run"] == flags["chat"]
    assert set(flags["run"]) >= {
        "--system", "--max-tokens", "--context", "--temperature", "--top-k", "--top-p", "--min-p", "--seed",
        "--repeat-penalty", "--repeat-last-n", "--stop", "--raw", "--kv-type", "--threads", "--device",
        "--stats", "--output",
    }  # fmt: skip
    assert set(flags) == {"run", "chat", "pull", "list", "show", "rm", "bench", "tokenize", "doctor"}


def test_a_format_of_other_commands_in_the_environment_is_ignored(llm_inside: Run, tiny: Path) -> None:
    for value in ("md", "rich", "csv", ""):
        done = llm_inside("run", "-m", tiny, "-t", 0, "-n", 2, "hi", env={"LLM_OUTPUT": value})
        assert (done.returncode, done.stdout[:1] == b"{") == (0, False), done.stderr
    bench = ("bench", "-m", tiny, "-p", 4, "-n", 0, "-r", 1)
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
