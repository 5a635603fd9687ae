"""Commands in a folder where somebody has put Python files, programs and settings: nothing is executed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from kukri.quant.package import PACKAGE_FOLDER

from ..running import OUT_OF_REACH

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="programs are shell scripts")]

# Every module that any process could import.
MODULES = sorted(
    {name for name in {*sys.stdlib_module_names, *packages_distributions()} if name.isidentifier()}
    | {"kukri", "quant", "runtime", "cli", "tokenizer", "sitecustomize", "usercustomize"}
)
PROGRAMS = ("pip", "pip3", "python3", "uname", "ldconfig", "gcc", "cc", "ld", "objdump", "latex", "fc-list")
# Leaves a mark with the number of the process, and becomes the module that it stands in for.
MODULE = """
import sys
system = sys.modules["os"]
open(f"{marks}/{{__name__}}-{{system.getpid()}}", "w").close()
before, here = sys.path[:], system.path.dirname(system.path.abspath(__file__))
sys.path[:] = [entry for entry in before if system.path.realpath(entry or ".") != here]
del sys.modules[__name__]
try:
    __import__(__name__)
finally:
    sys.path[:] = before
"""
PROGRAM = '#!/bin/sh\n: > "{marks}/program-{name}-$$"\nexit 1\n'
SETTINGS = 'backend: module://planted_backend\ntext.usetex: True\naxes.prop_cycle: cycler("color", ["k"])\n'


class Planted:
    """A folder of such files, and the marks that those leave which are executed."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self._marks = tmp_path / "planted", tmp_path / "marks"
        self.folder.mkdir()
        self._marks.mkdir()
        for name in [*MODULES, "planted_backend"]:
            (self.folder / f"{name}.py").write_text(MODULE.format(marks=self._marks))
        for name in PROGRAMS:
            (self.folder / name).write_text(PROGRAM.format(marks=self._marks, name=name))
            (self.folder / name).chmod(0o755)
        (self.folder / "matplotlibrc").write_text(SETTINGS)

    @property
    def marks(self) -> list[str]:
        return sorted(path.name for path in self._marks.iterdir())


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path)


@pytest.fixture
def cold(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An environment without compiled kernels, in which the current folder is on PATH."""
    path = os.pathsep.join(["", ".", environment.get("PATH", os.defpath)])
    home = tmp_path / "cold"
    package = {"PYTHONPATH": str(PACKAGE_FOLDER.parent), "PIP_INDEX_URL": OUT_OF_REACH, "PIP_RETRIES": "0"}
    return (
        environment | package | {"PATH": path, "KUKRI_HOME": str(home), "MPLCONFIGDIR": str(tmp_path / "mpl")}
    )


def start(arguments: list[object], planted: Planted, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=planted.folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def command(planted: Planted, cold: dict[str, str]) -> Callable[..., bytes]:
    """command(code, *arguments, input=b"") → what it wrote, as the installed `llm` runs: without the current
    folder on sys.path. It must end with that code, and nothing planted may have been executed."""

    def run(code: int, *arguments: object, input: bytes = b"") -> bytes:
        process = start(["-P", "-m", "kukri", *arguments], planted, cold)
        written, told = process.communicate(input, timeout=180)
        assert process.returncode == code, told.decode()
        assert planted.marks == []
        return written

    return run


def test_what_is_planted_would_be_executed(planted: Planted, cold: dict[str, str]) -> None:
    code = "import json, subprocess; subprocess.run(['uname']); print(json.dumps(1))"
    process = start(["-c", code], planted, cold)
    assert process.communicate(timeout=60)[0] == b"1\n"
    assert {mark.rpartition("-")[0] for mark in planted.marks} >= {"json", "subprocess", "program-uname"}


def test_no_command_executes_what_lies_in_the_current_folder(
    command: Callable[..., bytes], tiny: Path, planted: Planted, cold: dict[str, str], tmp_path: Path
) -> None:
    """The first one compiles all kernels."""
    home = Path(cold["KUKRI_HOME"])
    command(0, "run", "-m", tiny, "-t", 0, "-n", 2, "hello")
    assert len(list(home.rglob("*.kernel"))) > 8
    command(0, "chat", "-m", tiny, "-t", 0, "-n", 2, input=b"hello")
    command(3, "pull", "org/model-GGUF")
    command(3, "pull", "smollm2")  # tries pip, too
    command(0, "list")
    command(0, "show", tiny)
    command(3, "rm", "org/model-GGUF")
    command(0, "doctor")
    command(0, "quantize", tiny, tmp_path / "b.gguf", "--type", "q8_0")
    command(0, "bench", "-m", tiny, "-p", 4, "-n", 2, "-r", 1)
    (tmp_path / "text.txt").write_text("some words " * 200)
    flags = ["--file", tmp_path / "text.txt", "-c", 32, "--limit", 64]
    command(0, "eval", "-m", tiny, *flags, "--save-logits", tmp_path / "saved")
    if importlib.util.find_spec("matplotlib"):
        command(0, "eval", "-m", tiny, *flags, "--plot", tmp_path / "plot.svg")
        assert (tmp_path / "plot.svg").stat().st_size > 1000
    command(0, "tokenize", "-m", tiny, input=b"some words " * 4000)
    deadline = time.monotonic() + 120  # in the background, the tokenizer's kernel is compiled
    while not list(home.rglob("tokenizer-*.kernel")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert list(home.rglob("tokenizer-*.kernel"))
    assert planted.marks == []


@pytest.mark.parametrize("library", [False, True], ids=["command", "library"])
def test_children_execute_nothing_where_the_program_itself_does(
    planted: Planted, cold: dict[str, str], tiny: Path, library: bool
) -> None:
    """`python -m kukri` and `python -c` have the current folder on their path; their children do not."""
    code = f"import kukri; kukri.load({str(tiny)!r}).close()"
    command = ["-c", code] if library else ["-m", "kukri", "run", "-m", tiny, "-t", 0, "-n", 2, "hello"]
    if not library:  # else that file is the program
        (planted.folder / "kukri.py").unlink()
    process = start(command, planted, cold)
    _, told = process.communicate(timeout=180)
    assert process.returncode == 0, told.decode()
    assert len(list(Path(cold["KUKRI_HOME"]).rglob("*.kernel"))) > 8
    assert {mark.rpartition("-")[2] for mark in planted.marks} == {str(process.pid)}
    assert not [mark for mark in planted.marks if mark.startswith("program-")]
