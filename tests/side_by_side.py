"""How tests are marked and dealt out, and what several test processes share.

`pytest -n auto` (pytest-xdist) runs one worker process a processor. Each worker takes the next slow test that
no other worker has taken; when there is none left, it takes the next file with all its other tests, which
share fixtures and kernels. The slow ones come first, so that no worker is left alone with one at the end.
Slow tests with a marker `xdist_group` stay in one worker, because they share a fixture that takes long.

All workers compile into the same folder of kernels. While one of them compiles the kernels of a model, on all
processors, others that need kernels of a model wait for it: with the same list they would do it all again.
"""

from __future__ import annotations

import os
import re
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


def choose_groups(config: pytest.Config) -> None:
    """Set the options of pytest-xdist, if it is there and nothing else was asked for by `--dist`."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "loadgroup"
        config.option.loadscopereorder = False


def put_into_groups(items: list[pytest.Item]) -> None:
    """Order tests for several workers, slow ones first, and make the others of a file a group."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        if item.get_closest_marker("slow") is None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def without_group(node_id: str) -> str:
    """A test's name as pytest knows it, without the "@group" that pytest-xdist appends."""
    return re.sub(r"@[^@\]]*$", "", node_id)


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
