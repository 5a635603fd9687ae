"""`--prompt-cache`, `--cache` and `llm cache`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ...running import Run, failed
from ...tiny_model import write_tiny_model


@pytest.fixture
def home(environment: dict[str, str]) -> dict[str, str]:
    return {"KUKRI_HOME": environment["KUKRI_HOME"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("long") / "long.gguf", context=4096)


def test_the_same_beginning_starts_from_a_file(
    llm_inside: Run, model: Path, home: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "long.txt").write_text("".join(f"line {i} of a long text\n" for i in range(60)))
    run = ("run", "-m", model, "-t", 0, "-n", 6, "-o", "json", "-f", tmp_path / "long.txt")

    def stats(*more: object, env: dict[str, str] | None = None) -> dict[str, Any]:
        done = llm_inside(*run, *more, env=home | (env or {}))
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    plain = stats("what?")
    assert not (Path(home["KUKRI_HOME"]) / "prompts").exists()  # it is opt-in
    first, second, other = (
        stats("--prompt-cache", "what?"),
        stats("--prompt-cache", "what?"),
        stats("-s", "sys", "what else?", env={"LLM_PROMPT_CACHE": "1"}),
    )
    assert first["text"] == second["text"] == plain["text"]
    cached = [each["stats"]["cached_tokens"] for each in (first, second, other)]
    assert cached == [0, 1024, 0]  # another system prompt is another beginning
    assert stats("--prompt-cache", "what else is there?")["stats"]["cached_tokens"] == 1024
    folder = Path(home["KUKRI_HOME"]) / "prompts"
    if os.name != "nt":
        assert folder.stat().st_mode & 0o77 == 0
        assert all(path.stat().st_mode & 0o77 == 0 for path in folder.iterdir())

    session = ("--session", tmp_path / "a.session", "--prompt-cache")
    assert stats(*session, "what?")["stats"]["cached_tokens"] == 1024
    beams = stats("--prompt-cache", "--beams", 2, "what?")
    assert (beams[0] if isinstance(beams, list) else beams)["text"]

    told = json.loads(llm_inside("cache", "stats", "-o", "json", env=home).stdout)
    prompts, weights, conversations = told
    assert (weights["kind"], weights["files"]) == ("weights", 0)
    assert (prompts["kind"], prompts["files"], conversations["files"]) == ("prompts", 4, 0)
    assert prompts["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    shown = llm_inside("cache", env=home).stdout.decode()
    assert "prompts" in shown
    assert "conversations" in shown
    assert (folder.parent / "conversations").mkdir() is None
    (folder.parent / "conversations" / "a.session").write_bytes(b"x")
    done = llm_inside("cache", "clear", env=home)
    assert (done.returncode, done.stdout) == (0, b"")
    assert "prompts: 4 files" in done.stderr.decode()
    assert list(folder.iterdir()) == []
    assert (folder.parent / "conversations" / "a.session").exists()  # which nobody can make again
    done = llm_inside("cache", "clear", "conversations", "-o", "json", env=home)
    assert json.loads(done.stdout) == [{"kind": "conversations", "files": 1, "bytes": 1}]
    assert "there is no songs" in failed(llm_inside("cache", "clear", "songs", env=home), 2)
    failed(llm_inside("cache", "eat", env=home), 2)


def test_answers_are_computed_once(llm_inside: Run, tiny: Path, home: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    run = ("run", "-m", tiny, "-t", 0, "-n", 6, "--cache", folder)

    def answered(*more: object) -> dict[str, Any]:
        done = llm_inside(*run, *more, "-o", "json", env=home)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    empty = llm_inside("cache", "--cache", folder, "-o", "json", env=home)
    assert json.loads(empty.stdout)[-1]["files"] == 0
    assert not folder.exists()  # asking makes none
    first, second = answered("what?"), answered("what?")
    assert (first["stats"].get("from_cache"), second["stats"].get("from_cache")) == (None, True)
    assert (first["text"], first["finish_reason"]) == (second["text"], second["finish_reason"])
    assert "from_cache" not in answered("what?", "-s", "else")["stats"]
    shown = llm_inside(*run, "what?", "--stats", env=home)
    assert shown.stdout.decode() == first["text"] + "\n"
    assert b"ended by length, from the cache of answers (--cache)" in shown.stderr
    drawn = llm_inside(*run[:3], "--cache", folder, "-n", 2, "-o", "json", "what?", env=home)
    assert "from_cache" not in json.loads(drawn.stdout)["stats"]

    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('"what?"\n"other"\n')
    done = llm_inside("batch", source, out, *run[1:], env=home)
    assert b", 1 from the cache of answers" in done.stderr, done.stderr
    rows = {row["prompt"]: row["answer"] for row in map(json.loads, out.read_text().splitlines())}
    assert rows["what?"] == first["text"]

    told = json.loads(llm_inside("cache", "stats", "--cache", folder, "-o", "json", env=home).stdout)
    assert [each["kind"] for each in told] == ["prompts", "weights", "conversations", "answers"]
    assert (told[-1]["files"], told[-1]["bytes"] > 0) == (3, True)
    assert "name" in failed(llm_inside("cache", "clear", "answers", env=home), 2)
    cleared = llm_inside("cache", "clear", "answers", "--cache", folder, env=home)
    assert b"answers: 3 answers" in cleared.stderr
    assert "from_cache" not in answered("what?")["stats"]


def test_a_folder_that_cannot_be_one(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "answers.sqlite").write_text("nothing of the sort\n" * 100)
    for command in (("run", "-m", tiny, "-t", 0, "hi"), ("cache", "stats"), ("serve", tiny)):
        assert "is damaged" in failed(llm_inside(*command, "--cache", tmp_path), 5)
    (tmp_path / "file").write_text("")
    assert "file" in failed(llm_inside("run", "-m", tiny, "hi", "--cache", tmp_path / "file"), 1)


def test_weights_are_kept(llm_inside: Run, tiny: Path, home: dict[str, str]) -> None:
    def run(*flags: object) -> bytes:
        done = llm_inside("run", "-m", tiny, "--device", "cpu", "-t", 0, "-n", 6, *flags, "what?", env=home)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kept() -> int:
        told = json.loads(llm_inside("cache", "stats", "weights", "-o", "json", env=home).stdout)
        return int(told[0]["files"])

    plain = run()
    assert kept() == 0
    assert run("--weight-cache", 100) == plain
    assert kept() == 1
    assert run("--weight-cache", 100) == plain
    assert kept() == 1
    assert b"weights: 1 file" in llm_inside("cache", "clear", env=home).stderr
    assert kept() == 0
