"""Folders and files that only this user can have written: what is trusted, and what is refused."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from kukri.quant.errors import NoHome
from kukri.quant.ownership import foreign_writer, private_folder, read_own_file

from ..two_users import ALICE, BOB, as_root, run_as, shared

__all__ = ["shared"]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="owners and modes of POSIX")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def _strangers(monkeypatch):
    """No group is a user's private one."""

    def missing(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(grp, "getgrgid", missing)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_new_folders_are_private_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        folder = private_folder(tmp_path / "cache" / "kukri", "kernels", "avx2-0")
    finally:
        os.umask(before)
    assert folder == tmp_path / "cache" / "kukri" / "kernels" / "avx2-0"
    for each in (folder, *folder.parents[:3]):
        assert mode(each) == 0o700


@pytest.mark.usefixtures("_strangers")
def test_own_folders_below_the_base_are_closed_and_the_base_is_left(tmp_path):
    base = tmp_path / "kukri"
    (base / "kernels" / "avx2-0").mkdir(parents=True)
    for folder, open_to in ((base, 0o755), (base / "kernels", 0o777), (base / "kernels" / "avx2-0", 0o775)):
        folder.chmod(open_to)
    private_folder(base, "kernels", "avx2-0")
    assert [mode(folder) for folder in (base, base / "kernels")] == [0o755, 0o700]
    assert mode(base / "kernels" / "avx2-0") == 0o700


@pytest.mark.usefixtures("_strangers")
@pytest.mark.parametrize("open_to", [0o777, 0o775, 0o770, 0o757])
@pytest.mark.parametrize("level", ["kukri", "above"])
def test_a_folder_in_which_others_can_put_something_is_refused(tmp_path, open_to, level):
    base = tmp_path / "above" / "kukri"
    base.mkdir(parents=True)
    at = base if level == "kukri" else base.parent
    at.chmod(open_to)
    with pytest.raises(NoHome, match=f"other users can write to {at}$"):
        private_folder(base, "kernels")
    assert list(base.iterdir()) == []  # it is looked at before anything is made
    base.rmdir()
    if level == "above":
        with pytest.raises(NoHome, match="other users can write"):
            private_folder(base, "kernels")
        assert not base.exists()


def test_sticky_folders_are_safe_only_as_parents(tmp_path):
    tmp_path.chmod(0o1777)
    assert foreign_writer(tmp_path) == f"other users can write to {tmp_path}"
    assert foreign_writer(tmp_path, above=True) is None
    assert private_folder(tmp_path / "kukri") == tmp_path / "kukri"
    assert mode(tmp_path / "kukri") == 0o700


def test_a_users_private_group_may_write(tmp_path, monkeypatch):
    """Where each user has a group and the umask is 002, home folders are open to that group."""
    tmp_path.chmod(0o775)
    monkeypatch.setattr(pwd, "getpwuid", lambda user: SimpleNamespace(pw_name="alice", pw_gid=7))
    for name, number, members, safe in (
        ("alice", 7, [], True),
        ("alice", 7, ["alice"], True),
        ("alice", 7, ["alice", "bob"], False),
        ("users", 7, [], False),
        ("alice", 8, [], False),
    ):
        group = SimpleNamespace(gr_name=name, gr_gid=number, gr_mem=members)
        monkeypatch.setattr(grp, "getgrgid", lambda number, group=group: group)
        assert (foreign_writer(tmp_path) is None) == safe
        tmp_path.chmod(0o777)
        assert foreign_writer(tmp_path) is not None
        tmp_path.chmod(0o775)


@pytest.mark.usefixtures("_strangers")
def test_nothing_above_the_users_home_matters(tmp_path, monkeypatch):
    """Its owner could replace much more than kukri's files. In containers those folders belong to anybody."""
    folder = tmp_path / "above" / "home" / ".cache"
    folder.mkdir(parents=True)
    (tmp_path / "above").chmod(0o777)
    assert foreign_writer(folder) is not None
    monkeypatch.setenv("HOME", str(tmp_path / "above" / "home"))
    assert foreign_writer(folder) is None
    (tmp_path / "above" / "home").chmod(0o777)
    assert foreign_writer(folder) == f"other users can write to {tmp_path / 'above' / 'home'}"


@pytest.mark.usefixtures("_strangers")
def test_links_count_by_where_they_lead(tmp_path):
    (tmp_path / "safe").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    base = tmp_path / "kukri"
    base.mkdir()
    (base / "kernels").symlink_to(tmp_path / "open")
    with pytest.raises(NoHome, match=f"other users can write to {tmp_path / 'open'}"):
        private_folder(base, "kernels")
    assert mode(tmp_path / "open") == 0o777  # a link's target is not ours to close
    (base / "kernels").unlink()
    (base / "kernels").symlink_to(tmp_path / "safe")
    assert private_folder(base, "kernels", "a") == tmp_path / "safe" / "a"


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").touch()
    for base, part in ((tmp_path / "file", "x"), (tmp_path, "file")):
        with pytest.raises(OSError, match="exists"):
            private_folder(base, part)


def test_own_files_are_read_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"content")
    for safe in (0o600, 0o644, 0o400, 0o755):
        path.chmod(safe)
        assert read_own_file(path) == b"content"
    for unsafe in (0o620, 0o602, 0o666):
        path.chmod(unsafe)
        with pytest.raises(PermissionError, match="another user"):
            read_own_file(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for other in ("link", "pipe", "missing", "."):
        with pytest.raises(OSError):  # noqa: PT011 (each says something else)
            read_own_file(tmp_path / other)


# ---- two users


@as_root
def test_files_of_root_are_trusted_and_those_of_others_are_not(tmp_path, shared):
    path = shared / "a"
    path.write_bytes(b"content")
    run_as(ALICE, lambda: read_own_file(path))
    os.chown(path, BOB, BOB)

    def attempt() -> None:
        with pytest.raises(PermissionError, match="another user"):
            read_own_file(path)

    run_as(ALICE, attempt)
    attempt()  # root does not trust others either: think of `sudo llm`


@as_root
def test_a_folder_that_another_user_has_made_before_is_refused(shared):
    (shared / "kukri").mkdir(mode=0o755)
    os.chown(shared / "kukri", BOB, BOB)

    def attempt() -> None:
        with pytest.raises(NoHome, match=f"{shared / 'kukri'} belongs to another user"):
            private_folder(shared / "kukri", "kernels")

    run_as(ALICE, attempt)
    attempt()


@as_root
def test_root_in_the_home_of_a_user(shared, monkeypatch):
    """`sudo llm`, where sudo keeps HOME: root makes nothing there, and runs nothing from there."""
    home = shared / "alice"
    home.mkdir()
    os.chown(home, ALICE, ALICE)
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(NoHome, match="belongs to another user"):
        private_folder(home / ".cache" / "kukri", "kernels")
    assert list(home.iterdir()) == []


@as_root
def test_a_folder_of_root_is_trusted(shared):
    (shared / "kukri" / "kernels").mkdir(parents=True)
    (shared / "kukri").chmod(0o755)
    (shared / "kukri" / "kernels").chmod(0o755)
    run_as(ALICE, lambda: private_folder(shared / "kukri", "kernels"))
