"""The model of commands that name none: `llm use`, LLM_MODEL, first words, and what a terminal is told."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kukri.runtime.hub.resolve
from kukri.cli.commands.run import _model_and_text
from kukri.cli.console import terminal
from kukri.cli.settings import model
from kukri.runtime.hub.catalogue import BY_NAME

from ...running import Run, failed


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> list[str]:
    """The names of models that commands look up; all of them are the tiny one."""
    names: list[str] = []

    def resolve(name: str, *more: object) -> Path:
        names.append(name)
        return tiny

    users = ("tokenize", "bench", "serve", "models.quantize")
    for user in (*(f"commands.{each}" for each in users), "eval.measure"):
        monkeypatch.setattr(f"kukri.cli.{user}.resolve", resolve)
    # Last: a module that is imported for the first time keeps what it finds there.
    monkeypatch.setattr(kukri.runtime.hub.resolve, "resolve", resolve)
    return names


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """on_terminal("stdin", …) makes these streams terminals."""

    def make(*names: str) -> None:
        def is_terminal(stream: Any) -> bool:
            return stream in [getattr(sys, name) for name in names]

        monkeypatch.setattr(terminal, "is_terminal", is_terminal)

    return make


QUICK = ("-t", 0, "-n", 1)
BENCH = ("bench", "-p", 4, "-n", 0, "-r", 1, "--no-cold")


# ---- llm use


def test_use_is_what_run_and_others_take(llm_inside: Run, asked: list[str], tiny: Path) -> None:
    done = llm_inside("use", "QWEN3:4b")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"qwen3:4b is the default model from now on" in done.stderr
    assert b"fetched at its first use (2.5 GB); llm pull qwen3:4b" in done.stderr
    assert llm_inside("use").stdout == b"qwen3:4b\n"
    for command in (("run", *QUICK, "hi"), ("tokenize", "hi"), BENCH):
        assert llm_inside(*command).returncode == 0
    assert llm_inside("chat", *QUICK, input=b"hi").returncode == 0
    assert asked == ["qwen3:4b"] * 4
    assert llm_inside("run", "-m", "org/x", *QUICK, "hi").returncode == 0
    assert asked[4:] == ["org/x"]


def test_what_the_file_gets(
    llm_inside: Run, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(tiny.read_bytes())
    monkeypatch.chdir(tmp_path)
    for given, stored in (
        ("m.gguf", str(tmp_path / "m.gguf")),
        ("org/repo:q8_0", "org/repo:q8_0"),
        ("https://huggingface.co/org/repo/blob/main/m-Q8_0.gguf", "org/repo:m-Q8_0"),
        ("SmolLM2", "smollm2"),
    ):
        assert llm_inside("use", given).returncode == 0
        assert llm_inside("config", "model").stdout == f"{stored}\n".encode()
    assert failed(llm_inside("use", "no-such-model"), 3)
    assert llm_inside("use").stdout == b"smollm2\n"


def test_use_tells_what_goes_before_it(llm_inside: Run, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[chat]\nmodel = 'gemma3:1b'\n")
    done = llm_inside("use", "qwen3:4b", env={"LLM_MODEL": "smollm2"})
    assert b"llm chat takes gemma3:1b all the same" in done.stderr
    assert b"LLM_MODEL=smollm2 in the environment goes before it" in done.stderr
    assert llm_inside("use", env={"LLM_MODEL": "smollm2"}).stdout == b"smollm2\n"


def test_a_default_model_is_not_one_more_for_eval(
    llm_inside: Run, tmp_path: Path, tiny: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kukri.cli.eval.measure.resolve", kukri.runtime.hub.resolve.resolve)
    text = tmp_path / "text.txt"
    text.write_text("the fox in the hall " * 40)
    flags = ("--file", text, "-c", 32, "--limit", 32, "-o", "json")
    for env in ({"LLM_MODEL": "gemma3:1b"}, {}):
        llm_inside("use", "qwen3:4b")
        for words, names in (
            ((str(tiny),), [str(tiny)]),
            (("-m", "org/a", "org/b"), ["org/a", "org/b"]),
            ((), [env.get("LLM_MODEL", "qwen3:4b")]),
        ):
            asked.clear()
            done = llm_inside("eval", *words, *flags, env=env)
            assert done.returncode == 0, done.stderr
            assert asked == names


def test_serve_takes_it_unless_others_are_named(llm_inside: Run, tiny: Path, asked: list[str]) -> None:
    llm_inside("use", "qwen3:4b")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, names in (
            ((), ["qwen3:4b"]),
            (("org/a", "org/b"), ["org/a", "org/b"]),
            (("-m", "org/a"), ["org/a"]),
        ):
            asked.clear()
            refused = llm_inside("serve", *words, "--port", port)
            assert f"127.0.0.1:{port}: Address already in use" in failed(refused, 1)
            assert asked == names


# ---- LLM_MODEL


@pytest.mark.parametrize("name", ["qwen3:4b", "org/repo:Q4_0", "hf.co/org/repo", "https://hf.co/org/repo"])
def test_the_variable_counts_where_kukri_can_know_the_name(
    llm_inside: Run, asked: list[str], name: str
) -> None:
    llm_inside("use", "gemma3:1b")
    assert llm_inside("run", *QUICK, "hi", env={"LLM_MODEL": name}).stderr.count(b"LLM_MODEL") == 0
    assert llm_inside(*BENCH, env={"LLM_MODEL": name}).returncode == 0
    assert llm_inside("run", "-m", "org/x", *QUICK, "hi", env={"LLM_MODEL": name}).returncode == 0
    assert asked == [name, name, "org/x"]


@pytest.mark.parametrize("name", ["gpt-4o-mini", "claude-opus-5", "openrouter/anthropic/claude", "gemini:2"])
def test_the_name_of_another_programs_model_is_ignored_with_one_line(
    llm_inside: Run, asked: list[str], name: str
) -> None:
    done = llm_inside("run", *QUICK, "hi", env={"LLM_MODEL": name})
    assert done.returncode == 0
    assert done.stderr.decode().count(f"LLM_MODEL={name} is no model that kukri knows, and is ignored") == 1
    assert b"LLM_MODEL" not in llm_inside("run", "-m", "a/b", *QUICK, "hi", env={"LLM_MODEL": name}).stderr
    assert b"LLM_MODEL" not in llm_inside("list", env={"LLM_MODEL": name}).stderr
    llm_inside("use", "gemma3:1b")
    llm_inside("run", *QUICK, "hi", env={"LLM_MODEL": name})
    assert asked == ["smollm2", "a/b", "gemma3:1b"]


@pytest.mark.parametrize("name", ["./gone.gguf", "gone.gguf", "/no/where", "https://example.com/a/b"])
def test_a_file_that_is_gone_is_an_error(llm_inside: Run, name: str) -> None:
    assert name.rpartition("//")[2][:9] in failed(llm_inside("run", "hi", env={"LLM_MODEL": name}), 3)


# ---- llm run MODEL PROMPT


def answer_to(done: Any) -> tuple[str, int]:
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    return told["model"], told["stats"]["prompt_tokens"]


RAW = (*QUICK, "--raw", "-o", "json")


def test_a_first_word_that_names_a_model(llm_inside: Run, asked: list[str]) -> None:
    llm_inside("use", "gemma3:1b")
    done = llm_inside("run", *RAW, "qwen3:4b", "abc", env={"LLM_MODEL": "smollm2"})
    assert answer_to(done) == ("qwen3:4b", 3)
    assert b"taking qwen3:4b as the model; -m qwen3:4b says so" in done.stderr
    assert answer_to(llm_inside("run", *RAW, "qwen3:4b", input=b"abcd")) == ("qwen3:4b", 4)
    assert answer_to(llm_inside("run", *RAW, "qwen3:4b", "-", input=b"abcd")) == ("qwen3:4b", 4)
    assert asked == ["qwen3:4b"] * 3


def test_a_first_word_that_names_none(llm_inside: Run, asked: list[str]) -> None:
    name = "smollm2"
    for words, prompt in (
        (("-m", "org/x", name, "abc"), f"{name} abc"),  # the model is named already
        ((f"{name} abc",), f"{name} abc"),  # one word
        (("SmolLM2", "abc"), "SmolLM2 abc"),  # not exactly
        (("abc", name), f"abc {name}"),
        ((name,), name),  # nothing else, and no terminal
        ((name, "--no-stdin"), name),
    ):
        done = llm_inside("run", *RAW, *words)
        assert b"taking" not in done.stderr
        assert answer_to(done)[1] == answer_to(llm_inside("run", *RAW, "-m", "org/x", prompt))[1]


def test_a_first_word_that_names_a_model_beside_files(
    llm_inside: Run, asked: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("abc\n")
    told = answer_to(llm_inside("run", *RAW, "qwen3:4b", "-f", tmp_path / "a"))
    assert told == ("qwen3:4b", len("abc"))
    told = answer_to(llm_inside("run", *RAW, "qwen3:4b", "-f", tmp_path / "a", "why?"))
    whole = llm_inside("run", *RAW, "-m", "qwen3:4b", "--", f"--- {tmp_path / 'a'} ---\nabc\n\nwhy?")
    assert told == answer_to(whole)
    told = answer_to(llm_inside("run", *RAW, "qwen3:4b", "-f", "-", input=b"abcd\n"))
    assert told == ("qwen3:4b", 4)
    assert asked == ["qwen3:4b"] * 4


def test_a_prompt_that_is_a_models_name_leaves_a_loops_list_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "questions").write_text("smollm2\nwhy?\n")
    with open(tmp_path / "questions") as questions:
        monkeypatch.setattr(sys, "stdin", questions)
        assert _model_and_text(["smollm2"], False, []) == ("smollm2", "smollm2\nwhy?")
        os.lseek(questions.fileno(), len("smollm2\n"), os.SEEK_SET)  # as the shell's `read` leaves it
        capsys.readouterr()
        assert _model_and_text(["smollm2"], False, []) == (None, "smollm2")
        assert os.lseek(questions.fileno(), 0, os.SEEK_CUR) == len("smollm2\n")
    told = capsys.readouterr().err
    assert "left alone" in told
    assert "taking" not in told


def test_a_model_alone_on_a_terminal_is_a_hint(
    llm_inside: Run, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: stream is sys.stdin)
    error = failed(llm_inside("run", "smollm2"), 2)
    assert "llm run -m smollm2 PROMPT" in error
    assert "llm chat -m smollm2" in error
    assert not asked


# ---- what a newcomer is told


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 GB free, no GPU, no models."""
    monkeypatch.setattr("kukri.cli.commands.models.list.installed", list)
    monkeypatch.setattr("kukri.runtime.model.memory_check.available_memory", lambda: 8_000_000_000)
    monkeypatch.setattr("kukri.runtime.model.cuda_device.gpu_memory", lambda: None)


ADVICE = b"llm use qwen3:4b chooses one that suits this machine (2.5 GB)"
TINY = b"smollm2 is a tiny model for trying things out; " + ADVICE


@pytest.mark.usefixtures("machine")
def test_the_tiny_default_says_so_once_on_a_terminal(
    llm_inside: Run, asked: list[str], on_terminal: Callable[..., None]
) -> None:
    assert b"tiny" not in llm_inside("run", *QUICK, "hi").stderr
    on_terminal("stderr")
    assert b"tiny" not in llm_inside("run", *QUICK, "hi").stderr  # the answer goes into a pipe
    on_terminal("stdout", "stderr")
    done = llm_inside("run", *QUICK, "hi")
    assert done.stderr.count(TINY) == 1
    assert b"tiny" not in done.stdout
    for flags in (("-m", "org/x"), ("-m", "smollm2")):
        assert b"tiny" not in llm_inside("run", *flags, *QUICK, "hi").stderr
    llm_inside("use", "smollm2")
    assert b"tiny" not in llm_inside("run", *QUICK, "hi").stderr


@pytest.mark.usefixtures("machine")
def test_no_model_and_no_command_suggest_one(llm_inside: Run, on_terminal: Callable[..., None]) -> None:
    assert ADVICE in llm_inside("list").stderr
    assert ADVICE not in llm_inside().stderr
    on_terminal("stdout", "stderr")
    done = llm_inside()
    assert (done.returncode, ADVICE in done.stderr) == (0, True)
    assert b"Usage" in done.stdout
    llm_inside("use", "smollm2")
    assert ADVICE not in llm_inside().stderr


@pytest.mark.usefixtures("machine")
def test_a_machine_too_small_for_anything_better(
    llm_inside: Run, asked: list[str], on_terminal: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kukri.runtime.model.memory_check.available_memory", lambda: 500_000_000)
    assert model.suggested() is None
    on_terminal("stdout", "stderr")
    assert b"for trying things out\n" in llm_inside("run", *QUICK, "hi").stderr.replace(b"\x1b[0m", b"")
    assert b"no models yet; llm list --all" in llm_inside("list").stderr


# ---- the table, and -m beside the argument


def test_list_all_and_show_tell_of_models_that_are_not_here(llm_inside: Run) -> None:
    shown = llm_inside("list", "--all")
    lines = {line.split()[0]: line for line in shown.stdout.decode().splitlines()}
    assert " 2.5 GB  4.02 B" in lines["qwen3:4b"]
    assert "~18.7 GB" in lines["qwen3:30b-a3b"]
    assert "30.5 B, 3.3 B active" in lines["qwen3:30b-a3b"]
    assert "  base  " in lines["gemma3:270m"]
    assert b"~ is an estimate" in shown.stderr
    told = {each["name"]: each for each in json.loads(llm_inside("list", "--all", "-o", "json").stdout)}
    assert (told["qwen3:30b-a3b"]["size"], told["qwen3:4b"]["size"]) == (None, 2_497_281_120)
    assert told["qwen3:30b-a3b"]["size_estimate"] == BY_NAME["qwen3:30b-a3b"].about_bytes
    assert told["qwen3:4b"]["sha256"] == BY_NAME["qwen3:4b"].sha256
    one = llm_inside("show", "qwen3:30b-a3b")
    assert b"~18.7 GB" in one.stdout
    assert json.loads(llm_inside("show", "qwen3:30b-a3b", "-o", "json").stdout)["size"] is None


def test_show_pull_and_rm_take_m_as_well(llm_inside: Run, tiny: Path) -> None:
    shown = llm_inside("show", tiny).stdout
    assert shown == llm_inside("show", "-m", tiny).stdout == llm_inside("show", "-m", tiny, tiny).stdout
    assert llm_inside("pull", "-m", tiny).stdout == llm_inside("pull", tiny).stdout == f"{tiny}\n".encode()
    assert "a file of your own" in failed(llm_inside("rm", "-m", tiny), 1)
    for command in ("show", "pull", "rm"):
        assert "two models are named" in failed(llm_inside(command, tiny, "-m", "smollm2"), 2)
        assert "no model is named" in failed(llm_inside(command), 2)
