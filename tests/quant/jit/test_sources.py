"""Fingerprints: an edit of a source that a kernel is compiled from makes it stale, and no other edit does."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kukri.quant.child_process import child_environment
from kukri.quant.jit import sources
from kukri.quant.jit.kernel import CpuKernel
from kukri.quant.jit.kernel_cache import CPU_SOURCES
from kukri.quant.jit.sources import SourceSet, UntrackedSource, reachable_sources
from kukri.quant.package import PACKAGE_FOLDER
from kukri.runtime.cuda.compile import kernel as cuda_kernel
from kukri.runtime.model import tokenizer_kernel

ROOT = "kukri"
# Each prints the key of a kernel, as the cache has it, and whether it had to be compiled.
CPU = """
from kukri.quant.jit import compiler
from kukri.quant.jit.kernel_cache import cache_folder
from kukri.runtime.cpu.kernels import RMS_NORM as kernel
compiled = []
machine_code = compiler.machine_code
compiler.machine_code = lambda *arguments: compiled.append(1) or machine_code(*arguments)
assert kernel.address
print(cache_folder() / kernel.key, len(compiled))
"""
CUDA = """
from kukri.runtime.cuda.compile.kernel import CudaKernel, Kernels, kernel as kernel_of
from kukri.runtime.cuda.kernels.common.pointwise import add
class Card:
    capability = 9, 0
    def assemble(self, ptx):
        return ptx.encode()
    def load(self, code, *_):
        return len(code)
compiled = []
ptx = CudaKernel.ptx
CudaKernel.ptx = lambda *arguments: compiled.append(1) or ptx(*arguments)
kernel, kernels = kernel_of(add, 256, PDL=0), Kernels(Card())
assert kernels.function(kernel)
print(kernels._key(kernel), len(compiled))
"""
TOKENIZER = """
from kukri.quant.jit import compiler
from kukri.quant.jit.kernel_cache import KernelCache, cache_folder
from kukri.runtime.model.tokenizer_kernel import compile_into_cache, kernel_key
compiled = []
compiler.machine_code = lambda *arguments: compiled.append(1) or (b"", [])  # else it takes ten seconds
KernelCache.store = lambda cache, key, code, symbols: cache._files.store(key, code)
compile_into_cache([str(cache_folder())])
print(cache_folder() / kernel_key(), len(compiled))
"""


def source_of(module: str) -> Path:
    return PACKAGE_FOLDER.joinpath(*module.split(".")[1:]).with_suffix(".py")


def deepest(module: str) -> str:
    """Of the sources that a kernel is compiled from, without its own, one that lies as deep as any."""
    files = reachable_sources(module) - {source_of(module)}
    return str(max(files, key=lambda path: (len(path.parts), path)).relative_to(PACKAGE_FOLDER))


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of this package to edit."""
    folder = tmp_path_factory.mktemp("copy") / ROOT
    unread = shutil.ignore_patterns("__pycache__", "tests", "scripts", "docs", ".*")
    shutil.copytree(PACKAGE_FOLDER, folder, ignore=unread)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "module"),
    [
        pytest.param(CPU, f"{ROOT}.runtime.cpu.kernels.common.pointwise", id="cpu"),
        pytest.param(
            CUDA,
            f"{ROOT}.runtime.cuda.kernels.common.pointwise",
            id="cuda",
            marks=pytest.mark.skipif(
                not importlib.util.find_spec("numba_cuda"), reason="numba-cuda is not installed"
            ),
        ),
        pytest.param(TOKENIZER, f"{ROOT}.tokenizer.bpe.compiled.kernel", id="tokenizer"),
    ],
)
def test_an_edit_of_a_source_recompiles(copied, tmp_path, script, module):
    def run() -> tuple[str, int]:
        """The key, and how often the kernel was compiled."""
        environment = {**child_environment(), "PYTHONPATH": str(copied.parent)}
        environment["KUKRI_HOME"] = str(tmp_path)
        done = subprocess.run(
            [sys.executable, "-P", "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        key, n = done.stdout.split()
        return key, int(n)

    def edit(path: str) -> None:
        with (copied / path).open("a") as file:
            file.write("\n# edited\n")

    key, n = run()
    assert n == 1
    edit(deepest(module))
    edited, n = run()
    assert (edited != key, n) == (True, 1)
    for unrelated in (
        "cli/main.py",
        "quant/gguf/writer.py",
        "runtime/engine/sampling/sampler.py",
        "__init__.py",
    ):
        edit(unrelated)
    assert run() == (edited, 0)


def python_modules(place: str) -> list[str]:
    files = sorted((PACKAGE_FOLDER / place).rglob("*.py"))
    return [
        ".".join([ROOT, *file.relative_to(PACKAGE_FOLDER).with_suffix("").parts]).removesuffix(".__init__")
        for file in files
    ]


@pytest.mark.parametrize(
    "module",
    [
        *python_modules("runtime/cpu/kernels"),
        *python_modules("runtime/cpu/simd"),
        *(name for name in python_modules("quant/rounding") if name.endswith("_kernels")),
        f"{ROOT}.quant.jit.compiler",
    ],
)
def test_cpu_kernels_import_nothing_that_the_fingerprint_lacks(module):
    CPU_SOURCES.check(module)


def test_all_kernels_of_quant_are_in_modules_of_that_name():
    """The test before this one finds them by their modules' names."""
    for file in (PACKAGE_FOLDER / "quant").rglob("*.py"):
        if "decorators import" in file.read_text("utf-8") and "kernel" in file.read_text("utf-8"):
            assert file.stem.endswith(("_kernels", "_lanes", "kernel")), file


@pytest.mark.parametrize(
    "module",
    [
        *python_modules("runtime/cuda/kernels"),
        f"{ROOT}.runtime.cuda.compile.stage",
        f"{ROOT}.runtime.cuda.compile.ptx_compiler",
    ],
)
def test_cuda_kernels_import_nothing_that_the_fingerprint_lacks(module):
    cuda_kernel.SOURCES.check(module)


def test_the_tokenizer_kernel_imports_nothing_that_its_key_lacks():
    tokenizer_kernel.SOURCES.check(tokenizer_kernel.MODULE)


def test_a_kernel_that_imports_something_else_is_not_compiled(tmp_path, monkeypatch):
    small = SourceSet("here.SOURCES", ("quant/jit", "runtime/cpu/kernels"))
    kernel = CpuKernel(f"{ROOT}.runtime.cpu.kernels.common.pointwise", "rms_norm")
    with pytest.raises(UntrackedSource, match=r"pointwise imports .*records\.py.* to here\.SOURCES"):
        small.check(kernel.module)
    monkeypatch.setattr("kukri.quant.jit.kernel.CPU_SOURCES", small)
    with pytest.raises(UntrackedSource):
        kernel.compile(None)
    SourceSet("here.SOURCES", ()).check("numpy")  # not of this package


@pytest.fixture
def package(tmp_path, monkeypatch):
    """write(path, source): a small package in place of this one."""
    monkeypatch.setattr(sources, "PACKAGE_FOLDER", tmp_path)

    def write(path: str, source: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)

    for cached in (sources.reachable_sources, sources._imported_sources):
        cached.cache_clear()
    yield write
    for cached in (sources.reachable_sources, sources._imported_sources):
        cached.cache_clear()


def test_imports_are_followed(package, tmp_path):
    package("a/kernel.py", "from typing import TYPE_CHECKING\nfrom .helper import x\nfrom ..b import deep\n")
    package(
        "a/helper.py",
        "def f():\n    try:\n        from ..b.lazy import y\n    except E:\n        import numpy\n",
    )
    package("a/__init__.py", "from . import unrelated\n")
    package("a/unrelated.py", "")
    package("__init__.py", "from .a import unrelated\n")
    package("b/__init__.py", "from . import shared\n")
    package("b/deep/__init__.py", "from .. import shared\nimport kukri.b.absolute\nimport numpy\n")
    package("b/lazy.py", "from kukri.b import named\nfrom .. import KukriError, b\n")
    package("b/shared.py", "if TYPE_CHECKING:\n    from . import types\nelse:\n    from . import real\n")
    for name in ("types", "real", "absolute", "named"):
        package(f"b/{name}.py", "")
    found = {str(path.relative_to(tmp_path)) for path in reachable_sources("kukri.a.kernel")}
    package("version.py", "from kukri import KukriError, __version__\n")
    assert tmp_path / "__init__.py" in reachable_sources("kukri.version")
    expected = "a/kernel a/helper b/__init__ b/deep/__init__ b/shared b/lazy b/real b/absolute b/named"
    assert found == {f"{name.replace('/', os.sep)}.py" for name in expected.split()}


def test_a_digest_depends_on_every_byte_of_every_file(package):
    package("a/x.py", "1")
    package("a/b/y.py", "23")
    package("c.py", "")
    places = SourceSet("S", ("a", "c.py"))
    digests = {places.digest()}
    package("a/b/y.py", "24")
    digests.add(places.digest())
    package("a/x.py", "12")
    package("a/b/y.py", "4")  # the same bytes one after the other
    digests.add(places.digest())
    package("a/b/z.py", "")
    digests.add(places.digest())
    package("d.py", "unrelated")
    digests.add(places.digest())
    assert len(digests) == 4


def test_without_sources_there_is_no_digest(package):
    package("a/x.txt", "")
    for place in ("a", "no/such", "b.py"):
        with pytest.raises(OSError, match="no sources"):
            SourceSet("S", (place,)).digest()
    SourceSet("S", ("a",)).check("kukri.a.x")  # nor anything to check
