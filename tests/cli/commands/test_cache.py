"""`--prompt-cache` and `llm cache`."""

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
    prompts, conversations = told
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
