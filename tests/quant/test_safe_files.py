"""Files that appear complete: their modes, their leftovers, and names that somebody else has taken."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kukri.quant import safe_files
from kukri.quant.safe_files import NewFile, remove_leftovers

from ..two_users import ALICE, BOB, as_root, run_as, shared

__all__ = ["shared"]
POSIX = pytest.mark.skipif(os.name == "nt", reason="modes, links and signals of POSIX")
LEFTOVER = ".a.txt.0123456789abcdef.partial"


def write(path: Path, content: bytes = b"new", private: bool = False) -> None:
    with NewFile(path, private) as file:
        file.write(content)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(params=[0o022, 0o077, 0o000], ids=oct)
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with NewFile(path) as file:
        file.write(b"ne")
        file.flush()
        assert path.read_text() == "old"
        (other,) = set(os.listdir(tmp_path)) - {"a.txt"}
        assert other.startswith(".a.txt.")
        assert other.endswith(".partial")
        file.write(b"w")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_errors_and_interrupts_leave_what_was_there(tmp_path, problem):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with NewFile(path) as file:
            file.write(b"new")
            raise problem

    with pytest.raises(problem):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_commit_and_discard_in_any_order(tmp_path):
    new = NewFile(tmp_path / "a.txt")
    new.file.write(b"new")
    new.commit()
    new.commit()
    new.discard()
    assert (tmp_path / "a.txt").read_text() == "new"
    other = NewFile(tmp_path / "b.txt")
    other.discard()
    other.commit()
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_sync_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        write(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == []


def test_file_and_folder_are_synced_around_the_rename(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def told_fsync(descriptor: int) -> None:
        done.append("folder" if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir() else "file")
        fsync(descriptor)

    if sys.platform != "linux":
        pytest.skip("what a descriptor is, is asked of /proc")
    monkeypatch.setattr(os, "fsync", told_fsync)
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("rename"), replace(*paths)))
    write(tmp_path / "a.txt")
    assert done == ["file", "rename", "folder"]


@POSIX
def test_new_files_have_the_mode_that_the_umask_leaves(tmp_path, umask):
    write(tmp_path / "a.txt")
    assert mode(tmp_path / "a.txt") == 0o666 & ~umask


@POSIX
def test_private_files_are_private_from_the_first_moment(tmp_path, umask):
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o666)
    with NewFile(path, private=True):
        (unfinished,) = tmp_path.glob(".a.txt.*")
        assert mode(unfinished) == 0o600
    assert mode(path) == 0o600


@POSIX
@pytest.mark.parametrize("old", [0o600, 0o640, 0o664, 0o755])
def test_a_file_that_is_replaced_hands_on_its_mode(tmp_path, umask, old):
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o4000 | old)  # but for the bits that lend the owner's rights
    write(path)
    assert path.stat().st_mode & 0o7777 == old


@POSIX
def test_a_link_is_replaced_and_not_written_through(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "mine").chmod(0o600)
    for name, leads in (("a", "mine"), ("b", "nowhere")):
        (tmp_path / name).symlink_to(leads)
        write(tmp_path / name)
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_text() == "new"
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


@POSIX
def test_what_is_no_file_is_not_replaced(tmp_path):
    """Root would put a file in the place of /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "folder", tmp_path / "link", Path("/dev/null")):
        with pytest.raises(FileExistsError, match="no ordinary file") as problem:
            NewFile(path)
        assert problem.value.filename == str(path)
    assert sorted(os.listdir(tmp_path)) == ["folder", "link", "pipe"]


def test_errors_name_the_file_that_was_asked_for(tmp_path):
    path = tmp_path / "missing" / "a.txt"
    with pytest.raises(FileNotFoundError) as problem:
        NewFile(path)
    assert (problem.value.filename, problem.value.filename2) == (str(path), None)


def test_names_as_long_as_the_file_system_allows(tmp_path):
    for name in ("x" * 255, "ü" * 127):
        try:
            (tmp_path / name).touch()
        except OSError:
            pytest.skip("this one allows less")
        write(tmp_path / name)
        assert (tmp_path / name).read_text() == "new"
    assert len(os.listdir(tmp_path)) == 2


KILLED = """
import os, signal, sys
from pathlib import Path
from kukri.quant.safe_files import NewFile
new = NewFile(Path(sys.argv[1]))
new.file.write(b"half")
new.file.flush()
print("half", flush=True)
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[2:] else sys.stdin.read()
"""


@POSIX
@pytest.mark.slow
def test_what_a_kill_left_goes_and_what_is_being_written_stays(tmp_path):
    path = tmp_path / "a.txt"
    command = [sys.executable, "-c", KILLED, str(path)]
    assert (
        subprocess.run([*command, "killed"], stdout=subprocess.PIPE, check=False).returncode
        == -signal.SIGKILL
    )
    (left,) = os.listdir(tmp_path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"half\n"
        (unfinished,) = os.listdir(tmp_path)
        assert unfinished != left
        write(path)
        assert sorted(os.listdir(tmp_path)) == sorted([unfinished, "a.txt"])
        running.kill()
    remove_leftovers(path)
    assert os.listdir(tmp_path) == ["a.txt"]


@POSIX
def test_only_what_is_certainly_a_leftover_goes(tmp_path):
    others = [
        *(".b.txt.0123456789abcdef.partial", ".a.txt.partial", ".a.txt.0123456789ABCDEF.partial"),
        *(".a.txt.0123456789abcde.partial", ".a.txt.0123456789abcdef.partial.txt", "a.txt.partial"),
        ".aXtxt.0123456789abcdef.partial",
    ]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".a.txt.00000000000000ff.partial").mkdir()
    (tmp_path / ".a.txt.00000000000000fe.partial").symlink_to("a.txt.partial")
    os.mkfifo(tmp_path / ".a.txt.00000000000000fd.partial")
    (tmp_path / LEFTOVER).touch()
    before = set(os.listdir(tmp_path))
    remove_leftovers(tmp_path / "a.txt")
    assert before - set(os.listdir(tmp_path)) == {LEFTOVER}


@POSIX
def test_a_file_that_is_taken_for_a_leftover_before_it_is_locked(tmp_path, monkeypatch):
    """Another process that removes leftovers may come between a file's first two moments."""
    lock, taken = safe_files._lock, []

    def late(descriptor: int) -> None:
        if not taken:
            (name,) = os.listdir(tmp_path)
            taken.append(name)
            (tmp_path / name).unlink()
        lock(descriptor)

    monkeypatch.setattr(safe_files, "_lock", late)
    write(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == ["a.txt"]
    assert taken


def test_without_locks_files_are_written_and_leftovers_stay(tmp_path, monkeypatch):
    def none(descriptor: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(safe_files, "_lock", none)
    (tmp_path / LEFTOVER).touch()
    write(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "new"
    if os.name != "nt":
        assert (tmp_path / LEFTOVER).exists()


# ---- two users


@as_root
def test_links_of_another_user_are_not_followed(shared, tmp_path):
    """Whoever could guess the unfinished file's name would have a link there. Root, whom the kernel's own
    protection does not stop, would follow it."""
    victim, path = tmp_path / "victim", shared / "a.txt"
    victim.write_text("mine")
    names = [f".a.txt.{i:016x}.partial" for i in range(3)]
    for name in names:
        (shared / name).symlink_to(victim)
        os.lchown(shared / name, BOB, BOB)
    tokens = iter([name.split(".")[-2] for name in names])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safe_files.secrets, "token_hex", lambda n: next(tokens))
        for _ in names:
            with pytest.raises(FileExistsError):
                write(path)
    assert victim.read_text() == "mine"
    path.symlink_to(victim)
    os.lchown(path, BOB, BOB)
    write(path)  # root may replace what is in its way
    assert victim.read_text() == "mine"
    assert not path.is_symlink()


@as_root
def test_what_another_user_has_put_in_the_way_is_told_at_once(shared):
    (shared / "a.txt").symlink_to(shared / "b.txt")
    os.lchown(shared / "a.txt", BOB, BOB)

    def attempt() -> None:
        with pytest.raises(PermissionError, match="another user") as problem:
            NewFile(shared / "a.txt")
        assert problem.value.filename == str(shared / "a.txt")

    run_as(ALICE, attempt)
    assert os.listdir(shared) == ["a.txt"]


@as_root
def test_the_mode_of_another_users_file_is_not_taken_over(tmp_path):
    """In a folder of Alice's in which Bob, by an oversight, could make a file."""
    tmp_path.chmod(0o755)
    path = tmp_path / "a.txt"
    path.touch()
    path.chmod(0o666)
    os.chown(path, BOB, BOB)
    write(path)
    assert mode(path) & 0o022 == 0


@as_root
def test_leftovers_of_another_user_stay(shared):
    leftover = shared / LEFTOVER
    leftover.touch()
    os.chown(leftover, BOB, BOB)
    write(shared / "a.txt")
    assert leftover.exists()
