"""Compiled kernels on disk: one file each, in a folder for these sources, this CPU and these compilers.

A file holds a digest, the names of outside symbols and the object code. It appears under its name at once and
complete, whoever writes it and however often; one that is damaged all the same counts as missing.
Folders of other versions are removed when nobody has used them for a month.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SYMBOL = "kernel"  # the entry point's name in the object code
UNUSED_SECONDS = 30 * 86400  # after which a folder of another version is removed
_DIGEST_BYTES = 32
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


_loaded: list[Any] = []  # engines, never let go: nobody knows which tables still hold an address


class MachineCode:
    """A kernel in memory, for as long as this process lives: the address of its entry point."""

    def __init__(self, code: bytes) -> None:
        llvm = _llvm()
        engine = _engine(llvm)  # of its own, since all kernels use the same symbol
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        self.address: int = engine.get_function_address(SYMBOL)

    @cached_property
    def ctypes(self) -> Callable[[int, int, int], None]:
        """The kernel as a Python function. Other threads run while it does."""
        return _CALL(self.address)


class KernelCache:
    """The kernels in one folder, by their keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, key: str) -> bool:
        return self._path(key).exists()

    def load(self, key: str) -> MachineCode | None:
        """The kernel, or None if it is not there, or not as it was written."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        body = content[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != content[:_DIGEST_BYTES]:
            return None
        symbols, _, code = body.partition(b"\n")
        return MachineCode(code) if _resolved(json.loads(symbols)) else None

    def store(self, key: str, code: bytes, symbols: list[str]) -> MachineCode:
        """Keep a kernel that needs outside `symbols`. A full disk only means that it is compiled again."""
        body = json.dumps(symbols).encode() + b"\n" + code
        path = self._path(key)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix="unfinished-", dir=path.parent)
            try:
                with open(descriptor, "wb") as file:
                    file.write(hashlib.sha256(body).digest() + body)
                os.replace(name, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name)
                raise
        return MachineCode(code)

    def remove(self, key: str) -> None:
        with suppress(OSError):
            self._path(key).unlink()

    def tidy(self, now: float | None = None) -> None:
        """Remove what killed processes left here, and the folders beside this one that nobody uses."""
        oldest = (time.time() if now is None else now) - UNUSED_SECONDS
        for path in [*self.folder.glob("unfinished-*"), *self.folder.parent.glob("*-*")]:
            with suppress(OSError):
                if path == self.folder or path.stat().st_mtime > oldest:
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.kernel"


@cache
def kernel_cache() -> KernelCache:
    """This process's cache."""
    return KernelCache(cache_folder())


@cache
def cache_folder() -> Path:
    """The folder for compiled kernels: made if need be, writable, and marked as used now.

    `KUKRI_HOME` or the user's cache folder; where neither can be written, a private temporary one.
    """
    base, user = os.environ.get("KUKRI_HOME"), os.environ.get("XDG_CACHE_HOME", "")
    user = user if os.path.isabs(user) else ""  # others are to be ignored, as the specification has it
    name = f"{_level()}-{_fingerprint()}" if _sources() else ""
    try:
        if not name:
            raise OSError("without its sources nobody can tell whether a kernel is stale")
        root = Path(base).expanduser() if base else Path(user or Path.home() / ".cache") / "kukri"
        folder = root / "kernels" / name
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            os.utime(folder)
            return folder
    except (OSError, RuntimeError):  # RuntimeError: no home folder at all
        private = Path(tempfile.mkdtemp(prefix="kukri-kernels-"))
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        return private


def _level() -> str:
    from .levels import LEVEL

    return LEVEL


def _sources() -> list[Path]:
    package = Path(__file__).parent.parent.parent
    return sorted([*package.glob("quant/**/*.py"), *package.glob("runtime/cpu/**/*.py")])


def _fingerprint() -> str:
    """What a kernel depends on: sources, compilers, and the very CPU, since a home may be shared."""
    llvm = _llvm()
    system = (platform.system(), platform.machine(), sys.implementation.cache_tag, _level())
    tools = [_version(package) for package in ("numba", "llvmlite", "numpy")]
    cpu = (llvm.get_host_cpu_name(), sorted(llvm.get_host_cpu_features().items()))
    digest = hashlib.sha256(repr((system, tools, cpu)).encode())
    for path in _sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # in a bundle; its kernels change with it
        return "unknown"


@cache
def _llvm() -> Any:
    """LLVM, ready for this CPU."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    _engine(llvm)  # only with its first does LLVM look for symbols in this process and its libraries
    if platform.machine().lower() in ("x86_64", "amd64") and not llvm.get_host_cpu_features().get("f16c"):
        _bring_numba_symbols()  # conversions from and to fp16 are calls there
    return llvm


def _engine(llvm: Any) -> Any:
    """What makes object code run."""
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    _loaded.append(engine)
    return engine


def _resolved(symbols: list[str]) -> bool:
    """Whether this process has all of these; LLVM would end it if one were missing."""
    llvm = _llvm()
    if all(llvm.address_of_symbol(symbol) for symbol in symbols):
        return True
    _bring_numba_symbols()
    return all(llvm.address_of_symbol(symbol) for symbol in symbols)


def _bring_numba_symbols() -> None:
    from numba.core.registry import cpu_target

    cpu_target.target_context.refresh()
