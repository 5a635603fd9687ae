"""A second user of the machine, for tests that root runs: functions called with another user's rights."""

from __future__ import annotations

import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ALICE, BOB = 41001, 41002  # user ids, which need no accounts; Bob is the one with bad intentions
SECONDS = 60  # after which a function counts as hanging

as_root = pytest.mark.skipif(
    not hasattr(os, "setresuid") or os.geteuid() != 0, reason="only root can act as other users"
)


def run_as(user: int, function: Callable[[], object]) -> None:
    """Call `function` in a forked process with the rights of a user and nothing of root's.

    What it raises fails the test. Modules that it needs must be imported before: the user may not be able to
    read where they lie.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            signal.alarm(SECONDS)
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            os.umask(0o022)
            function()
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the parent process shows it
            os.write(writing, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, told or f"the process ended with status {status}"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody can write to, with the sticky bit like /tmp."""
    with tempfile.TemporaryDirectory(prefix="shared-") as name:
        os.chmod(name, 0o1777)  # noqa: S103 - as /tmp is
        yield Path(name)


@pytest.fixture
def alices(shared: Path) -> Path:
    """A folder in it that is Alice's alone."""
    folder = shared / "alice"
    folder.mkdir(mode=0o700)
    os.chown(folder, ALICE, ALICE)
    return folder
