"""Files written tensor by tensor: read back the same, also by the `gguf` package, and whole or absent."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple

import gguf
import numpy as np
import pytest

from kukri.quant.formats import FORMATS
from kukri.quant.gguf.reader import GGUFFile
from kukri.quant.gguf.writer import NoRoom, TensorRecord, write_gguf

METADATA = {
    "general.architecture": "llama",
    "general.name": "näme",
    "a.count": 7,
    "a.small": 200,
    "a.negative": -3,
    "a.large": 1 << 40,
    "a.number": 0.5,
    "a.double": 1e300,
    "a.flag": True,
    "a.integers": np.array([1, -2, 3], np.int32),
    "a.bytes": np.array([1, 2], np.uint8),
    "a.flags": np.array([True, False]),
    "a.numbers": np.array([0.5, -np.inf], np.float32),
    "a.words": ["x", "", "ü"],
    "a.many": [f"word {i}" for i in range(1000)],
}
TYPES = {"a.small": 0, "a.negative": 5, "a.large": 10, "a.double": 12}


def records():
    return [
        TensorRecord("v", (5,), FORMATS["F32"]),
        TensorRecord("m", (3, 64), FORMATS["Q8_0"]),
        TensorRecord("s", (2, 3, 32), FORMATS["Q4_0"]),
    ]


def bytes_of(record, seed=0):
    return np.random.default_rng(seed).integers(0, 256, record.n_bytes, dtype=np.uint8)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "a.gguf"
    data = [bytes_of(record, i) for i, record in enumerate(records())]
    size = write_gguf(path, METADATA, TYPES, records(), ([d[:7], d[7:]] for d in data))
    assert size == path.stat().st_size
    file = GGUFFile.open(path)
    assert list(file.tensors) == ["v", "m", "s"]
    for record, values in zip(records(), data, strict=True):
        tensor = file.tensors[record.name]
        assert (tensor.shape, tensor.format) == (record.shape, record.format)
        np.testing.assert_array_equal(tensor.data.reshape(-1), values)
    assert list(file.metadata) == list(METADATA)
    for key, value in METADATA.items():
        np.testing.assert_array_equal(file.metadata[key], value)
    assert {key: file.types[key] for key in TYPES} == TYPES
    assert [file.types[f"a.{key}"] for key in ("count", "number", "flag", "words")] == [4, 6, 7, 9]
    assert file.metadata["a.bytes"].dtype == np.uint8
    reader = gguf.GGUFReader(path)
    assert [tensor.name for tensor in reader.tensors] == ["v", "m", "s"]
    assert reader.fields["a.large"].contents() == 1 << 40
    assert os.listdir(tmp_path) == ["a.gguf"]


def test_copies_of_a_files_metadata_are_the_same(tmp_path):
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_gguf(first, METADATA, TYPES, records(), ([bytes_of(record)] for record in records()))
    file = GGUFFile.open(first)
    write_gguf(second, file.metadata, file.types, records(), ([bytes_of(record)] for record in records()))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
def test_an_interruption_leaves_what_was_there(tmp_path, problem):
    path = tmp_path / "a.gguf"
    path.write_text("old")

    def data():
        yield [bytes_of(records()[0])]
        assert len(os.listdir(tmp_path)) == 2
        raise problem

    with pytest.raises(problem):
        write_gguf(path, METADATA, TYPES, records(), data())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.gguf"]


def test_data_of_the_wrong_size(tmp_path):
    with pytest.raises(ValueError, match="tensor v got 19 bytes instead of 20"):
        write_gguf(tmp_path / "a.gguf", METADATA, TYPES, records()[:1], [[np.zeros(19, np.uint8)]])
    assert os.listdir(tmp_path) == []


def test_what_a_kill_left_is_replaced(tmp_path):
    path = tmp_path / "a.gguf"
    (tmp_path / ".a.gguf.0123456789abcdef.partial").write_text("half a file")
    write_gguf(path, METADATA, TYPES, records(), ([bytes_of(record)] for record in records()))
    assert os.listdir(tmp_path) == ["a.gguf"]


def test_a_full_disk_is_found_out_first(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(NoRoom, match=r"a\.gguf needs 0\.02 GB, but only 0\.00 GB are free"):
        write_gguf(tmp_path / "a.gguf", METADATA, TYPES, records(), [])
    assert os.listdir(tmp_path) == []


def test_what_a_kill_left_counts_as_room(tmp_path, monkeypatch):
    """It is gone before free space is looked at."""
    path, leftover = tmp_path / "a.gguf", tmp_path / ".a.gguf.0123456789abcdef.partial"
    leftover.write_text("half a file")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 0 if leftover.exists() else 1 << 30))
    write_gguf(path, METADATA, TYPES, records(), ([bytes_of(record)] for record in records()))
    assert os.listdir(tmp_path) == ["a.gguf"]


SLOW = """
import sys, time
from pathlib import Path
import numpy as np
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.writer import TensorRecord, write_gguf

def data():
    yield [np.zeros(20, np.uint8)]
    print("half", flush=True)
    time.sleep(60)

records = [TensorRecord(name, (5,), FORMATS["F32"]) for name in "ab"]
write_gguf(Path(sys.argv[1]), {"general.architecture": "llama"}, {}, records, data())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize(("number", "left"), [(signal.SIGTERM, 0), (signal.SIGKILL, 1)])
def test_a_signal_leaves_no_half_file_under_the_name(tmp_path, number, left):
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path / "a.gguf")], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"half\n"
    process.send_signal(number)
    process.wait(timeout=20)
    process.stdout.close()
    deadline = time.monotonic() + 30
    while len(os.listdir(tmp_path)) != left and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(os.listdir(tmp_path)) == left
    assert not (tmp_path / "a.gguf").exists()
    write_gguf(tmp_path / "a.gguf", METADATA, TYPES, records(), ([bytes_of(record)] for record in records()))
    assert os.listdir(tmp_path) == ["a.gguf"]
