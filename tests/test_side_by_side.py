"""Tests of a group run in one process, whatever number of them pytest-xdist starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("xdist")

CONFTEST = """
import os
import pytest
from kukri.tests import side_by_side

WORKER = "PYTEST_XDIST_WORKER" in os.environ


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    side_by_side.choose_groups(config)


def pytest_configure_node(node):
    side_by_side.tell_worker(node)


def pytest_xdist_make_scheduler(config, log):
    return side_by_side.scheduler_by_groups(config, log)


def pytest_unconfigure(config):
    side_by_side.forget_groups(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    if WORKER:
        side_by_side.put_into_groups(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session):
    if WORKER:
        side_by_side.write_groups(session)
"""
TESTS = """
import os
import time
from pathlib import Path
import pytest


@pytest.mark.parametrize("n", range(6))
def test_quick(n):
    note(__name__)


@pytest.mark.slow
@pytest.mark.parametrize("n", range(3))
@pytest.mark.xdist_group("shared")
def test_slow(n):
    time.sleep(0.05)
    note("shared")


def note(group):
    with open(Path(__file__).parent / "ran.txt", "a") as file:
        file.write(f"{group} {os.environ['PYTEST_XDIST_WORKER']}\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "kept"), [([], True), (["--dist=each"], False)])
def test_groups_stay_in_one_process(tmp_path, flags, kept):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib\nmarkers =\n    slow: slow"
    )
    for name in ("test_one", "test_two", "test_three"):
        (tmp_path / f"{name}.py").write_text(TESTS)
    parent = Path(__file__).resolve().parents[2]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(parent), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *flags]
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    workers = defaultdict(set)
    lines = (tmp_path / "ran.txt").read_text().splitlines()
    for group, worker in map(str.split, lines):
        workers[group].add(worker)
    assert len(workers) == 4
    assert len(lines) == 27 * (1 if kept else 2)
    assert len(set.union(*workers.values())) == 2
    assert all(len(found) == 1 for found in workers.values()) == kept
