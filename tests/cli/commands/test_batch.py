"""`llm batch` as people run it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import kukri

from ...running import LLM, Run


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def questions(path: Path, n: int) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"text {i}", "i": i}) + "\n" for i in range(n)))
    return path


def test_answers_are_those_of_single_runs(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    source, out = questions(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"
    arguments = (source, out, "-m", tiny, "--raw", "-t", "0", "-n", "8", "--ordered")
    done = llm_inside("batch", *arguments)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert b"20 rows in" in done.stderr
    rows = read(out)
    assert [row["i"] for row in rows] == list(range(20))
    with kukri.load(tiny) as model:
        for row in rows[:5]:
            ids = model.encode(row["prompt"])
            assert row["answer"] == "".join(model.stream(ids, temperature=0, max_tokens=8))
            assert row["finish_reason"] == "length"
    again = llm_inside("batch", *arguments)
    assert (again.returncode, b"--force" in again.stderr) == (1, True)
    assert sorted(path.name for path in tmp_path.glob("*.jsonl*")) == ["in.jsonl", "out.jsonl"]


def test_lines_of_openai_and_errors(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    body = {"model": "gpt-4o", "prompt": "abc", "max_tokens": 3, "temperature": 0}
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body},
        {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": body | {"top_p": 7}},
        {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": body | {"prompt": "x" * 5000}},
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines) + "not json\n")
    done = llm_inside("batch", source, out, "-m", tiny)
    assert done.returncode == 0, done.stderr
    assert b"3 failed, see out.errors.jsonl" in done.stderr
    (row,) = read(out)
    assert row["custom_id"] == "a"
    assert row["response"]["body"]["usage"]["completion_tokens"] == 3
    errors = {error["row"]: error for error in read(tmp_path / "out.errors.jsonl")}
    assert errors.keys() == {2, 3, 4}
    assert "top_p" in errors[2]["error"]["message"]
    assert "context" in errors[3]["error"]["message"]
    assert "not valid JSON" in errors[4]["error"]["message"]


def test_pipes_templates_and_csv(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    flags = ("-m", tiny, "--raw", "-n", "2", "-t", "0", "--prompt-template", "<{name}>")
    done = llm_inside("batch", "-", "-", *flags, input=b'{"name": "a"}\n{"name": "b"}\n')
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(row["name"] for row in rows) == ["a", "b"]
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("name\na\nb\n")
    assert llm_inside("batch", source, out, *flags).returncode == 0
    assert out.read_text("utf-8").splitlines()[0] == "name,answer,finish_reason"


def test_answers_with_a_form(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    source, out = questions(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    done = llm_inside("batch", source, out, "-m", tiny, "--raw", "-n", "20", "-t", "1", "--choice", "ab, ba")
    assert done.returncode == 0, done.stderr
    assert {row["answer"] for row in read(out)} <= {"ab", "ba"}


def test_vectors(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    source, out = questions(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    done = llm_inside("batch", source, out, "-m", tiny, "--embed", "--ordered")
    assert done.returncode == 0, done.stderr
    alone = llm_inside("embed", "-m", tiny, *(row["prompt"] for row in read(source)))
    vectors = [json.loads(line)["embedding"] for line in alone.stdout.splitlines()]
    assert len(vectors) == 3
    for row, vector in zip(read(out), vectors, strict=True):
        assert row["answer"] == pytest.approx(vector, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("in.jsonl", "out.xlsx"), 1, b"not .xlsx"),
        (("none.jsonl", "out.jsonl"), 1, b"none.jsonl"),
        (("in.jsonl", "in.jsonl"), 1, b"own answers"),
        (("in.jsonl", "out.jsonl", "--prompt-template", "{"), 2, b"lone brace"),
        (("in.jsonl", "out.jsonl", "--embed", "--raw"), 2, b"--embed"),
        (("in.jsonl", "out.jsonl", "--json", "--choice", "a"), 2, b"exclude each other"),
        (("in.jsonl",), 2, b"OUT"),
    ],
)
def test_wrong_command_lines(
    llm_inside: Run, tiny: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, reason: bytes
) -> None:
    questions(tmp_path / "in.jsonl", 2)
    places = [str(tmp_path / each) if ".jsonl" in each or ".xlsx" in each else each for each in arguments]
    done = llm_inside("batch", *places, "-m", tiny)
    assert (done.returncode, reason in done.stderr) == (code, True), done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.*l*")) == ["in.jsonl"]


def test_dry_run(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    source = questions(tmp_path / "in.jsonl", 7)
    done = llm_inside("batch", source, tmp_path / "out.jsonl", "-m", tiny, "--raw", "-n", "5", "--dry-run")
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.decode().splitlines())
    assert said["rows"] == "7"
    assert said["tokens of answers"] == "35 at most"
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
def test_killed_and_gone_on(environment: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    source, out = questions(tmp_path / "in.jsonl", 200), tmp_path / "out.jsonl"
    command = [
        *LLM,
        "batch",
        *map(str, (source, out, "-m", tiny, "--raw", "-t", "0", "-n", "12", "--threads", "1")),
    ]
    generator = random.Random(1)
    for _ in range(4):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        before = out.stat().st_size if out.exists() else 0
        while process.poll() is None and time.monotonic() < until:
            if out.exists() and out.stat().st_size > before:  # it has begun to write
                break
            time.sleep(0.01)
        time.sleep(generator.random() * 0.3)
        process.send_signal(generator.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM]))
        process.wait(60)
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode in (0, 1)
    rows = read(out)
    assert sorted(row["i"] for row in rows) == list(range(200))
    assert not Path(f"{out}.journal").exists()
    whole = tmp_path / "whole.jsonl"
    undisturbed = [*command[: len(LLM) + 2], str(whole), *command[len(LLM) + 3 :]]
    assert subprocess.run(undisturbed, env=environment, capture_output=True, check=False).returncode == 0
    assert sorted(map(str, rows)) == sorted(map(str, read(whole)))
    assert os.path.getsize(whole) == os.path.getsize(out)
