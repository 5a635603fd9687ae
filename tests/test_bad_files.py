"""Files that once did harm, or could: each gives the error written down for it, in little time and memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kukri.tests.fuzz.reading import READERS
from kukri.tests.fuzz.seeds import Seed
from kukri.tests.fuzz.targets import DOCUMENTED, TARGETS
from kukri.tokenizer.chat import budget

from .usual_machine import within

BAD = Path(__file__).parent / "data" / "bad"
ERRORS: dict[str, dict[str, str]] = json.loads((BAD / "errors.json").read_text(encoding="utf-8"))
MEGABYTES = 500
SECONDS = 2.0
MAX_SECONDS = budget.MAX_SECONDS


def test_every_bad_file_has_its_error_written_down() -> None:
    kinds = [path for path in BAD.iterdir() if path.is_dir()]
    assert {path.name for path in kinds} == set(READERS)
    assert {f"{kind.name}/{path.name}" for kind in kinds for path in kind.iterdir()} == set(ERRORS)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "templates")) for kind in READERS]
)
def test_bad_files_give_their_errors(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = []
    for name, expected in ERRORS.items():
        if not name.startswith(kind + "/"):
            continue
        path = BAD / name
        # On a busy machine a template that makes too much must not run out of time first.
        timed = "takes over" in expected["message"]
        monkeypatch.setattr(budget, "MAX_SECONDS", MAX_SECONDS if timed else 4 * MAX_SECONDS)
        if kind != "templates":  # whose time is bounded, and which tracing slows down
            tracemalloc.start()
        start = time.process_time()
        try:
            READERS[kind](path)
            found = ("no error", "")
        except DOCUMENTED as error:
            found = (type(error).__name__, str(error).replace(str(path), "PATH")[:160])
        bound = SECONDS * (2 if kind == "templates" else 1)  # traced, it is slower
        slow = not within(time.process_time() - start, bound)
        large = tracemalloc.get_traced_memory()[1] > MEGABYTES << 20
        tracemalloc.stop()
        if found != (expected["error"], expected["message"]) or slow or large:
            wrong.append((name, found, slow, large))
    assert wrong == []


UNASSERTED = """
import json, sys
from pathlib import Path
from kukri.tests.fuzz.reading import READERS
from kukri.tests.fuzz.targets import DOCUMENTED

assert False, "asserts are on"
errors = {}
for name in sys.argv[2:]:
    try:
        READERS[name.split("/")[0]](Path(sys.argv[1], name))
        errors[name] = "no error"
    except DOCUMENTED as error:
        errors[name] = type(error).__name__
print(json.dumps(errors))
"""


@pytest.mark.slow
def test_errors_do_not_come_from_asserts() -> None:
    """`python -O` leaves asserts out; the lint rule against them (S101) is off because of this."""
    expected = {name: each["error"] for name, each in ERRORS.items() if not name.startswith("templates")}
    command = [sys.executable, "-O", "-c", UNASSERTED, str(BAD), *expected]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


@pytest.fixture(scope="module")
def seeds_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Seed]]:
    """The sound files of a target, made once."""
    known: dict[str, list[Seed]] = {}

    def find(name: str) -> list[Seed]:
        if name not in known:
            known[name] = TARGETS[name].seeds(tmp_path_factory.mktemp("seeds"), few=True)
        return known[name]

    return find


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_changed_files_give_documented_errors(
    name: str, seeds_of: Callable[[str], list[Seed]], tmp_path: Path
) -> None:
    """What scripts/fuzz.py does by the hundred thousand, with changes that hypothesis chooses and shrinks."""
    target, seeds = TARGETS[name], seeds_of(name)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(which=st.integers(0, len(seeds) - 1), rng=st.randoms(use_true_random=False))
    def run(which: int, rng: Random) -> None:
        seed = seeds[which]
        folder = tmp_path / "input"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for file, content in seed.files.items():
            (folder / file).write_bytes(content)
        (folder / seed.changed).write_bytes(target.change(rng, seed.raw))
        try:
            target.read(folder)
        except DOCUMENTED as error:
            if "MemoryError" in str(error):
                raise AssertionError("a template took more memory than it may") from error

    run()
