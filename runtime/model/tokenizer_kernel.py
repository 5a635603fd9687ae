"""The machine code by which tokenizers encode text: out of the kernel cache, or made for it meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...tokenizer.core import EncodeKernel

if TYPE_CHECKING:
    import subprocess

    from ...quant.jit.kernel_cache import KernelCache

_ASK_AGAIN = 0.25  # seconds
_COMPILING_PAYS = 32_000  # characters
_GIVE_UP = 300.0  # seconds after which a process that compiles is thought to be dead
_START = f"""
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {__name__} import compile_into
compile_into(sys.argv[2])
"""


class TokenKernel:
    """Gives the kernel of `tokenizer/bpe/kernels.py` as soon as it is in a cache.

    Compiling takes seconds, in which megabytes are encoded without it. So another process does that, at the
    lowest priority, once for each version of the sources, when somebody encodes as much as a document.
    """

    def __init__(self, cache: Callable[[], KernelCache]) -> None:
        self._cache = cache
        self._kernel: EncodeKernel | None = None
        self._compiler: subprocess.Popen[bytes] | None = None
        self._ask_at = 0.0

    def __call__(self, n_characters: int) -> EncodeKernel | None:
        now = time.monotonic()
        if self._kernel is None and now >= self._ask_at:
            self._ask_at = now + _ASK_AGAIN
            with suppress(OSError):  # without sources there is none
                self._look(n_characters >= _COMPILING_PAYS)
        return self._kernel

    def _look(self, compiling_pays: bool) -> None:
        cache, key = self._cache(), kernel_key()
        code = cache.load(key)
        if code is not None:
            self._kernel = code.ctypes
        elif self._compiler is None:
            self._compiler = _compile_elsewhere(cache, key) if compiling_pays else None
        elif self._compiler.poll() is not None:
            self._ask_at = float("inf")  # it failed


@cache
def token_kernel() -> TokenKernel:
    """This process's."""

    def its_cache() -> KernelCache:
        from ...quant.jit.kernel_cache import kernel_cache

        return kernel_cache()

    return TokenKernel(its_cache)


@cache
def kernel_key() -> str:
    """A name that no other version of the kernel has. OSError where its sources are not there."""
    folder = Path(__file__).parent.parent.parent / "tokenizer" / "bpe" / "compiled"
    sources = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return f"tokenizer-{hashlib.sha256(sources).hexdigest()[:16]}"


def compile_into(folder: str | Path) -> None:
    """Compile the kernel for the cache in a folder, unless it is there."""
    from ...quant.jit.compiler import machine_code
    from ...quant.jit.kernel_cache import KernelCache
    from ...tokenizer.bpe.compiled.kernel import tokenizer_kernel

    cache, key = KernelCache(Path(folder)), kernel_key()
    try:
        if not cache.has(key):
            cache.store(key, *machine_code(tokenizer_kernel, False))
    finally:
        _claim(cache, key).unlink(missing_ok=True)


def _claim(cache: KernelCache, key: str) -> Path:
    """A file that is there while a process compiles; the cache removes what is left of such files."""
    return cache.folder / f"unfinished-{key}"


def _compile_elsewhere(cache: KernelCache, key: str) -> subprocess.Popen[bytes] | None:
    """Start a process that fills the cache and outlives this one; None if there is one or this cannot be."""
    import subprocess

    program = Path(sys.executable or "")
    if getattr(sys, "frozen", False) or not program.stem.lower().startswith(("python", "pypy")):
        return None  # bundled or embedded: who knows what that program does when it is started
    claim = _claim(cache, key)
    try:
        if time.time() - claim.stat().st_mtime > _GIVE_UP:
            claim.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    try:
        claim.touch(exist_ok=False)
    except OSError:
        return None  # another process is at it, or the disk is full
    command = [str(program), "-c", _START, json.dumps(sys.path), str(cache.folder)]
    quiet = subprocess.DEVNULL
    try:
        if os.name == "nt":
            flags = getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "IDLE_PRIORITY_CLASS", 0)
            return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, creationflags=flags)
        command[:0] = ["nice", "-n", "19"]
        return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    except (OSError, ValueError):
        claim.unlink(missing_ok=True)
        return None
