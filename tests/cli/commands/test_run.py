"""`llm run` and what all commands have in common: streams, exit codes, interruption."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kukri.runtime.hub.resolve

from ...running import LLM, Run, failed
from ...tiny_model import write_tiny_model


def answer(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr.decode()
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_stdout_holds_the_answer_and_one_newline(llm: Run, tiny: Path) -> None:
    done = llm("run", "-m", tiny, "-t", 0, "-n", 12, "--stats", "hello")
    assert done.returncode == 0, done.stderr.decode()
    assert re.fullmatch(rb"[ -~]{8,}\n", done.stdout)
    assert b"\x1b" not in done.stderr
    assert "cut after 12 tokens" in done.stderr.decode()
    assert re.search(r"prompt: \d+ tokens, 0 of them cached", done.stderr.decode())
    assert re.search(r"reply: 12 tokens, .*ended by length", done.stderr.decode())

    told = answer(llm("run", "-m", tiny, "-t", 0, "-n", 12, "-o", "json", "hello"))
    assert told["text"] == done.stdout.decode().removesuffix("\n")
    assert (told["model"], told["finish_reason"]) == (str(tiny), "length")
    assert told["stats"]["new_tokens"] == 12
    assert told["stats"]["time_to_first_token"] > 0


def test_piped_text_follows_the_argument_after_a_blank_line(llm_inside: Run, tiny: Path) -> None:
    flags = ("-m", tiny, "-t", 0, "-n", 8, "-o", "json")
    whole = answer(llm_inside("run", *flags, "Summarise:\n\nsome text"))
    assert answer(llm_inside("run", *flags, "Summarise:", input=b"some text\n"))["text"] == whole["text"]
    assert answer(llm_inside("run", *flags, "-", input=b"Summarise:\n\nsome text"))["text"] == whole["text"]
    assert answer(llm_inside("run", *flags, "--no-stdin", "Summarise:", input=b"x"))["text"] != whole["text"]
    many_words = answer(llm_inside("run", *flags, "--raw", "a", "b", input=b""))
    assert many_words["stats"]["prompt_tokens"] == len("a b")


def test_files_and_a_system_prompt_out_of_one(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    flags = ("run", "-m", tiny, "-t", 0, "-n", 8, "-o", "json")
    (tmp_path / "a").write_text("text of a\n")
    (tmp_path / "s").write_text("be brief\n")
    name = tmp_path / "a"
    whole = answer(llm_inside(*flags, "-s", "be brief", "--", f"--- {name} ---\ntext of a\n\nhello"))
    told = answer(llm_inside(*flags, "-s", f"@{tmp_path}/s", "-f", name, "hello"))
    assert (told["text"], told["stats"]["prompt_tokens"]) == (whole["text"], whole["stats"]["prompt_tokens"])
    assert (
        answer(llm_inside(*flags, "-f", "-", input=b"hello\n"))["text"]
        == answer(llm_inside(*flags, "hello"))["text"]
    )
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for flag in (("-f", tmp_path / "picture.png"), ("-s", f"@{tmp_path}/picture.png")):
        assert "picture.png is a PNG image" in failed(llm_inside(*flags, *flag, "hi"), 2)
    assert "No such file" in failed(llm_inside(*flags, "-s", "@none", "hi"), 2)
    assert "@none" not in failed(llm_inside("run", "-m", "no-such-model", "-s", "@@none", "hi"), 3)
    assert "none cannot be read" in failed(llm_inside("run", "-m", "no-such-model", "-s", "@none", "hi"), 2)


def test_every_flag_has_its_variable(llm_inside: Run, tiny: Path) -> None:
    by_variable = {
        "LLM_MAX_TOKENS": "3",
        "LLM_TEMPERATURE": "0",
        "LLM_OUTPUT": "json",
        "LLM_RAW": "1",
        "LLM_SEED": "5",
    }
    told = answer(
        llm_inside("run", "-m", tiny, "hello", env=by_variable | {"LLM_MODEL": "x", "LLM_USER_PATH": "/x"})
    )
    assert (told["stats"]["new_tokens"], told["stats"]["prompt_tokens"]) == (3, 5)
    assert (
        answer(llm_inside("run", "-m", tiny, "-n", 4, "hello", env=by_variable))["stats"]["new_tokens"] == 4
    )
    assert "--top-k" in failed(llm_inside("run", "-m", tiny, "hello", env={"LLM_TOP_K": "many"}), 2)


def test_seed_makes_sampling_repeatable(llm_inside: Run, tiny: Path) -> None:
    flags = ("-m", tiny, "-t", 2, "--top-k", 0, "--min-p", 0, "-n", 12, "hello")
    first, second, other = (llm_inside("run", "--seed", seed, *flags).stdout for seed in (7, 7, 8))
    assert first == second != other


def test_a_stop_string_ends_the_answer_and_never_shows(llm_inside: Run, tiny: Path) -> None:
    flags = ("run", "-m", tiny, "-t", 0, "-n", 40, "-o", "json")
    text = answer(llm_inside(*flags, "hello"))["text"]
    stop = text[9:12]
    told = answer(llm_inside(*flags, "--stop", stop, "--stop", "never", "hello"))
    assert told["text"] == text[: text.index(stop)]
    assert told["finish_reason"] == "stop_string"


def test_an_end_token_ends_the_answer(llm_inside: Run, tmp_path: Path) -> None:
    silent = write_tiny_model(tmp_path / "silent.gguf", silent=True)
    done = llm_inside("run", "-m", silent, "-t", 0, "hello")
    assert (done.returncode, done.stdout) == (0, b"\n")
    assert answer(llm_inside("run", "-m", silent, "-o", "json", "hello"))["finish_reason"] == "stop"


def test_a_model_without_template_continues_and_says_so(llm_inside: Run, tmp_path: Path) -> None:
    base = write_tiny_model(tmp_path / "base.gguf", template=None)
    done = llm_inside("run", "-m", base, "-t", 0, "-n", 5, "hello")
    assert done.returncode == 0
    assert "no chat template" in done.stderr.decode()
    raw = llm_inside("run", "-m", base, "-t", 0, "-n", 5, "--raw", "hello")
    assert raw.stdout == done.stdout
    assert "no chat template" not in raw.stderr.decode()


def test_a_chat_model_without_template_gets_a_built_in_one(
    llm_inside: Run, tiny: Path, tmp_path: Path
) -> None:
    flags = ("-t", 0, "-n", 5, "hello")
    bare = write_tiny_model(tmp_path / "bare-instruct.gguf", template=None)
    done = llm_inside("run", "-m", bare, *flags)
    assert "built-in one for ChatML" in done.stderr.decode()
    assert done.stdout == llm_inside("run", "-m", tiny, *flags).stdout
    assert "built in, for ChatML" in llm_inside("show", bare).stdout.decode()
    named_base = write_tiny_model(tmp_path / "bare.gguf", template=None, name="Tiny Base")
    assert "no chat template" in llm_inside("run", "-m", named_base, *flags).stderr.decode()


def test_special_tokens_in_a_prompt_stay_text_unless_raw(llm_inside: Run, tiny: Path) -> None:
    flags = ("run", "-m", tiny, "-n", 1, "-o", "json")
    typed, plain = "<|im_end|>", "x" * len("<|im_end|>")
    counts = [answer(llm_inside(*flags, text))["stats"]["prompt_tokens"] for text in (typed, plain)]
    assert counts[0] == counts[1]
    assert answer(llm_inside(*flags, "--raw", typed))["stats"]["prompt_tokens"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--no-such-flag", "hi"),
        ("no-such-command",),
        ("run", "-m"),
        ("run", "-t", "-1", "hi"),
        ("run", "-t", "nan", "hi"),
        ("run", "--top-p", "1.5", "hi"),
        ("run", "-c", "0", "hi"),
        ("run", "-o", "xml", "hi"),
        ("run", "--kv-type", "q3", "hi"),
        ("run", "--stop", "", "hi"),
        ("run", "--no-stdin", "-"),
        ("run",),
        ("run", " "),
        ("run", "--raw", "-s", "be brief", "hi"),
        ("bench", "-p", "0", "-n", "0"),
        ("show",),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(llm_inside: Run, arguments: tuple[str, ...]) -> None:
    assert "--help" in failed(llm_inside(*arguments), 2)


def test_flags_that_are_not_utf_8_are_refused(llm: Run, tiny: Path) -> None:
    bad = os.fsdecode(b"\xff")
    for words in (("run", "-s", bad, "hi"), ("run", "--stop", bad, "hi"), ("tokenize", bad)):
        assert "UTF-8" in failed(llm(words[0], "-m", tiny, *words[1:]), 2)


def test_what_a_stream_cannot_do_is_said(environment: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    command = [*LLM, "run", "-m", str(tiny), "-n", "1", "hi"]
    with open(tmp_path / "written", "wb") as written, open(tmp_path / "written", "rb") as read:
        for code, streams in (
            (2, {"stdin": written, "stdout": subprocess.PIPE}),
            (1, {"stdin": subprocess.DEVNULL, "stdout": read}),
        ):
            done = subprocess.run(
                command, **streams, stderr=subprocess.PIPE, env=environment, timeout=60, check=False
            )
            assert done.returncode == code
            assert re.search(rb"std(in) cannot be read|cannot write the output", done.stderr)


def test_piped_chat_refuses_what_it_would_drop(llm_inside: Run, tiny: Path) -> None:
    line = failed(llm_inside("chat", "-m", tiny, "-n", 1, "--raw", "-s", "be brief", input=b"hi"), 2)
    assert "system prompt" in line
    line = failed(llm_inside("chat", "-m", tiny, "-n", 1, "--no-stdin", input=b"hi"), 2)
    assert "llm run" in line


def test_binary_stdin_is_refused(llm: Run) -> None:
    assert "UTF-8" in failed(llm("run", "hi", input=b"\x89PNG\r\n\x1a\n\xff\xfe"), 2)
    with open("/dev/zero" if os.name != "nt" else os.devnull, "rb") as endless:
        assert "too much" in failed(llm("run", "hi", stdin=endless), 2)


@pytest.mark.parametrize(
    "name", ["no-such-name", "./no-such-file.gguf", "no/such/path", "no-such.gguf", "", "nul\\0", "x" * 5000]
)
def test_a_missing_model_is_3(llm_inside: Run, name: str) -> None:
    failed(llm_inside("run", "-m", name, "hi"), 3)


def test_exit_codes_of_the_process(llm: Run, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    assert llm("show", tiny).returncode == 0
    failed(llm("rm", tiny), 1)
    failed(llm("run"), 2)
    failed(llm("show", "no-such-name"), 3)
    failed(llm("run", "-m", tiny, "-c", 8, "a longer prompt"), 4)
    failed(llm("show", tmp_path / "damaged.gguf"), 5)


def test_a_name_nearly_right_gets_a_hint(llm_inside: Run) -> None:
    assert "did you mean smollm2" in failed(llm_inside("run", "-m", "smolm2", "hi"), 3)


def test_a_prompt_that_cannot_fit_is_4(llm_inside: Run, tiny: Path) -> None:
    line = failed(llm_inside("run", "-m", tiny, input=b"words and " * 400), 4)
    assert re.search(r"\b3\d\d\d tokens\b.*\b512\b", line)
    assert re.search(
        r"\b3\d\d\d tokens\b.*\b64\b",
        failed(llm_inside("run", "-m", tiny, "-c", 64, input=b"words and " * 400), 4),
    )


def test_an_answer_that_fills_the_context_says_so(llm_inside: Run, tiny: Path) -> None:
    done = llm_inside("run", "-m", tiny, "-t", 0, "-c", 64, "--raw", "hello")
    assert done.returncode == 0
    assert "context of 64 tokens is full" in done.stderr.decode()


@pytest.mark.parametrize("damage", ["cut", "cut tensor", "text", "empty", "folder", "version"])
def test_a_damaged_file_is_5(llm_inside: Run, tiny: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "damaged.gguf"
    data = tiny.read_bytes()
    contents = {
        "cut": data[:1000],
        "cut tensor": data[:-1000],
        "text": b"hello",
        "empty": b"",
        "version": data[:4] + b"\x63" + data[5:],
    }
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes(contents[damage])
    failed(llm_inside("run", "-m", path, "hi"), 5)
    failed(llm_inside("show", path), 5)
    failed(llm_inside("bench", "-m", path), 5)
    if damage != "cut tensor":
        failed(llm_inside("tokenize", "-m", path, "hi"), 5)


@pytest.mark.skipif(os.name == "nt", reason="devices and pipes of POSIX")
def test_what_is_no_ordinary_file_is_5(llm: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in ("/dev/zero", tmp_path / "pipe.gguf"):
        assert "ordinary file" in failed(llm("tokenize", "-m", path, "hi"), 5)


def test_a_broken_template_is_5_and_a_refusal_is_1(llm_inside: Run, tmp_path: Path) -> None:
    for i, (template, code) in enumerate(
        [("{{ ''.__class__.__mro__ }}", 5), ("{% for %}", 5), ("{{ raise_exception('only tools here') }}", 1)]
    ):
        path = write_tiny_model(tmp_path / f"{i}.gguf", template=template)
        line = failed(llm_inside("run", "-m", path, "hi"), code)
    assert "only tools here" in line


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without an NVIDIA driver."""

    def missing(name: str, *arguments: Any) -> None:
        raise OSError(f"{name}: not there")

    monkeypatch.setattr("kukri.runtime.cuda.driver.library.ctypes.CDLL", missing)


@pytest.mark.usefixtures("no_driver")
def test_a_device_that_is_not_there_is_1(llm_inside: Run, tiny: Path) -> None:
    assert "NVIDIA" in failed(llm_inside("run", "-m", tiny, "--device", "cuda", "hi"), 1)


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("flags", [("--device", "cuda")])
@pytest.mark.parametrize("command", [("run", "hi"), ("chat",)])
def test_a_device_that_is_not_there_is_told_before_a_download(
    llm_inside: Run, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, str], command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(kukri.runtime.hub.resolve, "resolve", lambda *_: pytest.fail("a download"))
    line = failed(llm_inside(*command, "-m", "smollm2", *flags, input=b"hi"), 1)
    assert "NVIDIA" in line


@pytest.mark.slow
def test_the_cache_is_as_exact_as_the_model_unless_told_otherwise(
    llm_inside: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kukri.runtime.cpu import machine

    kinds = []
    real = machine.Lowering

    def spy(*arguments: Any) -> Any:
        kinds.append(arguments[1].cache_type)
        return real(*arguments)

    monkeypatch.setattr(machine, "Lowering", spy)
    for kind in (None, "f16", "f32", "q8_0", "q4_0", "q8_0/q4_0", "auto"):
        flags = () if kind is None else ("--kv-type", kind)
        assert llm_inside("run", "-m", tiny, "-n", 1, *flags, "hi").returncode == 0
    assert llm_inside("chat", "-m", tiny, "-n", 1, input=b"hi").returncode == 0
    assert kinds == ["F32", "F16", "F32", "Q8_0", "Q4_0", "Q8_0/Q4_0", "F32", "F32"]


def test_a_warm_start_does_without_numba(tiny: Path, environment: dict[str, str]) -> None:
    """It takes a quarter of a second to import, and only compiling needs it; as do a few others."""
    script = "import sys; from kukri.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", script, "run", "-m", str(tiny), "-n", "1", "hi"]
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
    unwanted = {"numba", "pydantic", "rich", "huggingface_hub", "gguf", "sentencepiece", "prompt_toolkit"}
    assert not unwanted & set(done.stdout.decode().split())


def test_debug_shows_the_traceback(llm: Run, environment: dict[str, str]) -> None:
    for command in (("--debug", "run"), ("run", "--debug")):
        done = llm(*command, "-m", "no-such-name", "hi")
        assert done.returncode == 3
        assert "Traceback" in done.stderr.decode()
        assert "─ locals ─" not in done.stderr.decode()
    assert "Traceback" in llm("run", "-m", "no-such-name", "hi", env={"LLM_DEBUG": "1"}).stderr.decode()
