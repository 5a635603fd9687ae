"""Completion in a shell, as the scripts that `llm --install-completion` writes ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def output(environment: dict[str, str], *arguments: str) -> str:
    """The stdout of `llm` under that name, which completion goes by."""
    script = "import sys; sys.argv[0] = 'llm'; from kukri.cli.start import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout


def completed(environment: dict[str, str], *words: str) -> list[str]:
    """What bash is offered for the last of `words`."""
    asked = {
        "_LLM_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["llm", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return output(environment | asked).split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("sh",), "show"),
        (("show", "sm"), "smollm2"),
        (("run", "-m", "smol"), "smollm2"),
        (("rm", "gem"), "gemma3:270m"),
        (("pull", "-m", "gem"), "gemma3:270m"),
        (("use", "smol"), "smollm2"),
        (("eval", "--file", "x", "smol"), "smollm2"),
        (("bench", "--model", "smol"), "smollm2"),
        (("quantize", "a", "b", "--type", "iq4_"), "iq4_nl"),
        (("run", "--kv-type", "q"), "q8_0"),
        (("chat", "--no-w"), "--no-wrap"),
    ],
    ids=" ".join,
)
def test_words(environment: dict[str, str], words: tuple[str, ...], expected: str) -> None:
    assert expected in completed(environment, *words)


def test_paths(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "mine.gguf").write_bytes(b"")
    (tmp_path / "more.txt").write_bytes(b"")
    for unsafe in ("m\x1b[31m.gguf", "m\n.gguf", "m\u202e.gguf", "m\udce9.gguf"):
        if os.name != "nt":
            (tmp_path / unsafe).write_bytes(b"")
    assert completed(environment, "show", f"{tmp_path}/m") == [f"{tmp_path}/mine.gguf", f"{tmp_path}/models/"]
    assert completed(environment, "show", f"{tmp_path}/none/x") == []


def test_nothing_fits(environment: dict[str, str]) -> None:
    assert completed(environment, "show", "no-such-model") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_can_be_shown(environment: dict[str, str], shell: str) -> None:
    without_detection = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "_LLM_COMPLETE" in output(environment | without_detection, "--show-completion", shell)
