"""docs/tutorial.md and docs/tutorial.ipynb: every command and every cell works as it stands there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
MORE = "…"


def commands(text: str) -> list[tuple[str, list[str]]]:
    """(command, the lines of its output that are shown), in order."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(text):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line != MORE:
                found[-1][1].append(line)
    return found


def squeezed(text: str) -> str:
    """With one space where there are several: the widths of columns depend on what is in them."""
    return re.sub(r"[ \t]+", " ", text)


@pytest.fixture
def home(tmp_path: Path, real_model: Callable[[str], Path]) -> dict[str, str]:
    """The environment of a newcomer whose package index is quick: the model need not be fetched again."""
    fetched = real_model("smollm2")
    target = tmp_path / "home" / "models" / "smollm2.gguf"
    target.parent.mkdir(parents=True)
    shutil.copy(fetched, target)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("llm", "-m kukri "), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        program.chmod(0o755)
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LLM_", "KUKRI_", "HF_"))
        },
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "KUKRI_HOME": str(target.parents[1]),
        "KUKRI_CONFIG": str(tmp_path / "config.toml"),
        "HF_HOME": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the page is for a POSIX shell")
def test_the_first_hour(home: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    told = commands((DOCS / "tutorial.md").read_text("utf-8"))
    assert len(told) > 25
    for command, shown in told:
        done = subprocess.run(  # noqa: S602 - a page of this repository
            command,
            shell=True,
            cwd=folder,
            env=home,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"{command}\n{output}"
        assert "Traceback" not in output
        for line in shown:
            assert squeezed(line).strip() in squeezed(output), f"{command}\n{output}"


@pytest.mark.slow
def test_the_notebook(home: dict[str, str], tmp_path: Path) -> None:
    cells: list[dict[str, Any]] = json.loads((DOCS / "tutorial.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 8
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    script = "\n\n".join(code)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=home,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no-such-model" in done.stdout
    assert "did you mean temperature" in done.stdout
