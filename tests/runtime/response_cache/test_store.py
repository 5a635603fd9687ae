"""The store of answers: several processes, a limit, and files that are none."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kukri.quant.errors import DamagedFile
from kukri.runtime.response_cache import store as store_module
from kukri.runtime.response_cache.store import FILE, Store


def test_values_stay(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    store = Store(folder)
    assert store.get(b"x") is None
    store.put(b"x", b"1")
    store.put(b"x", b"2")
    other = Store(folder)
    assert other.get(b"x") == b"2"
    assert (other.contents().n, other.contents().used is not None) == (1, True)
    assert store.clear()[0] == 1
    assert other.get(b"x") is None
    store.close()
    other.close()
    if os.name != "nt":
        assert (folder.stat().st_mode & 0o77, (folder / FILE).stat().st_mode & 0o77) == (0, 0)


def test_what_was_used_longest_ago_goes(tmp_path: Path) -> None:
    most = 400_000
    store = Store(tmp_path, most)
    value = os.urandom(8000)
    for i in range(200):
        store.put(b"%d" % i, value)
        assert store.get(b"0") == value  # it is used again and again
    there = [i for i in range(200) if store.get(b"%d" % i) is not None]
    assert there[0] == 0
    assert there[1:] == list(range(there[1], 200))  # the newest
    assert 30 < len(there) < 60
    store.put(b"large", os.urandom(most))  # it alone is too much
    assert store.get(b"large") is None
    store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert (tmp_path / FILE).stat().st_size < 2.5 * most
    store.close()


def test_foreign_and_damaged_files(tmp_path: Path) -> None:
    file = tmp_path / FILE
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE notes (text TEXT)")
    database.close()
    before = file.read_bytes()
    with pytest.raises(DamagedFile, match="no cache of answers"):
        Store(tmp_path)
    assert file.read_bytes() == before
    file.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(DamagedFile, match=r"is damaged .*: delete it"):
        Store(tmp_path)
    file.write_text("a text, and no database at all, but a long one\n" * 50)
    with pytest.raises(DamagedFile, match=r"is damaged .*: delete it"):
        Store(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(OSError, match=r"unable to open|Is a directory"):
        Store(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="exists"):
        Store(tmp_path / "file")


def test_damage_in_the_middle(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for i in range(300):
        store.put(b"%d" % i, bytes(2000))
    store.close()
    file = tmp_path / FILE
    raw = bytearray(file.read_bytes())
    raw[8192:] = b"\xa5" * (len(raw) - 8192)
    file.write_bytes(raw)
    store = Store(tmp_path)  # its first page is whole
    with pytest.raises(DamagedFile, match=r"is damaged .*: delete it"):
        _ = [store.get(b"%d" % i) for i in range(300)]
    store.close()


def test_another_process_that_keeps_on_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.01)
    store = Store(tmp_path)
    store.put(b"a", b"1")
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert store.get(b"a") == b"1"
    store.put(b"b", b"2")  # given up
    other.execute("ROLLBACK")
    other.close()
    assert store.get(b"b") is None
    store.put(b"b", b"2")
    assert store.get(b"b") == b"2"
    store.close()


PROGRAM = """
import sys
from pathlib import Path
from kukri.runtime.response_cache.store import Store
store = Store(Path(sys.argv[1]))
for i in range(150):
    store.put(b"%d %s" % (i, sys.argv[2].encode()), sys.argv[2].encode() * 500)
    assert store.get(b"%d %s" % (i, sys.argv[2].encode())) == sys.argv[2].encode() * 500
store.close()
"""


@pytest.mark.slow
def test_several_processes_from_the_first_moment_on(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), name]) for name in ("a", "b", "c")
    ]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    store = Store(tmp_path)
    assert store.contents().n == 450
    store.close()
