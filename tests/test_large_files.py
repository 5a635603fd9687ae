"""What the most expensive files of each kind cost: at most two seconds of processor time of a usual
machine and 500 MB.

Each is opened in a process of its own, a fork of one that has opened sound files before.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kukri.runtime.model.source import load_tokenizer, open_source

from .fuzz import large_folders, large_gguf, large_models, large_tokenizers
from .fuzz.large import Case, Cases
from .fuzz.targets import DOCUMENTED, try_tokenizer
from .tiny_model import write_tiny_model
from .usual_machine import within

SECONDS = 2.0
MEGABYTES = 500
SOUND_FOLDER = (
    "no architecture"  # what is said of a folder whose tensors were read, but not its empty config.json
)
TOKENIZERS: Cases = large_gguf.CASES | large_tokenizers.CASES | large_models.CASES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc"),
]


def open_tokenizer(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    try_tokenizer(tokenizer)
    assert tokenizer.guard is not None  # made for the first chat


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what reading needs."""
    folder = tmp_path_factory.mktemp("warm")
    open_source(write_tiny_model(folder / "tiny.gguf"))
    open_tokenizer(folder / "tiny.gguf")
    for name in ("tokenizer-pattern-branches", "model-of-two-pieces"):
        (folder / name).mkdir()
        open_tokenizer(TOKENIZERS[name](folder / name))
    with pytest.raises(DOCUMENTED):
        open_source(large_folders.CASES["safetensors-of-many-dimensions"](folder))


def cost(read: Callable[[Path], Any], path: Path) -> tuple[str, float, float]:
    """What came of reading a file in a fork of this process, its processor time in seconds, and how much the
    most memory that it had exceeds what it began with, in MB."""
    answer, answers = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(answers, json.dumps(_cost_here(read, path)).encode())
        finally:
            os._exit(0)
    os.close(answers)
    with os.fdopen(answer, "rb") as pipe:
        written = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert written, f"ended with {os.waitstatus_to_exitcode(status)}"
    outcome, seconds, megabytes = json.loads(written)
    return outcome, seconds, megabytes


def _cost_here(read: Callable[[Path], Any], path: Path) -> tuple[str, float, float]:
    # What is free within the heap, of tests before, goes back: what is allocated there would cost nothing.
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    before, start = _status("VmRSS"), time.process_time()
    try:
        read(path)
        outcome = ""
    except DOCUMENTED as error:
        outcome = f"{type(error).__name__}: {error}"[:200]
        outcome = SOUND_FOLDER if "architecture '' is not supported" in outcome else outcome
    except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
        outcome = "FINDING: " + traceback.format_exc()[-2000:]
    return outcome, time.process_time() - start, (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    """A number in kB of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))


def check(name: str, case: Case, read: Callable[[Path], Any], folder: Path) -> None:
    path = case(folder)
    outcome, seconds, megabytes = cost(read, path)
    print(f"{seconds:.2f} s, {megabytes:.0f} MB, {outcome or 'read'}")
    assert not outcome.startswith("FINDING"), outcome
    if "-sound-" in name:  # as large as real ones, or larger
        assert outcome in ("", SOUND_FOLDER)
    assert within(seconds, SECONDS), (seconds, outcome)
    assert megabytes < MEGABYTES, (megabytes, outcome)


def test_what_is_measured(warm: None, tmp_path: Path) -> None:
    def spend(path: Path) -> None:
        held = bytearray(200 << 20)
        until = time.process_time() + 0.3
        while time.process_time() < until:
            held[0] ^= 1

    def fail(path: Path) -> None:
        raise ZeroDivisionError

    heap = [bytearray(100 << 10) for _ in range(3_000)]
    heap = heap[-1:]  # 300 MB are free below it
    measured = []
    for _ in range(3):  # what the system takes back from this process meanwhile is measured along
        outcome, seconds, megabytes = cost(spend, tmp_path)
        measured.append(megabytes)
        assert outcome == ""
        assert 0.3 <= seconds < 2
        if 150 < megabytes < 400:
            break
    else:
        pytest.fail(f"200 MB were measured as {measured}")
    assert cost(fail, tmp_path)[0].startswith("FINDING")
    del heap


@pytest.mark.parametrize("name", large_folders.CASES)
def test_folders(name: str, warm: None, tmp_path: Path) -> None:
    check(name, large_folders.CASES[name], open_source, tmp_path)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(name: str, warm: None, tmp_path: Path) -> None:
    read = open_source if name == "gguf-many-tensors" else open_tokenizer
    check(name, TOKENIZERS[name], read, tmp_path)
