"""The compiled encoder of tokenizers: from the kernel cache, or compiled by a background process.

Compiling takes seconds, in which the encoder in Python encodes megabytes. So nobody waits for it: when a text
as long as a document is encoded, a process of the lowest priority compiles the kernel, once per version of
its sources. Tokenizers use it as soon as it is in the cache.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...quant.jit.sources import SourceSet
from ...quant.package import PACKAGE
from ...tokenizer.core import EncodeKernel

if TYPE_CHECKING:
    import subprocess

    from ...quant.jit.kernel_cache import KernelCache

_POLL_SECONDS = 0.25
_COMPILING_PAYS = 32_000  # characters
_GIVE_UP = 300.0  # seconds after which a process that compiles is taken for dead

# What the kernel is compiled from, besides the JIT itself, which the name of the cache's folder stands for.
SOURCES = SourceSet(f"{__name__}.SOURCES", ("tokenizer/bpe/compiled",))
MODULE = f"{PACKAGE}.tokenizer.bpe.compiled.kernel"  # which imports Numba


class TokenizerKernel:
    """Gives the kernel of `tokenizer/bpe/compiled/kernel.py` as soon as it is in a cache.

    `cache` is called when the kernel is first asked for.
    """

    def __init__(self, cache: Callable[[], KernelCache]) -> None:
        self._cache = cache
        self._kernel: EncodeKernel | None = None
        self._compiler: subprocess.Popen[bytes] | None = None
        self._poll_at = 0.0  # on the monotonic clock

    def __call__(self, n_characters: int) -> EncodeKernel | None:
        """The kernel; None while there is none. A text of that length may be worth compiling it."""
        now = time.monotonic()
        if self._kernel is None and now >= self._poll_at:
            self._poll_at = now + _POLL_SECONDS
            with suppress(OSError):  # without sources there is no kernel
                self._poll(n_characters >= _COMPILING_PAYS)
        return self._kernel

    def _poll(self, compiling_pays: bool) -> None:
        cache, key = self._cache(), kernel_key()
        code = cache.load(key)
        if code is not None:
            self._kernel = code.ctypes
        elif self._compiler is None:
            self._compiler = _start_compiler(cache, key) if compiling_pays else None
        elif self._compiler.poll() is not None:
            self._poll_at = float("inf")  # it failed


@cache
def tokenizer_kernel() -> TokenizerKernel:
    """The kernel of this process's cache, which all tokenizers share."""

    def its_cache() -> KernelCache:
        from ...quant.jit.kernel_cache import kernel_cache

        return kernel_cache()

    return TokenizerKernel(its_cache)


@cache
def kernel_key() -> str:
    """The kernel's key in the cache, which no other version of its sources has. OSError without sources."""
    return f"tokenizer-{SOURCES.digest().hex()[:16]}"


def compile_into_cache(arguments: Sequence[str]) -> None:
    """Compile the kernel for a cache, unless it is there, whole. `arguments`: the cache's folder.

    A background process runs this. Raises UntrackedSource if `SOURCES` lacks a file.
    """
    from ...quant.jit.compiler import machine_code
    from ...quant.jit.kernel_cache import KernelCache

    cache, key = KernelCache(Path(arguments[0])), kernel_key()
    try:
        if not cache.is_whole(key):
            SOURCES.check(MODULE)
            cache.store(key, *machine_code(importlib.import_module(MODULE).tokenizer_kernel, False))
    finally:
        _claim(cache, key).unlink(missing_ok=True)


def _claim(cache: KernelCache, key: str) -> Path:
    """The file that exists while a process compiles the kernel; `KernelCache.tidy` removes forgotten ones."""
    from ...quant.jit.file_cache import UNFINISHED

    return cache.folder / f"{UNFINISHED}{key}"


def _start_compiler(cache: KernelCache, key: str) -> subprocess.Popen[bytes] | None:
    """Start a background process, which may outlive this one, that compiles the kernel.

    None if another process is compiling it, or if no process can be started.
    """
    from ...quant.child_process import start_python

    claim = _claim(cache, key)
    try:
        if time.time() - claim.stat().st_mtime > _GIVE_UP:
            claim.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    try:
        claim.touch(exist_ok=False)
    except OSError:
        return None  # another process compiles, or the disk is full
    process = start_python(f"{__name__}:compile_into_cache", [str(cache.folder.absolute())], background=True)
    if process is None:
        claim.unlink(missing_ok=True)
    return process
