"""How tests are marked and dealt out, and what several test processes share.

`pytest -n auto` (pytest-xdist) runs one worker process a processor, and each worker takes the next test that
nobody has taken. The longest tests come first, so that no worker is left alone with one at the end. Tests
with the marker `xdist_group` share a fixture that takes long to set up and stay in one worker.

All workers compile into the same folder of kernels. While one of them compiles the kernels of a model, on all
processors, the others that need kernels of a model wait for it: with the same list they would do it all again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from kukri.quant.jit import precompile
from kukri.quant.jit.kernel import CpuKernel
from kukri.quant.jit.kernel_cache import kernel_cache

IN_A_PROCESS_OF_ITS_OWN = {
    "llm",
    "environment",
}  # fixtures for commands, each of which takes a second to start
REAL_MODEL = "real_model"


def add_markers(items: list[pytest.Item]) -> None:
    """Add the markers that follow from a test's fixtures: `slow`, `network` and `xdist_group`."""
    models_are_here = "KUKRI_TEST_MODELS" in os.environ
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if REAL_MODEL in fixtures and not models_are_here:
            item.add_marker(pytest.mark.network)
        if fixtures & (IN_A_PROCESS_OF_ITS_OWN | {REAL_MODEL}):
            item.add_marker(pytest.mark.slow)


def put_slow_tests_first(items: list[pytest.Item]) -> None:
    """Order tests for several workers: slow ones first, otherwise as they were."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def share_compiling() -> None:
    """Make this worker wait where another one compiles the kernels of a model."""
    assert "kukri.runtime.cpu.lowering.lower" not in sys.modules, "it has the function that is replaced here"
    compile_kernels: Callable[..., int] = precompile.compile_kernels
    lock = Path(tempfile.gettempdir()) / f"kukri-{os.environ['PYTEST_XDIST_TESTRUNUID']}.lock"

    def one_at_a_time(kernels: Sequence[CpuKernel], *arguments: Any, **options: Any) -> int:
        cache = kernel_cache()
        if all(cache.has(kernel.key) for kernel in kernels):
            return compile_kernels(kernels, *arguments, **options)
        with FileLock(lock):
            return compile_kernels(kernels, *arguments, **options)

    precompile.compile_kernels = one_at_a_time
