"""A package index that means harm, and what somebody put beside a model that comes out of packages."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest

from kukri.runtime.hub import wheels
from kukri.runtime.hub.catalogue import WheelFile
from kukri.runtime.hub.errors import StoreError, Unreachable

DATA = bytes(range(256)) * 1000
SOURCE = WheelFile(len(DATA), hashlib.sha256(DATA).hexdigest(), (("x==1", "x/data"), ("y==1", "y/data")))
HALF = len(DATA) // 2


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "m.gguf"


def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have `script` run in place of pip: `dest` is the folder for the wheel, `name` the package asked for."""
    program = tmp_path / "pip.py"
    program.write_text(
        "import sys, time, zipfile, pathlib\n"
        "dest = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        "name = sys.argv[-1].partition('==')[0]\n"
        f"data = bytes(range(256)) * 1000\nhalf = {HALF}\n"
        "part = data[:half] if name == 'x' else data[half:]\n" + script
    )
    monkeypatch.setattr(wheels, "_pip", lambda: [sys.executable, str(program)])


WHEEL = "with zipfile.ZipFile(dest / f'{name}.whl', 'w', zipfile.ZIP_DEFLATED) as wheel:\n    "
TRUE = WHEEL + "wheel.writestr(f'{name}/data', part)\n"
BAD_WHEELS = {  # what pip leaves, by what is said about it
    "data is longer than 256000": WHEEL + "wheel.writestr(f'{name}/data', part + data)\n",
    "x/data is longer than": WHEEL + "wheel.writestr(f'{name}/data', bytes(50_000_000))\n",
    "not a zip file": "(dest / 'x.whl').write_bytes(b'x' * 100)\n",
    "expected 1, got 0": "",
    "expected 1": TRUE + "(dest / 'z.whl').write_bytes(b'')\n",
    "table of contents": WHEEL + "for i in range(40_000): wheel.writestr('a' * 100 + str(i), b'')\n",
    "not the package": TRUE + "path = dest / f'{name}.whl'\nb = bytearray(path.read_bytes())\n"
    "b[50:400] = b'x' * 350\npath.write_bytes(b)\n",
    "encrypted": TRUE + "path = dest / f'{name}.whl'\nb = bytearray(path.read_bytes())\n"
    "b[6] |= 1\nb[b.rindex(b'PK\\x01\\x02') + 8] |= 1\npath.write_bytes(b)\n",
    "not supported": TRUE + "path = dest / f'{name}.whl'\nb = bytearray(path.read_bytes())\n"
    "b[8] = 77\nb[b.rindex(b'PK\\x01\\x02') + 10] = 77\npath.write_bytes(b)\n",
    "File exists": "import os\nos.symlink('/nowhere', dest / 'member')\n" + TRUE,
}


@pytest.mark.parametrize("said", BAD_WHEELS)
def test_a_wheel_that_is_not_what_it_should_be(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    index(tmp_path, monkeypatch, BAD_WHEELS[said])
    with pytest.raises((StoreError, OSError), match=said) as caught:
        wheels.download(SOURCE, target, "m")
    assert "\n" not in str(caught.value)
    assert [path.name for path in target.parent.iterdir()] == ["m.gguf.lock"]


def test_true_wheels(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(tmp_path, monkeypatch, TRUE)
    assert wheels.download(SOURCE, target, "m").read_bytes() == DATA


def test_pip_is_stopped_when_it_writes_too_much(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "PIP_SPARE_BYTES", 1_000_000)
    for written in ("(dest / 'a.whl').open('ab').write(data)", "(dest / str(time.time())).write_bytes(data)"):
        index(tmp_path, monkeypatch, f"while True:\n    {written}\n    time.sleep(0.001)\n")
        start = time.monotonic()
        with pytest.raises(StoreError, match=r"larger than 1\.5 MB"):
            wheels.download(SOURCE, target, "m")
        assert time.monotonic() - start < 20
        assert [path.name for path in target.parent.iterdir()] == ["m.gguf.lock"]


def test_pip_is_stopped_when_it_gets_no_further(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "STALL_SECONDS", 0.5)
    index(tmp_path, monkeypatch, "time.sleep(60)")
    with pytest.raises(Unreachable, match="gets no further with x==1"):
        wheels.download(SOURCE, target, "m")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux bounds a process from outside")
def test_the_memory_of_pip_is_bounded(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "PIP_MEMORY_BYTES", 500_000_000)
    index(tmp_path, monkeypatch, "time.sleep(0.5)\nx = bytes(700_000_000)\n")
    with pytest.raises(Unreachable, match="MemoryError"):
        wheels.download(SOURCE, target, "m")


def test_what_pip_says_is_one_short_line(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(tmp_path, monkeypatch, "print('x' * 10_000_000)\nprint('ERROR: ' + 'y' * 1000)\nsys.exit(1)")
    with pytest.raises(Unreachable, match="x==1: yyy") as caught:
        wheels.download(SOURCE, target, "m")
    assert len(str(caught.value)) < 500


@pytest.mark.skipif(os.name == "nt", reason="needs the right to make links")
@pytest.mark.parametrize("name", ["m.gguf.part1", "m.gguf.part2", "m.gguf.partial", "m.gguf"])
@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "stale"])
def test_files_that_were_there_before(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    index(tmp_path, monkeypatch, TRUE)
    target.parent.mkdir()
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    path = target.with_name(name)
    if kind == "link":
        path.symlink_to(mine)
    elif kind == "dangling":
        path.symlink_to(tmp_path / "not-there")
    elif kind == "hard link":
        os.link(mine, path)
    else:
        path.write_bytes(b"x" * (len(DATA) + 1))
    assert wheels.download(SOURCE, target, "m").read_bytes() == DATA
    assert mine.read_bytes() == b"mine"
    assert not (tmp_path / "not-there").exists()
    assert {path.name for path in target.parent.iterdir()} == {"m.gguf", "m.gguf.lock"}


def test_parts_that_are_false_are_deleted(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(tmp_path, monkeypatch, TRUE)
    target.parent.mkdir()
    part = wheels.part_files(target, SOURCE)[0]
    part.write_bytes(b"x" * HALF)
    with pytest.raises(StoreError, match="SHA-256"):
        wheels.download(SOURCE, target, "m")
    assert wheels.download(SOURCE, target, "m").read_bytes() == DATA


@pytest.mark.skipif(os.name == "nt", reason="needs the right to make links")
def test_removing_deletes_links_and_not_what_they_lead_to(target: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_bytes(b"mine")
    target.parent.mkdir()
    target.symlink_to(mine / "file")
    (target.parent / "m.gguf.part1").symlink_to(mine / "file")
    (target.parent / "m.gguf.partial").symlink_to(mine / "not-there")
    (target.parent / "m.gguf.part1-pip-abc").symlink_to(mine)
    assert wheels.leftovers(target, SOURCE) == []
    wheels.remove(target, SOURCE)
    assert (mine / "file").read_bytes() == b"mine"
    assert not list(target.parent.iterdir())


def test_zipfile_reads_no_large_table_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"x" * 10_000_000)
    with wheels._ShortReads(path, "rb") as file, pytest.raises(zipfile.BadZipFile):
        file.read()
    with wheels._ShortReads(path, "rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.namelist() == ["a"]
