"""Fixtures that several parts' tests share: conformance models, real models, and a way to feed a machine."""

from __future__ import annotations

import gc
import os
import signal
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Before NumPy is first imported: BLAS threads that wait for each other in a spin make the reference machine
# ten times slower as soon as anything else runs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["KUKRI_CONFIG"] = os.devnull  # not the settings of whoever runs the tests

import numpy as np
import pytest

from kukri.runtime.engine.cache import Batch, PageTable

from . import random_numbers, side_by_side
from .ray_cluster import ray_cluster
from .running import endless, environment, llm, llm_inside, tiny

__all__ = ["endless", "environment", "llm", "llm_inside", "ray_cluster", "tiny"]

# Commands inherit what is ignored, as by `nohup` or by a shell's `&`, and some tests interrupt them.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

DATA = Path(__file__).parent / "data"
GENERATORS = pytest.StashKey[list[np.random.Generator]]()  # the `RNG` of every test module
WORKER = "PYTEST_XDIST_WORKER" in os.environ  # one of several processes that pytest-xdist has started

# Names in the catalogue, and file names in the folder that KUKRI_TEST_MODELS may point to.
REAL_MODELS = {
    "smollm2": "smollm2-135m-instruct.gguf",
    "gemma3:270m": "gemma3-270m.gguf",
    "qwen2.5-coder:0.5b": "qwen2.5-coder-0.5b-instruct.gguf",
}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Prepare for several processes, before pytest-xdist is configured."""
    side_by_side.choose_groups(config)
    if WORKER:
        side_by_side.share_compiling()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Prepare a process that pytest-xdist is about to start."""
    side_by_side.tell_worker(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which process runs which tests."""
    return side_by_side.scheduler_by_groups(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no files behind."""
    side_by_side.forget_groups(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures, before `-m` chooses by the markers."""
    side_by_side.add_markers(items)
    if WORKER:
        side_by_side.put_into_groups(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare the garbage collector what lives until the end: it takes a sixth of the time of compiling PTX."""
    if WORKER:
        side_by_side.write_groups(session)
    session.config.stash[GENERATORS] = random_numbers.generators()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test the same random numbers whatever ran before it in this process."""
    random_numbers.seed(item.config.stash[GENERATORS], f"{item.path.name}::{item.name}")


@pytest.fixture(scope="session")
def conformance(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a conformance fixture (tests/data/conformance/README.md), unpacked for this session."""
    folder = tmp_path_factory.mktemp("conformance")
    for path in (DATA / "conformance").glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            # Before 3.11.4 there is no filter; the archives are this repository's own.
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(folder, **safe)  # noqa: S202
    return folder.joinpath


@pytest.fixture(scope="session")
def embedding_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a fixture of tests/data/embedding (see generate.py there), unpacked for this session."""
    root = tmp_path_factory.mktemp("embedding")

    def find(name: str) -> Path:
        if not (root / name).exists():
            with tarfile.open(DATA / "embedding" / f"{name}.tar.xz") as archive:
                safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                archive.extractall(root, **safe)  # noqa: S202
        return root / name

    return find


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """The GGUF file of a real model by its catalogue name; fetched like any user's, never skipped.

    Where the environment variable KUKRI_TEST_MODELS names a folder, the files of REAL_MODELS are
    taken from there instead.
    """

    def find(name: str) -> Path:
        if folder := os.environ.get("KUKRI_TEST_MODELS"):
            path = Path(folder) / REAL_MODELS[name]
            assert path.is_file(), f"KUKRI_TEST_MODELS has no {path.name}"
            return path
        from kukri.runtime.hub.resolve import resolve

        return resolve(name)

    return find


@pytest.fixture(scope="session")
def feed() -> Callable[..., np.ndarray]:
    """feed(machine, table, ids, chunks=(512,), sequence=0, known=False) → float32 logits [len(ids), vocab].

    Appends `ids` to a sequence in steps of `chunks` tokens, over and over, and wants every row. `known`:
    each step is told how long the sequence is going to be.
    """

    def run(
        machine: Any,
        table: PageTable,
        ids: Sequence[int],
        chunks: Sequence[int] = (512,),
        sequence: int = 0,
        known: bool = False,
    ) -> np.ndarray:
        whole = int(table.lengths[sequence]) + len(ids)
        logits, fed = [], 0
        while fed < len(ids):
            n = min(chunks[len(logits) % len(chunks)], len(ids) - fed, machine.max_rows, machine.max_logits)
            start = int(table.lengths[sequence])
            table.extend(sequence, n)
            batch = Batch(
                tokens=np.asarray(ids[fed : fed + n], np.int32),
                sequences=np.full(n, sequence, np.int32),
                positions=np.arange(start, start + n, dtype=np.int32),
                logits_indices=np.arange(n, dtype=np.int32),
                lengths=np.full(n, whole, np.int32) if known else None,
            )
            logits.append(machine.step(batch, table).copy())
            fed += n
        return np.concatenate(logits)

    return run
