"""What the compiled code is written with: `jit` for helpers, `kernel` for entry points of the machine.

Numba is imported when something must be compiled, not before: a kernel that is in the cache (`kernel_cache`)
starts as fast as its file is read. Numba's own cache is not used. It notices only edits of the file that
holds the entry point, not of the helpers it calls in others, and needs all of Numba to read anything.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import numpy as np

from .kernel_cache import KernelCache, MachineCode, kernel_cache

KernelFunction = Callable[[int, int, int], None]  # (arguments, step, thread), addresses and a number


# Numba is imported and used by one thread at a time: another one would find it half set up.
_COMPILING = threading.RLock()


class Helper:
    """A function that kernels call, compiled into each of them and never kept by itself."""

    def __init__(self, function: Callable) -> None:
        self.py_func = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    @cached_property
    def dispatcher(self) -> Any:
        import numba

        # Without the wrappers that would let Python and C call it.
        options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return numba.njit(self.py_func, nogil=True, error_model="numpy", forceinline=True, **options)

    @property
    def _numba_type_(self) -> Any:
        """How Numba sees a global of this name, in code that it compiles."""
        from numba import typeof

        return typeof(self.dispatcher)

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.__name__} is for compiled code")


def jit(function: Callable) -> Any:
    """A helper that kernels call."""
    return Helper(function)


class Kernel:
    """An entry point `f(arguments, step, thread)`: machine code at an address that the cache or, if it is not
    there, Numba gives when it is first asked for. It raises nothing: an exception ends it and is lost."""

    def __init__(self, function: KernelFunction, fastmath: Any = False) -> None:
        self.name = function.__name__
        self.module = function.__module__
        self._function = function
        self._fastmath = fastmath

    @cached_property
    def key(self) -> str:
        """A file name that no other kernel of the same sources has: factories make many of one function."""
        digest = hashlib.sha256()
        for part in _parts((self._function, sorted(self._fastmath or ())), set()):
            digest.update(part.encode())
            digest.update(b"\0")
        return f"{self.name}-{digest.hexdigest()[:24]}"

    @cached_property
    def compiled(self) -> MachineCode:
        return self.load(kernel_cache()) or self.compile(kernel_cache())

    @property
    def address(self) -> int:
        return self.compiled.address

    def load(self, cache: KernelCache) -> MachineCode | None:
        """The kernel from the cache, None if it is missing or damaged there."""
        code = self.__dict__.get("compiled") or cache.load(self.key)
        if code is not None:
            self.__dict__["compiled"] = code
        return code

    def compile(self, cache: KernelCache) -> MachineCode:
        """Compile the kernel and keep it in the cache. Of several threads that want it, one does so."""
        with _COMPILING:
            from .compiler import machine_code

            if "compiled" not in self.__dict__:
                code = cache.store(self.key, *machine_code(self._function, self._fastmath))
                self.__dict__["compiled"] = code
        return self.__dict__["compiled"]


def kernel(function: KernelFunction) -> Kernel:
    """An entry point in strict floating point."""
    return Kernel(function)


def reassociating_kernel(function: KernelFunction) -> Kernel:
    """An entry point whose sums LLVM may reorder, so that it can vectorise them."""
    return Kernel(function, fastmath={"reassoc", "contract", "nsz"})


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """What tells a compiled function from others that the same sources make: code and all it closes over.

    TypeError for values that look alike although they are different.
    """
    if isinstance(value, (Helper, Kernel)) or hasattr(value, "py_func"):
        value = value._function if isinstance(value, Kernel) else value.py_func
    if isinstance(value, FunctionType):
        yield f"{value.__module__}.{value.__qualname__}"
        if id(value) in seen:  # calls itself
            return
        seen.add(id(value))
        yield from _parts(value.__code__, seen)
        yield from _parts(value.__defaults__, seen)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield name
            try:
                yield from _parts(cell.cell_contents, seen)
            except ValueError:  # an empty cell
                yield "empty"
    elif isinstance(value, CodeType):
        yield value.co_code.hex()
        yield repr(value.co_names)
        yield from _parts(value.co_consts, seen)
    elif isinstance(value, (tuple, list)):
        yield f"{type(value).__name__} {len(value)}"
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, dict):
        yield from _parts(list(value.items()), seen)
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__qualname__
        yield from _parts([getattr(value, field.name) for field in fields(value)], seen)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, (type, BuiltinFunctionType)):
        yield f"{value.__module__}.{value.__qualname__}"
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic, np.dtype)):
        yield f"{type(value).__name__} {value!r}"
    elif type(value).__module__.partition(".")[0] == "numba" and " at 0x" not in repr(value):
        yield repr(value)  # types, intrinsics
    else:
        raise TypeError(f"a kernel cannot close over a {type(value).__name__}")
