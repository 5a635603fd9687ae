"""Programs found through PATH, and what lies in the current folder under their names."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from kukri.cli.main import main
from kukri.quant.child_process import child_environment
from kukri.quant.programs import find_program, leave_out_current_folder
from kukri.runtime.hub import wheels

POSIX = pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")


def program(folder: Path, name: str = "pip3") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["", "/usr/bin", ".", "bin", "/bin", "../x", "~/bin"], ["/usr/bin", "/bin"]),
        (["/usr/bin"], ["/usr/bin"]),
        (["."], None),
        ([""], None),
        (None, None),
    ],
)
def test_relative_entries_of_path_go(before, after):
    environment = {"OTHER": "x"} | ({} if before is None else {"PATH": os.pathsep.join(before)})
    leave_out_current_folder(environment)
    assert environment.get("PATH") == (None if after is None else os.pathsep.join(after))
    assert environment["OTHER"] == "x"
    assert ("NoDefaultCurrentDirectoryInExePath" in environment) == (os.name == "nt")


@POSIX
def test_a_program_in_the_current_folder_is_not_found(tmp_path, monkeypatch):
    program(tmp_path / "here")
    real = program(tmp_path / "bin")
    monkeypatch.chdir(tmp_path / "here")
    for entries in (["", str(real.parent)], [".", str(real.parent)], ["../here", str(real.parent)]):
        monkeypatch.setenv("PATH", os.pathsep.join(entries))
        assert find_program("pip3") == str(real)
    for path in (".", "", "../here"):
        monkeypatch.setenv("PATH", path)
        assert find_program("pip3") in (None, shutil.which("pip3", path=os.defpath))


@POSIX
def test_pip_is_not_taken_from_the_current_folder(tmp_path, monkeypatch):
    program(tmp_path / "here")
    real = program(tmp_path / "bin")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "frozen", True, raising=False)  # no `python -m pip`
    monkeypatch.setenv("PATH", os.pathsep.join([".", str(real.parent)]))
    assert wheels._pip() == [str(real)]


@POSIX
def test_commands_and_child_processes_look_only_where_path_says(monkeypatch, capfd):
    monkeypatch.setenv("PATH", os.pathsep.join([".", "/usr/bin", ""]))
    assert child_environment()["PATH"] == "/usr/bin"
    assert main(["--version"]) == 0
    assert os.environ["PATH"] == "/usr/bin"
