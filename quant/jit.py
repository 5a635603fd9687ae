"""Compiling and caching of Numba code: `jit` for helpers, `kernel` for entry points of the machine.

Compiled kernels are kept on disk in a folder named after a hash of the package's sources and the
SIMD level. Numba itself notices only edits of the file that holds the entry point, not of the
helpers it calls in other files, and would hand out stale machine code.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numba
from numba import types

KERNEL_SIGNATURE = types.void(types.int64, types.int64, types.int64)  # (arguments, step, thread)


def jit(function: Callable) -> Any:
    """A helper that kernels call: compiled into its callers, never cached by itself."""
    return numba.njit(function, nogil=True, error_model="numpy", forceinline=True)


class Kernel:
    """An entry point `f(arguments, step, thread)`, compiled when its address is first asked for."""

    def __init__(self, function: Callable[[int, int, int], None], fastmath: Any = False) -> None:
        self.name = function.__name__
        self._function = function
        self._fastmath = fastmath

    @cached_property
    def compiled(self) -> Any:
        # Numba reads the folder when it decorates; the setting is put back, since it is everybody's.
        config: Any = numba.config
        before, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder())
        try:
            return numba.cfunc(
                KERNEL_SIGNATURE, cache=True, nogil=True, error_model="numpy", fastmath=self._fastmath
            )(self._function)
        finally:
            config.CACHE_DIR = before

    @property
    def address(self) -> int:
        return self.compiled.address


def kernel(function: Callable[[int, int, int], None]) -> Kernel:
    """An entry point in strict floating point."""
    return Kernel(function)


def reassociating_kernel(function: Callable[[int, int, int], None]) -> Kernel:
    """An entry point whose sums LLVM may reorder, so that it can vectorise them."""
    return Kernel(function, fastmath={"reassoc", "contract", "nsz"})


@cache
def cache_folder() -> Path:
    """The folder for compiled kernels: made if need be, and writable.

    `KUKRI_HOME` or the user's cache folder; where neither can be written, a private temporary one.
    """
    base, cache = os.environ.get("KUKRI_HOME"), os.environ.get("XDG_CACHE_HOME")
    try:
        root = Path(base).expanduser() if base else Path(cache or Path.home() / ".cache") / "kukri"
        folder = root / "kernels" / _source_hash()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: no home folder at all
        private = Path(tempfile.mkdtemp(prefix="kukri-kernels-"))
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        return private


def _source_hash() -> str:
    from .simd import LEVEL

    digest = hashlib.sha256(f"{LEVEL} {numba.__version__}".encode())
    package = Path(__file__).parent.parent
    for path in sorted([*package.glob("quant/**/*.py"), *package.glob("runtime/cpu/*.py")]):
        digest.update(path.read_bytes())
    return f"{LEVEL}-{digest.hexdigest()[:16]}"
