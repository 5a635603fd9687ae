"""Kernels with their constants, compiled for a card once and cached on disk.

Numba is not imported before a kernel must be compiled, so that a warm start only reads files. The modules of
kernels are imported at every start, because kernels are named by their functions: they import nothing but
`ptx/`, `abi/` and `compile/`, less than 10 ms for all of them. A kernel's file is named by a digest of
everything that its machine code depends on: the sources in SOURCES, the versions of the compilers, the
compute capability, and the kernel's constants.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ....quant.extras import how_to_install
from ....quant.jit.file_cache import FileCache
from ....quant.jit.kernel_cache import cache_folder
from ....quant.jit.sources import SourceSet
from ..driver.device import Device
from ..driver.errors import CudaUnavailable

if TYPE_CHECKING:
    from .workers import Workers

ENTRY = "kernel"
KERNELS = f"{__package__.rpartition('.')[0]}.kernels"  # the package of their modules
# What kernels are compiled from. `CudaKernel.ptx` refuses a kernel that imports anything else.
SOURCES = SourceSet(
    f"{__name__}.SOURCES",
    tuple(f"runtime/cuda/{each}" for each in ("abi", "compile", "kernels", "ptx")),
)
_SUFFIX = ".cubin"


Arguments = TypeVar("Arguments", bound=Iterable[int | float])
Made = TypeVar("Made")
Ask = Callable[[], object]  # asks for kernels


@dataclass(frozen=True)
class CudaKernel(Generic[Arguments]):
    """A kernel for blocks of `threads` threads, with these constants: what is compiled, and what is cached.

    The kernel is the function `name` of the module `module`, counted from kernels/; both are strings, so that
    a kernel can be sent to another process and gives the same file name in each. `kernel` makes one of the
    function itself, from which type checkers know its argument record. The constant FORMAT, the name of a
    block format, stands for the constants of `kernels/matmul/unpack.READERS[FORMAT]`; FORMAT_SECOND for
    those of another format, with _SECOND behind their names (see `stage.second`).
    """

    module: str
    name: str
    threads: int
    constants: tuple[tuple[str, int | float | str], ...] = ()
    resident: int = 1  # blocks that must fit on a multiprocessor at once, which limits a thread's registers

    def __str__(self) -> str:
        return f"{self.name} {' '.join(f'{k}={v}' for k, v in self.constants)}".strip()

    def function(self) -> Callable[..., None]:
        return getattr(importlib.import_module(f"{KERNELS}.{self.module}"), self.name)

    def values(self) -> dict[str, Any]:
        """The constants by name, FORMAT replaced by those of the format."""
        found: dict[str, Any] = dict(self.constants)
        if name := found.pop("FORMAT", None):
            from ..kernels.matmul.unpack import READERS

            found |= READERS[name]
        if name := found.pop("FORMAT_SECOND", None):
            from ..kernels.matmul.unpack import READERS

            found |= {f"{constant}_SECOND": value for constant, value in READERS[name].items()}
        return found

    def ptx(self, capability: tuple[int, int]) -> str:
        """The kernel's PTX, whose entry point is called `ENTRY`. Imports Numba."""
        SOURCES.check(f"{KERNELS}.{self.module}")
        return compiled(self.function(), self.values(), capability, self.threads, self.resident)


def compiled(
    function: Callable[..., None],
    constants: dict[str, Any],
    capability: tuple[int, int],
    threads: int,
    resident: int = 1,
) -> str:
    """PTX of any function: see `ptx_compiler.ptx_of`. Imports Numba."""
    from .ptx_compiler import entry_point, ptx_of

    text = ptx_of(function, constants, capability, threads, resident)
    # No newer version of PTX than the instructions need, so that older drivers take it; and a short name.
    version = "7.8" if capability < (10, 0) else "8.8"
    if "wgmma" in text:  # these are only in cards of just this capability
        version = "8.0"
        text = text.replace(".target sm_90", ".target sm_90a", 1)
    text = re.sub(r"\.version \d+\.\d+", f".version {version}", text, count=1)
    return text.replace(entry_point(text), ENTRY)


@overload
def kernel(
    function: Callable[[Arguments], None], threads: int, **constants: int | float | str
) -> CudaKernel[Arguments]: ...


@overload
def kernel(
    function: Callable[..., None], threads: int, **constants: int | float | str
) -> CudaKernel[Any]: ...


def kernel(function: Callable[..., None], threads: int, **constants: int | float | str) -> CudaKernel[Any]:
    """The `CudaKernel` of a function of a module in kernels/, its constants in the order of their names."""
    module = function.__module__.removeprefix(f"{KERNELS}.")
    return CudaKernel(module, function.__name__, threads, tuple(sorted(constants.items())))


def missing_compiler() -> str:
    """What to say where kernels must be compiled and numba-cuda is not installed."""
    how = how_to_install("cuda")
    return f"the kernels must be compiled once, which needs numba-cuda; install it with: {how}"


@dataclass
class Kernels:
    """The kernels of one card, loaded when first asked for. `close` ends what compiles in the background."""

    device: Device
    progress: Callable[[str, int, int], None] | None = None
    _functions: dict[tuple[CudaKernel, int], int] = field(default_factory=dict)
    _codes: dict[CudaKernel, bytes] = field(default_factory=dict)  # compiled by this process
    _wanted: list[CudaKernel] | None = None  # what a function that is called now asks for
    _all_wanted: bool = False  # or only what is missing
    _workers: Workers | None = None

    def function(self, what: CudaKernel, shared_bytes: int = 0) -> int:
        """What the driver launches, for up to `shared_bytes` of shared memory."""
        key = what, shared_bytes
        if self._wanted is not None and self._all_wanted:
            self._wanted.append(what)
            return 0
        if key not in self._functions:
            code = self._codes.get(what) or self._files.load(self._key(what))
            if code is None:
                if self._wanted is not None:
                    self._wanted.append(what)
                    return 0
                code = self._compile(what)
            self._functions[key] = self.device.load(code, ENTRY, shared_bytes)
        return self._functions[key]

    def complete(self, make: Callable[[], Made]) -> Made:
        """What `make` returns; it is called again once the kernels that were missing are compiled, all at
        once."""
        if self._wanted is not None:
            return make()
        made, wanted = self._listen(make, all_wanted=False)
        if not wanted:
            return made
        self._compile_now(wanted)
        return make()

    def compile_all(self, ask: Callable[[], object]) -> None:
        """Compile what `ask` asks `function` for, where it is missing, in several processes at once.

        What these cannot is compiled when it is needed. Raises CudaUnavailable without a compiler.
        """
        self._compile_now(self._missing(self._listen(ask)[1]))

    def compile_in_order(self, capacity: str, first: Ask, alike: Sequence[Ask], later: Sequence[Ask]) -> None:
        """Compile what is missing of what `first` asks for, and of what all of `alike` ask for; in the
        background, what each of `later` asks for, in this order.

        Asking takes time. So when nothing was missing, this is noted on disk for a model that asks for the
        same at `first` with the same `capacity`, and only `first` is asked from then on. Raises
        CudaUnavailable without a compiler.
        """
        wanted = self._listen(first)[1]
        digest = hashlib.sha256(repr([capacity, wanted]).encode()).hexdigest()[:24]
        complete, note = FileCache(cache_folder(), ".complete"), f"{_prefix(self.device.capability)}-{digest}"
        if complete.has(note):
            self._compile_now(self._missing(wanted))
            return
        kinds = [self._listen(ask)[1] for ask in alike]
        common = [what for what in kinds[0] if all(what in kind for kind in kinds)] if kinds else []
        rest = [what for ask in later for what in self._listen(ask)[1]]
        if not (missing := self._missing([*wanted, *common, *rest])):
            complete.store(note, b"")
            return
        urgent = [what for what in missing if what in {*wanted, *common}]
        # Those that take longest first, so that no process is left with one in the end.
        self._compile_now(sorted(urgent, key=lambda what: "attention" not in what.name))
        self._compiling().add(missing)

    def finish(self) -> None:
        """Wait until nothing is compiled in the background any more."""
        if self._workers is not None:
            self._workers.finish(self._at)

    def close(self) -> None:
        """Stop compiling. Missing kernels are still compiled where they are needed."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def _missing(self, wanted: Iterable[CudaKernel]) -> list[CudaKernel]:
        """Those that have to be compiled, each once."""
        unique = dict.fromkeys(wanted)
        return [w for w in unique if w not in self._codes and not self._files.has(self._key(w))]

    def _listen(self, make: Callable[[], Made], all_wanted: bool = True) -> tuple[Made, list[CudaKernel]]:
        """What a function returns, and the kernels that it has asked for: all of them, or those missing."""
        self._wanted, self._all_wanted = [], all_wanted
        try:
            made = make()
            wanted = self._wanted
        finally:
            self._wanted = None
        return made, list(dict.fromkeys(wanted))

    def _compile_now(self, missing: list[CudaKernel]) -> None:
        if missing:
            self._compiling().compile_now(missing, self._at)

    def _at(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress("compiling kernels (only once)", done, total)

    def _compiling(self) -> Workers:
        if compiler_version() is None:
            raise CudaUnavailable(missing_compiler())
        if self._workers is None:
            from .workers import Workers

            self._workers = Workers(self.device.capability, self._take)
        return self._workers

    def _take(self, what: CudaKernel, ptx: str) -> None:
        """Store a kernel that another process has compiled; called in another thread."""
        self.device.use()
        self._store(what, ptx)

    def _key(self, what: CudaKernel) -> str:
        """The name of the kernel's file, without its suffix."""
        digest = hashlib.sha256(repr(what).encode()).hexdigest()[:24]
        return f"{_prefix(self.device.capability)}-{what.name}-{digest}"

    @property
    def _files(self) -> FileCache:
        return FileCache(cache_folder(), _SUFFIX)

    def _compile(self, what: CudaKernel) -> bytes:
        if self.progress is not None:
            self.progress(f"compiling {what.name} (only once)", 0, 1)
        try:
            text = what.ptx(self.device.capability)
        except ImportError as problem:
            raise CudaUnavailable(f"{missing_compiler()} ({problem})") from None
        return self._store(what, text)

    def _store(self, what: CudaKernel, ptx: str) -> bytes:
        self._codes[what] = code = self.device.assemble(ptx)
        self._files.store(self._key(what), code)
        return code


def compiled_kernels(capability: tuple[int, int]) -> int:
    """The number of kernels of these sources on disk for cards of that compute capability."""
    return sum(1 for _ in cache_folder().glob(f"{_prefix(capability)}-*{_SUFFIX}"))


def compiler_version() -> str | None:
    """The version of numba-cuda; None if it is not installed."""
    try:
        return importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        return None


def _prefix(capability: tuple[int, int]) -> str:
    """The start of the names of all files for cards of that compute capability, by sources and compilers."""
    return f"sm{capability[0]}{capability[1]}-{_fingerprint()[:16]}"


def pack_arguments(*values: int | float) -> bytes:
    """A kernel's parameters as they lie in memory: 64-bit integers at multiples of 8 bytes, and float32.

    `pack_arguments(*record)` packs an argument record, whose fields know their types. Of loose values the
    Python type decides, so that a float32 parameter must be given a float.
    """
    out = b""
    for value in values:
        if isinstance(value, float):
            out += struct.pack("<f", value)
        else:
            out += b"\0" * (-len(out) % 8) + struct.pack("<q", value)
    return out


@cache
def _fingerprint() -> str:
    """A digest of the sources, and of the compilers to PTX."""
    digest = hashlib.sha256()
    with suppress(OSError):  # without sources the cache is this process's own
        digest.update(SOURCES.digest())
    for name in ("numba-cuda", "numba", "llvmlite"):
        with suppress(importlib.metadata.PackageNotFoundError):
            digest.update(importlib.metadata.version(name).encode())
    return digest.hexdigest()
