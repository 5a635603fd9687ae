"""The fifteen traps of local model runners, each tested on the command as people run it."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ...running import Run, failed

SECONDS = 10.0  # for a refusal, on a busy machine
MEGABYTES = 500  # beyond what `llm --help` takes

Refused = Callable[..., str]


@pytest.fixture
def refused(llm: Run) -> Refused:
    """refused(code, *arguments) → the one line of a command that failed in bounded time and memory."""

    def run(code: int, *arguments: Any, **more: Any) -> str:
        def limit() -> None:
            size = (3000 + MEGABYTES) << 20  # of addresses: libraries take 2 GB of them, mostly untouched
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        start = time.monotonic()
        done = llm(*arguments, preexec_fn=limit, **more)
        taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        assert min(taken, time.monotonic() - start) < SECONDS
        line = failed(done, code)
        assert len(line) < 800
        return line

    return run


@pytest.fixture
def model_file(tmp_path: Path) -> Callable[[bytes], Path]:
    """model_file(bytes) → a file of them."""

    def write(raw: bytes, name: str = "model.gguf") -> Path:
        (tmp_path / name).write_bytes(raw)
        return tmp_path / name

    return write


def told(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    """What `-o json` printed."""
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
