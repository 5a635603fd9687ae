"""Kernels on disk: found again, never stale, never half; compiled by several processes."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.errors import NoHome
from kukri.quant.jit import compiler, decorators, kernel_cache, precompile
from kukri.quant.jit.kernel import CpuKernel
from kukri.quant.jit.kernel_cache import CPU_SOURCES, UNUSED_SECONDS, KernelCache
from kukri.quant.jit.sources import SourceSet
from kukri.runtime.cpu import kernels
from kukri.runtime.cpu.kernels import FLOAT_GEMMS, LEAD, RMS_NORM
from kukri.runtime.cpu.simd.panels import GATHER_ROWS

KERNELS = '''
"""Eight kernels of one factory: number i writes i."""
import numpy as np
from kukri.quant.jit.decorators import jit, kernel
from kukri.quant.jit.simd.memory import store_f32

def number(n):
    @jit
    def get():
        return np.float32(n)
    return get

def writer(get):
    @kernel
    def write(arguments, step, thread):
        store_f32(arguments, get())
    return write

WRITERS = {str(i): writer(number(i)) for i in range(8)}
'''
RUN = """
import sys
import numpy as np
from kukri.quant.errors import NoHome
from kukri.quant.jit import compiler
from kukri.quant.jit.kernel import CpuKernel
from kukri.quant.jit.precompile import compile_kernels
writers = {i: CpuKernel("many_kernels", "WRITERS", str(i)) for i in range(8)}
if "never" in sys.argv:
    compiler.machine_code = None
compile_kernels(list(writers.values()), lambda done, total: print(done, total, flush=True))
for i, kernel in writers.items():
    found = np.full(1, -1, np.float32)
    kernel.compiled.ctypes(found.ctypes.data, 0, 0)
    assert found[0] == i, (found, i)
print("numba" in sys.modules)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without kernels, and a module `many_kernels` for this and other processes."""
    (tmp_path / "many_kernels.py").write_text(KERNELS)
    monkeypatch.setenv("KUKRI_HOME", str(tmp_path / "home"))
    paths = [str(tmp_path), *(p for p in sys.path if p)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "many_kernels", raising=False)
    kernel_cache.kernel_cache.cache_clear()
    kernel_cache.cache_folder.cache_clear()
    yield tmp_path / "home"
    kernel_cache.kernel_cache.cache_clear()
    kernel_cache.cache_folder.cache_clear()


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen) -> list[str]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out.split("\n")[:-1]


def files(home: Path) -> list[Path]:
    return sorted(home.glob("kernels/*/*.kernel"))


def writers() -> dict[int, CpuKernel]:
    return {i: CpuKernel("many_kernels", "WRITERS", str(i)) for i in range(8)}


def result(kernel: CpuKernel) -> int:
    found = np.full(1, -1, np.float32)
    kernel.compiled.ctypes(found.ctypes.data, 0, 0)
    return int(found[0])


@pytest.mark.slow
def test_a_second_process_compiles_nothing(home):
    """Kernels of one factory, told apart by what a helper closes over; with and without worker processes."""
    out = finish(start())
    assert out[-2] == "8 8"
    assert len(files(home)) == 8
    assert finish(start("never"))[:-1] == []  # no progress to report, and nothing that compiles


def test_damaged_files_are_compiled_again(home):
    kernels = list(writers().values())[:3]
    for kernel in kernels:
        kernel.compile(kernel_cache.kernel_cache())
    content = {path: path.read_bytes() for path in files(home)}
    damages = [lambda b: b"", lambda b: b[:7], lambda b: b[:40], lambda b: b[: len(b) // 2], lambda b: b[:-1]]
    damages += [lambda b: b[:-9] + bytes(9), lambda b: b"\0" * len(b), lambda b: b + b"\0"]
    for i, damage in enumerate(damages):
        for path, whole in content.items():
            path.write_bytes(damage(whole))
        kernel = kernels[i % 3]
        del kernel.__dict__["compiled"]
        assert kernel.load(kernel_cache.kernel_cache()) is None
        assert precompile.compile_kernels([kernel]) == 1
        assert result(kernel) == i % 3
        for path in files(home):  # the other two are damaged yet
            path.write_bytes(content[path])


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_killed_while_compiling(home):
    """Whenever it is killed, the next process goes on, and no worker outlives it."""
    for delay in (0.0, 0.05, 0.1, 0.2, 0.3):
        process = start()
        assert process.stdout is not None
        process.stdout.readline()  # it has begun to compile
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        # Worker processes that live on would keep the pipe of stderr open, if they had it.
        assert process.stderr is not None
        process.stderr.read()
    assert finish(start())[-1] in ("True", "False")
    for kernel in writers().values():
        assert kernel.load(kernel_cache.kernel_cache()) is not None


@pytest.mark.slow
def test_two_at_once(home):
    first, second = start(), start()
    finish(first)
    finish(second)
    assert len(files(home)) == 8
    assert not list(home.glob("kernels/*/unfinished-*"))


def test_workers_take_a_part(home, monkeypatch):
    """A worker process fills the cache with what this process has not done yet."""
    begun = []
    compile_kernel = CpuKernel.compile

    def slow(kernel, cache):
        begun.append(kernel)
        deadline = time.monotonic() + 60
        while len(files(home)) < 4 and time.monotonic() < deadline:  # others must do the first ones
            time.sleep(0.05)
        return compile_kernel(kernel, cache)

    monkeypatch.setattr(CpuKernel, "compile", slow)
    counts = []
    kernels = list(writers().values())
    assert precompile.compile_kernels(kernels, lambda *count: counts.append(count), processes=2) == 8
    assert counts[0] == (0, 8)
    assert counts[-1] == (8, 8)
    assert len(begun) <= 5
    assert [result(kernel) for kernel in kernels] == list(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("program", ["", None, "/opt/blender", "/nowhere/python3"])
def test_without_workers(home, monkeypatch, program):
    """Embedded interpreters, and programs that do not start: the work is done all the same."""
    monkeypatch.setattr(sys, "executable", program)
    kernels = list(writers().values())
    assert precompile.compile_kernels(kernels, processes=2) == 8
    assert [result(kernel) for kernel in kernels] == list(range(8))


@pytest.mark.slow
def test_workers_end_with_their_parent(home):
    """A worker whose parent is gone leaves at once, in the middle of its work."""
    script = "import sys, time; from kukri.quant.jit import precompile as p; "
    script += "p.CpuKernel.compile = lambda *_: time.sleep(60); p.compile_into_cache(sys.argv[1:])"
    work = [f"many_kernels:WRITERS:{i}" for i in range(8)]
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(kernel_cache.cache_folder()), *work], stdin=subprocess.PIPE
    )
    time.sleep(1)
    assert process.poll() is None
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=20)


def test_threads_compile_a_kernel_once(home, monkeypatch):
    calls = []
    machine_code = compiler.machine_code

    def count(*arguments):
        calls.append(arguments)
        return machine_code(*arguments)

    monkeypatch.setattr(compiler, "machine_code", count)
    kernel = writers()[3]
    with ThreadPoolExecutor(4) as pool:
        addresses = {found.address for found in pool.map(lambda _: kernel.compiled, range(4))}
    assert len(calls) == len(addresses) == 1


def test_a_full_disk_costs_only_the_cache(home, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert result(writers()[5]) == 5
    assert not list(home.rglob("*.kernel"))
    assert not list(home.rglob("unfinished-*"))


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a folder that cannot be written")
def test_an_unwritable_home(home):
    home.mkdir(mode=0o500)
    assert not kernel_cache.cache_folder().is_relative_to(home)


def test_a_file_in_place_of_the_home(home):
    home.write_text("")
    folder = kernel_cache.cache_folder()
    assert not folder.is_relative_to(home)
    assert folder.is_dir()


def test_a_folder_that_is_open_to_others_is_not_used(home, tmp_path, monkeypatch, caplog):
    """What lies there could be anybody's; the log says why kernels are compiled at every start."""
    home.mkdir()
    home.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        folder = kernel_cache.cache_folder()
    assert folder.is_relative_to(tmp_path)
    assert not folder.is_relative_to(home)
    assert caplog.messages == [f"compiled kernels are not kept: other users can write to {home}"]
    tmp_path.chmod(0o777)
    kernel_cache.cache_folder.cache_clear()
    with pytest.raises(NoHome, match="set KUKRI_HOME or TMPDIR"):
        kernel_cache.cache_folder()
    tmp_path.chmod(0o700)


def test_what_lies_beside_a_temporary_folder_of_kernels_is_left(home, tmp_path, monkeypatch):
    home.write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "my-thesis").mkdir()
    folder = kernel_cache.cache_folder()
    os.utime(tmp_path / "my-thesis", (0, 0))
    KernelCache(folder).tidy()
    assert folder.is_dir()
    assert (tmp_path / "my-thesis").is_dir()


def test_folders_of_other_versions_go_after_a_month(tmp_path):
    own, recent, old = (tmp_path / name for name in ("avx2-own", "avx2-1", "avx2-2"))
    for folder in (own, recent, old):
        folder.mkdir()
        (folder / "k.kernel").write_text("")
    unfinished = own / "unfinished-1"
    unfinished.write_text("")
    long_ago = time.time() - UNUSED_SECONDS - 60
    for path in (own, old, unfinished, own / "k.kernel"):
        os.utime(path, (long_ago, long_ago))
    KernelCache(own).tidy()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["avx2-1", "avx2-own"]
    assert [p.name for p in own.iterdir()] == ["k.kernel"]


def test_using_a_folder_keeps_it_young(home):
    folder = kernel_cache.cache_folder()
    os.utime(folder, (0, 0))
    kernel_cache.cache_folder.cache_clear()
    assert kernel_cache.cache_folder() == folder
    assert time.time() - folder.stat().st_mtime < 60


def test_the_folder_depends_on_sources_and_cpu(monkeypatch):
    class OtherCpu:
        def get_host_cpu_name(self) -> str:
            return "znver9"

        def get_host_cpu_features(self) -> dict[str, bool]:
            return {}

    before = kernel_cache._fingerprint()
    assert kernel_cache._fingerprint() == before
    with monkeypatch.context() as patch:
        patch.setattr(kernel_cache, "_llvm", OtherCpu)
        assert kernel_cache._fingerprint() != before
    with monkeypatch.context() as patch:
        patch.setattr(kernel_cache, "CPU_SOURCES", SourceSet("S", CPU_SOURCES.places[:-1]))
        assert kernel_cache._fingerprint() != before


def test_every_kernel_has_a_file_of_its_own():
    tables = [GATHER_ROWS, *vars(kernels).values()]
    found = [
        k for t in tables for k in (t.values() if isinstance(t, dict) else [t]) if isinstance(k, CpuKernel)
    ]
    assert len(found) > 60
    assert len({kernel.key for kernel in found}) == len(found)
    for kernel in found:
        assert re.fullmatch(r"[\w.-]+", kernel.key)
        assert isinstance(kernel.entry_point(), decorators.EntryPoint)


def test_what_a_kernel_raises_is_lost(home):
    def divide(arguments, step, thread):
        if step == 0:
            raise ValueError("no steps")

    code, symbols = decorators.kernel(divide).machine_code()
    kernel_cache.MachineCode(code).ctypes(0, 0, 0)
    assert symbols == []
    assert b"PyErr" not in code


@pytest.mark.slow
def test_kernels_need_nothing_of_numba():
    """Each symbol of its runtime would bring all of Numba into memory at every start."""
    for kernel in (GATHER_ROWS, FLOAT_GEMMS["F32"], RMS_NORM, LEAD):
        _, symbols = kernel.entry_point().machine_code()
        assert set(symbols) <= {"sqrt", "sqrtf", "exp", "pow", "sin", "cos"}, str(kernel)


def test_code_outlives_its_kernel(home):
    """Addresses are in tables that know nothing of kernels."""
    call = writers()[6].compiled.ctypes
    gc.collect()
    found = np.full(1, -1, np.float32)
    call(found.ctypes.data, 0, 0)
    assert found[0] == 6


def test_a_symbol_that_nobody_has(home):
    """LLVM would end the process."""
    cache = kernel_cache.kernel_cache()
    kernel = writers()[1]
    cache.store(kernel.key, kernel.entry_point().machine_code()[0], ["no_such_symbol_anywhere"])
    assert cache.load(kernel.key) is None
    assert result(kernel) == 1
