"""How tests are marked and dealt out, and what several test processes share.

`pytest -n auto` (pytest-xdist) runs one worker process a processor. Each worker takes the next slow test that
no other worker has taken; when there is none left, it takes the next file with all its other tests, which
share fixtures and kernels. The slow ones come first, so that no worker is left alone with one at the end.
Slow tests with a marker `xdist_group` stay in one worker, because they share a fixture that takes long.

All workers compile into the same folder of kernels. While one of them compiles the kernels of a model, on all
processors, others that need kernels of a model wait for it: with the same list they would do it all again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
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
FILE = pytest.StashKey[Path]()  # with the group of each test that has one, JSON
WORKERS_FILE = "kukri_groups"  # the same file, in a worker's input


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
    """In the process that starts the workers: let tests go by groups, unless `--dist` asks for something
    else.

    pytest-xdist has that as well (`--dist=loadgroup`), but up to 3.8 it writes the groups into the tests'
    names, which pytest 9.2 no longer lets it do. So the workers write them into a file.
    """
    if getattr(config.option, "dist", "no") == "load":
        config.stash[FILE] = Path(tempfile.mkdtemp(prefix="kukri-tests-")) / "groups.json"
        config.option.loadscopereorder = False


def tell_worker(node: Any) -> None:
    """Tell a worker that is about to start where to write the groups."""
    if FILE in node.config.stash:
        node.workerinput[WORKERS_FILE] = str(node.config.stash[FILE])


def write_groups(session: pytest.Session) -> None:
    """In a worker: write the group of each test, before it says which tests there are. All write the same."""
    # A test may start pytest, which inherits this worker's environment and is none itself.
    path = getattr(session.config, "workerinput", {}).get(WORKERS_FILE)
    if path is None:
        return
    groups = {}
    for item in session.items:
        if (marker := item.get_closest_marker("xdist_group")) is not None:
            groups[item.nodeid] = str(marker.args[0])
    own = Path(f"{path}.{os.getpid()}")
    own.write_text(json.dumps(groups))
    own.replace(path)


def scheduler_by_groups(config: pytest.Config, log: Any) -> Any:
    """What deals tests out by groups, in the order in which the workers have them; None without groups."""
    if FILE not in config.stash:
        return None
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByGroups(LoadScopeScheduling):
        @cached_property
        def groups(self) -> dict[str, str]:
            return json.loads(config.stash[FILE].read_text())

        def _split_scope(self, nodeid: str) -> str:
            return self.groups.get(nodeid, nodeid)

    return ByGroups(config, log)


def forget_groups(config: pytest.Config) -> None:
    """Remove the file of groups."""
    if FILE in config.stash:
        shutil.rmtree(config.stash[FILE].parent, ignore_errors=True)


def put_into_groups(items: list[pytest.Item]) -> None:
    """Order tests for several workers, slow ones first, and make the others of a file a group."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        if item.get_closest_marker("slow") is None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


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
