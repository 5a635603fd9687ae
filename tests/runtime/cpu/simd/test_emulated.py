"""The levels of arm64 on machines that are not: the kernels' own tests, with kernels that run in an emulator.

See tests/on_arm64.py. Tests of attention, experts and recurrent layers are run there by hand.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kukri.tests.arm64.emulator import can_emulate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine().lower() in ("aarch64", "arm64"), reason="this is an arm64 CPU"),
    pytest.mark.skipif(not can_emulate(), reason="needs qemu-user and gcc-aarch64-linux-gnu"),
]
HERE = Path(__file__).parent.parent


@pytest.mark.parametrize("level", ["neon", "i8mm"])
def test_matrix_products_and_steps_of_few_rows(level, tmp_path):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**inherited, "KUKRI_SIMD": level, "KUKRI_HOME": str(tmp_path)}  # no worker of this pytest
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "kukri.tests.on_arm64"]
    done = subprocess.run(
        [*command, str(HERE / "test_matmul.py"), str(HERE / "test_few_rows.py")],
        env=environment,
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout, done.stdout[-300:]
    assert " skipped" not in done.stdout, done.stdout[-300:]
