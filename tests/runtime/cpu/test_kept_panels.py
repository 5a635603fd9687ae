"""Weights on disk in the order of the CPU machine: those that repacking gives, never another model's."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from kukri.quant import mapped_file
from kukri.quant.block import QTensor
from kukri.quant.cache_folder import WEIGHTS
from kukri.quant.formats import FORMATS
from kukri.quant.jit.levels import LANES
from kukri.quant.mapped_file import MappedFile, populate
from kukri.quant.safe_files import NewFile
from kukri.runtime.cpu import kept_panels
from kukri.runtime.cpu.kept_panels import KeptPanels, cut_panels, panel_bytes
from kukri.runtime.cpu.lowering.lower import Lowering
from kukri.runtime.cpu.simd.panels import aligned_empty, repack
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions

from ...tiny_model import write_tiny_model

MOST = 1 << 30
SHAPES = [("Q4_0", 2 * LANES + 3, 64), ("Q6_K", LANES, 256), ("F16", 1, 8), ("Q5_1", LANES - 1, 32)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUKRI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def matrices(seed: int = 0, shapes=SHAPES) -> list[QTensor]:
    """Matrices of any bytes, since panels are the same bytes in another order."""
    rng = np.random.default_rng(seed)
    made = []
    for i, (name, rows, width) in enumerate(shapes):
        kind = FORMATS[name]
        data = rng.integers(0, 256, (rows, kind.row_bytes(width)), dtype=np.uint8)
        made.append(QTensor(f"m{i}", kind, (rows, width), data))
    return made


def repacked(weights: list[QTensor]) -> np.ndarray:
    memory = aligned_empty(panel_bytes(weights))
    memory[:] = 0
    for weight, panels in zip(weights, cut_panels(weights, memory), strict=True):
        repack(weight, LANES, panels)
    return memory


def keep(weights: list[QTensor], kept: KeptPanels) -> np.ndarray:
    memory = repacked(weights)
    kept.write(weights, memory, lambda i, n: None)
    return memory


def kept_by(model: str, most: int = MOST, warn=pytest.fail) -> KeptPanels:
    return KeptPanels(model, most, warn)


def test_they_come_back_as_they_were() -> None:
    weights, kept = matrices(), kept_by("a")
    assert kept.read(weights) is None
    memory = keep(weights, kept)
    found = kept.read(weights)
    assert found is not None
    np.testing.assert_array_equal(found, memory)
    assert not found.flags.writeable
    assert found.ctypes.data % 64 == 0
    (file,) = WEIGHTS.files()
    assert file.n_bytes == len(memory)
    if os.name != "nt":
        assert file.path.stat().st_mode & 0o777 == 0o600
    assert kept_by("b").read(weights) is None
    assert kept.read(weights[:-1]) is None


@pytest.mark.parametrize("of", range(len(SHAPES)))
@pytest.mark.parametrize("row", [0, -1])
def test_files_of_other_weights_are_not_taken(of: int, row: int) -> None:
    """A file under the right name, as of a model that was changed in place: it is written anew."""
    kept = kept_by("a")
    keep(matrices(), kept)
    changed = matrices()
    changed[of].data[row, 0] ^= 1
    assert kept.read(changed) is None
    memory = keep(changed, kept)
    found = kept.read(changed)
    assert found is not None
    np.testing.assert_array_equal(found, memory)
    assert len(WEIGHTS.files()) == 1


def test_the_last_of_many_matrices_is_compared() -> None:
    shapes = [("Q8_0", 2, 32)] * (2 * kept_panels.CHECKED + 1)
    kept = kept_by("a")
    keep(matrices(shapes=shapes), kept)
    assert kept.read(matrices(shapes=shapes)) is not None
    changed = matrices(shapes=shapes)
    changed[-1].data[0, 0] ^= 1
    assert kept.read(changed) is None


@pytest.mark.parametrize("size", [0, 1, -1])
def test_files_of_another_size_are_not_taken(size: int) -> None:
    """Nothing is said, not even of an empty file, which cannot be mapped: it is written anew."""
    weights, kept = matrices(), kept_by("a")
    keep(weights, kept)
    path = WEIGHTS.files()[0].path
    content = path.read_bytes()
    path.write_bytes(content + b"x" if size == 1 else content[:size])
    assert kept.read(weights) is None
    keep(weights, kept)
    assert kept.read(weights) is not None


def test_there_is_a_limit() -> None:
    weights, said = matrices(), list[str]()
    size = panel_bytes(weights)
    keep(weights, kept_by("a", size - 1, said.append))
    assert not WEIGHTS.files()
    assert len(said) == 1
    assert "weight cache" in said[0]
    for i, model in enumerate("abc"):
        kept = kept_by(model, 2 * size)
        keep(weights, kept)
        os.utime(WEIGHTS.files()[0].path, (i, i))
        if model == "b":  # which makes "a" the one that was used last
            assert kept_by("a").read(weights) is not None
    assert [kept_by(model).read(weights) is not None for model in "abc"] == [True, False, True]


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, said = matrices(), list[str]()
    kept = kept_by("a", warn=said.append)
    usage = type(shutil.disk_usage("/"))
    free = panel_bytes(weights) + kept_panels.SPARE_BYTES
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, free - 1))
        keep(weights, kept)
    assert not WEIGHTS.files()
    assert "no room" in said.pop()

    def fail(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(NewFile, "commit", fail)
        keep(weights, kept)
    assert said.pop() == "the weights are not kept: No space left on device"
    assert not WEIGHTS.files()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, free))
    keep(weights, kept)
    assert len(WEIGHTS.files()) == 1
    assert not said


@pytest.mark.skipif(os.name == "nt", reason="on Windows a file does not hide a folder that way")
def test_without_a_folder_nothing_is_kept(home: Path) -> None:
    home.write_text("no folder")
    weights, said = matrices(), list[str]()
    kept = kept_by("a", warn=said.append)
    assert kept.read(weights) is None
    keep(weights, kept)
    assert len(said) == 1
    assert said[0].startswith("the weights are not kept: ")


def test_an_interrupt_leaves_nothing() -> None:
    weights, kept = matrices(), kept_by("a")

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.write(weights, repacked(weights), interrupted)
    assert not list(WEIGHTS.path.iterdir())


def loaded(path: Path, warn=pytest.fail, stages: list[str] | None = None, **options):
    options = {"device": "cpu", "threads": 2, "weight_cache": MOST, **options}
    progress = None if stages is None else lambda stage, done, total: stages.append(stage)
    return load_model(path, LoadOptions(**options), warn=warn, progress=progress)


def test_a_model_starts_from_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    ids = [1, 2, 3, 250, 7]
    with loaded(path, weight_cache=0) as model:
        expected, of_one = model.logits(ids), model.logits(ids[:1])
    assert not WEIGHTS.files()
    stages: list[str] = []
    with loaded(path, stages=stages) as model:
        np.testing.assert_array_equal(model.logits(ids), expected)
    assert "keeping the weights" in stages
    assert len(WEIGHTS.files()) == 1
    with monkeypatch.context() as patched:
        patched.setattr(Lowering, "_repack", None)
        stages.clear()
        with loaded(path, stages=stages) as model:
            np.testing.assert_array_equal(model.logits(ids), expected)
            np.testing.assert_array_equal(model.logits(ids[:1]), of_one)
    assert "keeping the weights" not in stages


def test_a_changed_model_does_not_start_from_them(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    loaded(path).close()
    other = write_tiny_model(tmp_path / "other.gguf", seed=1)
    with loaded(other, weight_cache=0) as model:
        expected = model.logits([1, 2, 3])
    status = path.stat()
    path.write_bytes(other.read_bytes())
    for times in ((status.st_atime_ns, status.st_mtime_ns), (0, 0)):  # also if its date does not show it
        os.utime(path, ns=times)
        with loaded(path) as model:
            np.testing.assert_array_equal(model.logits([1, 2, 3]), expected)


def test_options() -> None:
    with pytest.raises(ValueError, match="weight cache"):
        LoadOptions(weight_cache=-1)


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_populate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """Parts at any address can be asked for, on any system; what is in them stays."""
    if system != "linux":
        monkeypatch.setattr(mapped_file.sys, "platform", system)
        mapped_file._madvise.cache_clear()
    content = np.random.default_rng(0).integers(0, 256, 40_000, dtype=np.uint8)
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    file = MappedFile(path)
    for part in (slice(0, 0), slice(0, 1), slice(4095, 4097), slice(5, 39_999), slice(0, 40_000)):
        populate(file.bytes[part])
    np.testing.assert_array_equal(file.bytes, content)
    own = content.copy()
    populate(own)
    np.testing.assert_array_equal(own, content)
    assert (mapped_file._madvise() is None) == (not mapped_file.sys.platform.startswith("linux"))
    mapped_file._madvise.cache_clear()
