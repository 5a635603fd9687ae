"""Many generations in one process leave memory and speed as they were: scripts/long_run.py, made short."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import kukri
from kukri.tests.script_modules import load_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def long_run() -> ModuleType:
    return load_script("long_run.py")


def test_memory_stays_flat(long_run: ModuleType, endless: Path) -> None:
    with kukri.load(endless, context=512, threads=1) as model:
        long_run.rounds(model, 300, 2)
        found = long_run.rounds(model, 300, 8)
    memory = [megabytes for megabytes, _ in found]
    assert memory[-1] - memory[0] < 2, memory
    speeds = sorted(speed for _, speed in found[:4]), sorted(speed for _, speed in found[4:])
    assert speeds[1][-1] > speeds[0][-1] / 3, speeds  # the machine may be busy, but not that much
