"""Child processes: what they import, how they run, and that the current folder has no say in it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kukri.quant import child_process
from kukri.quant.child_process import child_environment, python_command, start_python
from kukri.quant.jit.kernel import CpuKernel
from kukri.quant.jit.kernel_cache import KernelCache
from kukri.quant.jit.precompile import _Workers
from kukri.runtime.cuda.compile import workers
from kukri.runtime.cuda.compile.kernel import CudaKernel
from kukri.runtime.model import tokenizer_kernel

PLANTED = (
    *("json", "sys", "os", "importlib", "runpy", "subprocess", "threading", "hashlib", "ast", "ctypes"),
    *("site", "sitecustomize", "usercustomize", "encodings", "codecs", "random", "platform", "logging"),
    *("numba", "numpy", "llvmlite", "numba_cuda", "cuda", "pip", "setuptools", "kukri", "quant", "runtime"),
)
CHILD = """
import json, os, sys
from pathlib import Path
def report(arguments):
    import kukri
    Path(arguments[0]).write_text(json.dumps({
        "arguments": arguments,
        "path": sys.path,
        "folder": os.getcwd(),
        "package": kukri.__file__,
        "niceness": os.nice(0) if hasattr(os, "nice") else None,
        "leads_session": os.getsid(0) == os.getpid() if hasattr(os, "getsid") else None,
    }))
"""
KERNEL = """
from kukri.quant.jit.decorators import kernel
@kernel
def nothing(arguments, step, thread):
    return
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Two modules for child processes, in a folder on this process's path."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "child_module.py").write_text(CHILD)
    (folder / "kernel_module.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """The current folder: modules that leave a mark where they are imported, on every path there is."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text("open(__file__ + '.imported', 'w')\nraise SystemExit(1)\n")
    (folder / ".numba_config.yaml").write_text("disable_jit: 1\n")  # Numba's settings for whoever is here
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(folder), "."]))
    return folder


@pytest.fixture
def unsafe_path(planted, monkeypatch):
    """While this is entered, the current folder is first on this process's path, in all spellings."""

    def enter():
        context = monkeypatch.context()
        patch = context.__enter__()
        patch.setattr(sys, "path", ["", ".", str(planted), f"{planted}{os.sep}.", *sys.path])
        return lambda: context.__exit__(None, None, None)

    return enter


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.imported"))


def report(tmp_path: Path, **options) -> dict:
    target = tmp_path / "report.json"
    process = start_python("child_module:report", [str(target), "a b", "é"], **options)
    assert process is not None
    assert process.wait(60) == 0
    return json.loads(target.read_text())


def test_the_planted_modules_would_be_imported(planted):
    """A plain child process runs them, so that a mark tells something."""
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run([sys.executable, "-c", "import json"], check=False, env=environment)
    assert marks(planted) == ["json.py.imported"]


def test_compilers_of_cpu_kernels_import_nothing_from_the_current_folder(
    tmp_path, modules, planted, unsafe_path
):
    cache, kernel = KernelCache(tmp_path / "cache"), CpuKernel("kernel_module", "nothing")
    pool, leave = _Workers(), unsafe_path()
    pool.start(cache, [kernel])
    leave()
    (process,) = pool._running
    assert process.wait(120) == 0
    pool.stop()
    assert cache.load(kernel.key) is not None
    assert marks(planted) == []


@pytest.mark.skipif(not importlib.util.find_spec("numba_cuda"), reason="numba-cuda is not installed")
def test_compilers_of_cuda_kernels_import_nothing_from_the_current_folder(planted, unsafe_path):
    leave = unsafe_path()
    process = start_python(workers._ENTRY, [], subprocess.PIPE, subprocess.PIPE)
    leave()
    assert process is not None
    kernel = CudaKernel("common.pointwise", "add", 256, (("PDL", 0),))
    assert ".entry" in workers._request(process, kernel, (9, 0), urgent=True)
    process.communicate()
    assert marks(planted) == []


def test_the_compiler_of_the_tokenizer_kernel_imports_nothing_from_the_current_folder(
    tmp_path, planted, unsafe_path
):
    cache, key = KernelCache(tmp_path), tokenizer_kernel.kernel_key()
    cache._files.path(key).write_bytes(b"damaged")  # is no reason not to compile it
    leave = unsafe_path()
    process = tokenizer_kernel._start_compiler(cache, key)
    leave()
    assert process is not None
    assert process.wait(120) == 0
    assert not tokenizer_kernel._claim(cache, key).exists()
    assert cache.load(key) is not None
    assert marks(planted) == []


@pytest.mark.skipif(not importlib.util.find_spec("pip"), reason="pip is not installed")
def test_pip_imports_nothing_from_the_current_folder(planted, unsafe_path):
    leave = unsafe_path()
    command, environment = python_command("pip"), child_environment()
    leave()
    assert command is not None
    result = subprocess.run(
        [*command, "--version"], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("pip ")
    assert marks(planted) == []


def test_a_child_runs_this_package_whatever_else_is_on_the_path(tmp_path, modules, planted, monkeypatch):
    """Also where this package was found by way of the current folder, or another version is installed."""
    root = child_process.PACKAGE_FOLDER
    other = tmp_path / "other"
    (other / "kukri").mkdir(parents=True)
    (other / "kukri" / "__init__.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(root.parent)
    path = [p for p in sys.path if not (Path(p) / "kukri" / "__init__.py").exists()]
    monkeypatch.setattr(sys, "path", [str(other), *path])
    found = report(tmp_path)
    assert Path(found["package"]).parent == root
    assert found["arguments"][1:] == ["a b", "é"]


def test_the_environment_leads_no_child_into_the_current_folder(tmp_path, modules, planted, monkeypatch):
    """Not by variables that name places of code, and relative names mean what they mean here."""
    for name in ("PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "PYTHONSTARTUP", "PYTHONINSPECT"):
        monkeypatch.setenv(name, "here")
    monkeypatch.setenv("PATH", os.pathsep.join([".", os.defpath, ""]))
    monkeypatch.setenv("KUKRI_HOME", "cache")
    environment = child_environment()
    assert not [name for name in environment if name.startswith("PYTHON") and environment[name] == "here"]
    assert all(map(os.path.isabs, environment["PATH"].split(os.pathsep)))
    assert environment["KUKRI_HOME"] == str(planted / "cache")
    assert report(tmp_path)["folder"] == str(child_process.PACKAGE_FOLDER)
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path))
    monkeypatch.setenv("KUKRI_HOME", "~/cache")
    assert child_environment()["PYTHONUSERBASE"] == str(tmp_path)
    assert child_environment()["KUKRI_HOME"] == "~/cache"


def test_a_child_has_the_paths_of_its_parent_but_for_the_current_folder(
    tmp_path, modules, planted, unsafe_path
):
    leave = unsafe_path()
    try:
        path = report(tmp_path)["path"]
    finally:
        leave()
    assert str(modules) in path
    assert not [p for p in path if not os.path.isabs(p) or Path(p).resolve() == planted.resolve()]


@pytest.mark.skipif(os.name == "nt", reason="other priorities, no sessions")
def test_background_processes_have_the_lowest_priority_and_a_session(tmp_path, modules):
    found = report(tmp_path, background=True)
    assert found["niceness"] == 19
    assert found["leads_session"]
    found = report(tmp_path)
    assert found["niceness"] == os.nice(0)
    assert not found["leads_session"]


@pytest.mark.parametrize("program", ["", None, "/opt/blender", "/nowhere/python3"])
def test_without_an_interpreter(monkeypatch, program):
    monkeypatch.setattr(sys, "executable", program)
    assert start_python("child_module:report", []) is None


def test_frozen_applications_start_nothing(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert python_command("pip") is None


def test_nothing_else_starts_an_interpreter():
    """Whoever starts one otherwise, may import from the current folder there."""
    root = child_process.PACKAGE_FOLDER
    found = {
        str(path.relative_to(root).as_posix())
        for part in ("cli", "quant", "runtime", "tokenizer")
        for path in (root / part).rglob("*.py")
        if "sys.executable" in path.read_text("utf-8")
    }
    assert found == {"quant/child_process.py", "runtime/hub/wheels.py"}  # the other one only for a message
