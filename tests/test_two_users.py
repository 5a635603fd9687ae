"""Two users on one machine: what Bob plants is not run for Alice or root, and he cannot read what she writes.

Only root can act as both. It is this package that protects: root follows any link, and the kernel's own
protection of links in folders like /tmp (fs.protected_symlinks) may be off.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kukri.cli.chat import line_editor
from kukri.cli.chat.conversation import Conversation, save
from kukri.cli.eval.plot import plot
from kukri.cli.eval.report import Report
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.writer import TensorRecord, write_gguf
from kukri.quant.jit import kernel_cache
from kukri.quant.jit.decorators import kernel as entry_point
from kukri.quant.jit.file_cache import FileCache
from kukri.quant.jit.kernel import CpuKernel
from kukri.quant.jit.kernel_cache import KernelCache
from kukri.quant.jit.simd.memory import store_f32
from kukri.runtime.cpu.row_scores import LogSums
from kukri.runtime.cuda.compile import kernel as cuda_kernel
from kukri.runtime.cuda.compile.kernel import CudaKernel, Kernels
from kukri.runtime.evaluation.saved_logits import LogitsWriter
from kukri.runtime.model.tokenizer_kernel import TokenizerKernel, kernel_key

from .two_users import ALICE, BOB, alices, as_root, run_as, shared

__all__ = ["alices", "shared"]
pytestmark = as_root

CPU = CpuKernel(f"{__name__}.nothing", "planted")
CUDA = CudaKernel("common.pointwise", "add", 256, (("PDL", 0),))
PLANTED = b"planted machine code of a card"
MARK = 7.0


def planted_code() -> tuple[bytes, list[str]]:
    """Machine code that writes MARK where its first argument says."""
    mark = np.float32(MARK)

    @entry_point
    def planted(arguments, step, thread):  # type: ignore[no-untyped-def]
        store_f32(arguments, mark)

    return planted.machine_code()


class Card:
    """Stands in for a card: it remembers what it is given to run."""

    capability = (9, 0)

    def __init__(self) -> None:
        self.loaded: list[bytes] = []

    def load(self, code: bytes, entry: str, shared_bytes: int) -> int:
        self.loaded.append(code)
        return 1

    def assemble(self, ptx: str) -> bytes:
        return b"compiled here"


def what_is_run() -> dict[str, bool]:
    """For each of the three caches in this user's folder of kernels, whether the planted code is run."""
    cache = KernelCache(kernel_cache.cache_folder())
    found = np.zeros(1, np.float32)
    codes = [CpuKernel(CPU.module, CPU.name).load(cache), TokenizerKernel(lambda: cache)(1)]
    ran = []
    for code in codes:
        found[0] = 0
        if code is not None:
            getattr(code, "ctypes", code)(found.ctypes.data, 0, 0)
        ran.append(bool(found[0] == MARK))
    card = Card()
    Kernels(card).function(CUDA)  # type: ignore[arg-type]
    return {"cpu": ran[0], "tokenizer": ran[1], "cuda": PLANTED in card.loaded}


NOTHING = {"cpu": False, "tokenizer": False, "cuda": False}
EVERYTHING = {"cpu": True, "tokenizer": True, "cuda": True}


def expect(expected: dict[str, bool], inside: Path | None = None) -> None:
    """Whether `what_is_run` is as expected, and the kernels are in that folder (None: anywhere else)."""
    assert what_is_run() == expected
    folder = kernel_cache.cache_folder()
    home = Path(os.environ["KUKRI_HOME"])
    assert folder.is_relative_to(home if inside is None else inside) == (inside is not None)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.fixture
def plant(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """plant(home): Bob's code under the names of kernels in a home; KUKRI_HOME is that home from then on."""
    code, symbols = planted_code()
    monkeypatch.setattr(kernel_cache, "_fingerprint", lambda: "0" * 16)  # sources may be out of Alice's reach
    monkeypatch.setattr(cuda_kernel, "_fingerprint", lambda: "0" * 64)
    monkeypatch.setattr(CudaKernel, "ptx", lambda kernel, capability: "")
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    level, key = kernel_cache._level(), kernel_key()
    kernel_cache.cache_folder.cache_clear()

    def put(home: Path) -> None:
        folder = home / "kernels" / f"{level}-{'0' * 16}"
        folder.mkdir(parents=True, exist_ok=True)
        cache = KernelCache(folder)
        cache._files.store(CPU.key, b"[]\n" + code)
        cache._files.store(key, b"[]\n" + code)
        FileCache(folder, cuda_kernel._SUFFIX).store(Kernels(Card())._key(CUDA), PLANTED)  # type: ignore[arg-type]
        assert len(list(folder.iterdir())) == 3
        for path in folder.iterdir():
            path.chmod(0o644)
        monkeypatch.setenv("KUKRI_HOME", str(home))

    assert symbols == []
    yield put
    kernel_cache.cache_folder.cache_clear()


def give(folder: Path, user: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)


def test_kernels_in_a_folder_that_bob_has_made(shared, plant):
    home = shared / "kukri"
    plant(home)
    give(home, BOB)
    run_as(BOB, lambda: expect(EVERYTHING, home))  # so it is sound, and would run
    for folder in (home, home / "kernels"):
        folder.chmod(0o755)
        next((home / "kernels").iterdir()).chmod(0o755)
    run_as(ALICE, lambda: expect(NOTHING))
    expect(NOTHING)  # for root


def test_kernels_of_bob_in_a_folder_of_alice_that_was_open(shared, plant):
    """An older version made folders by the umask: they are closed, and what Bob left there is not run."""
    home = shared / "kukri"
    plant(home)
    give(home, BOB)
    os.chown(home, ALICE, ALICE)
    for folder in (home / "kernels", next((home / "kernels").iterdir())):
        os.chown(folder, ALICE, ALICE)
        folder.chmod(0o777)
    run_as(ALICE, lambda: expect(NOTHING, home))
    assert stat.S_IMODE((home / "kernels").stat().st_mode) == 0o700


def test_kernels_of_alice_that_bob_could_write(shared, plant):
    home = shared / "kukri"
    plant(home)
    give(home, ALICE)
    run_as(ALICE, lambda: expect(EVERYTHING, home))  # her own are run
    for path in next((home / "kernels").iterdir()).iterdir():
        path.chmod(0o666)
    run_as(ALICE, lambda: expect(NOTHING, home))


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_folder_above_that_bob_could_exchange(shared, plant, mode):
    home = shared / "above" / "kukri"
    plant(home)
    give(shared / "above", ALICE)
    (shared / "above").chmod(mode)
    run_as(ALICE, lambda: expect(NOTHING))
    (shared / "above").chmod(0o1000 | mode)
    run_as(ALICE, lambda: expect(EVERYTHING, home))


def test_kernels_behind_a_link_of_bob(shared, plant, monkeypatch):
    plant(shared / "bob")
    give(shared / "bob", BOB)
    (shared / "kukri").symlink_to(shared / "bob")
    os.lchown(shared / "kukri", BOB, BOB)
    monkeypatch.setenv("KUKRI_HOME", str(shared / "kukri"))
    run_as(ALICE, lambda: expect(NOTHING))
    home = shared / "alice"
    (home / "kernels").mkdir(parents=True)
    give(home, ALICE)
    level = next((shared / "bob" / "kernels").iterdir())
    (home / "kernels" / level.name).symlink_to(level)
    monkeypatch.setenv("KUKRI_HOME", str(home))
    run_as(ALICE, lambda: expect(NOTHING))


def test_links_of_alice_to_kernels_are_not_followed(shared, plant):
    """A kernel's file must be one: what a link leads to could change under way."""
    home = shared / "kukri"
    plant(home)
    folder = next((home / "kernels").iterdir())
    (shared / "elsewhere").mkdir()
    for path in list(folder.iterdir()):
        path.rename(shared / "elsewhere" / path.name)
        path.symlink_to(shared / "elsewhere" / path.name)
    give(home, ALICE)
    give(shared / "elsewhere", ALICE)
    run_as(ALICE, lambda: expect(NOTHING, home))


def test_sudo_with_the_home_of_alice(shared, plant, monkeypatch):
    home = shared / "alice" / ".cache" / "kukri"
    plant(home)
    give(shared / "alice", ALICE)
    monkeypatch.setenv("HOME", str(shared / "alice"))
    run_as(ALICE, lambda: expect(EVERYTHING, home))
    expect(NOTHING)
    assert all(path.stat().st_uid == ALICE for path in (shared / "alice").rglob("*"))


def test_kernels_that_root_has_installed(shared, plant):
    home = shared / "kukri"
    plant(home)
    give(home, ALICE)
    for path in next((home / "kernels").iterdir()).iterdir():
        os.chown(path, 0, 0)
    run_as(ALICE, lambda: expect(EVERYTHING, home))


# ---- links that Bob has planted in a folder that all can write to


def write_logits(path: Path) -> None:
    windows = np.zeros((1, 8), np.int32)
    logits = np.zeros((3, 5), np.float32)
    with LogitsWriter(path, windows, 5, {}) as writer:
        writer.add(logits, LogSums(np.zeros((3, 3))))
        writer.finish(np.zeros((1, 7)))


def write_model(path: Path) -> None:
    record = TensorRecord("t", (4,), FORMATS["F32"])
    write_gguf(path, {"general.architecture": "llama"}, {}, [record], [[np.zeros(16, np.uint8)]])


def write_plot(path: Path) -> None:
    result = {"name": "a", "size": 1e6, "perplexity": 2.0, "perplexity_stderr": 0.1}
    plot(Report("text", "", 8, None, [result]), path)  # type: ignore[list-item]


WRITERS = {
    "chat.json": lambda path: save(Conversation("secret"), "tiny", path),
    "model.gguf": write_model,
    "base.logits": write_logits,
    "plot.svg": write_plot,
}


@pytest.mark.parametrize("name", WRITERS)
def test_links_of_bob_are_not_followed(shared, tmp_path, name):
    """Neither under the file's own name nor under those that unfinished files had in older versions."""
    if name == "plot.svg":
        pytest.importorskip("matplotlib")
    victim, pid = tmp_path / "victim", os.getpid()
    victim.write_text("mine")
    victim.chmod(0o640)
    for planted in (
        name,
        f"{name}.tmp",
        f".{name}.partial",
        f"{name}.{pid}.partial",
        f".{name}.{pid}.partial",
    ):
        (shared / planted).symlink_to(victim)
        os.lchown(shared / planted, BOB, BOB)
    WRITERS[name](shared / name)
    assert victim.read_text() == "mine"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o640
    written = (shared / name).lstat()
    assert stat.S_ISREG(written.st_mode)
    assert (written.st_uid, written.st_mode & 0o022) == (0, 0)
    assert sum(not path.is_symlink() for path in shared.iterdir()) == 1


# ---- private text


def read(path: Path) -> None:
    with pytest.raises(PermissionError):
        path.read_bytes()


def test_bob_cannot_read_what_alice_types(shared, alices, monkeypatch):
    """In a home that was there, open to be read, and with an umask that hides nothing."""
    monkeypatch.setenv("KUKRI_HOME", str(alices))
    alices.chmod(0o755)

    def types() -> None:
        os.umask(0)
        line_editor._history_file().write_text("what she asked")
        save(Conversation("secret"), "tiny", alices / "chat.json")

    run_as(ALICE, types)
    for name in ("chat_history", "chat.json"):
        assert stat.S_IMODE((alices / name).stat().st_mode) == 0o600
        run_as(BOB, lambda name=name: read(alices / name))


def test_a_history_that_was_open_is_closed(shared, alices, monkeypatch):
    monkeypatch.setenv("KUKRI_HOME", str(alices))
    alices.chmod(0o755)
    history = alices / "chat_history"
    history.write_text("what she asked before")
    history.chmod(0o664)
    os.chown(history, ALICE, ALICE)
    run_as(ALICE, line_editor._history_file)
    run_as(BOB, lambda: read(history))
    assert history.read_text() == "what she asked before"


def test_a_new_home_is_closed(shared, monkeypatch):
    monkeypatch.setenv("KUKRI_HOME", str(shared / "new"))
    run_as(ALICE, lambda: (os.umask(0), line_editor._history_file()))
    assert stat.S_IMODE((shared / "new").stat().st_mode) == 0o700


def test_histories_do_not_follow_links_of_bob(shared, tmp_path, monkeypatch):
    """Neither Alice's nor that of root with Alice's home."""
    victim = tmp_path / "victim"
    victim.touch()
    victim.chmod(0o666)
    (shared / "kukri").mkdir(mode=0o755)
    (shared / "kukri" / "chat_history").symlink_to(victim)
    give(shared / "kukri", BOB)
    monkeypatch.setenv("KUKRI_HOME", str(shared / "kukri"))

    def refused() -> None:
        with pytest.raises(OSError, match="belongs to another user"):
            line_editor._history_file()

    run_as(ALICE, refused)
    refused()
    assert stat.S_IMODE(victim.stat().st_mode) == 0o666


def test_a_history_that_is_linked_to_nowhere(alices, monkeypatch):
    """/dev/null stays as it is, also for root."""
    monkeypatch.setenv("KUKRI_HOME", str(alices))
    os.chown(alices, 0, 0)
    (alices / "chat_history").symlink_to(os.devnull)
    before = os.stat(os.devnull).st_mode
    assert line_editor._history_file() == alices / "chat_history"
    assert os.stat(os.devnull).st_mode == before
