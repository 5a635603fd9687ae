"""What the compiled code is written with: `jit` for helpers, `kernel` for entry points of the machine.

Numba is imported when something must be compiled, not before. Its own cache is not used: it notices only
edits of the file that holds the entry point, not of the helpers it calls in others, and needs all of Numba to
read anything. Whoever runs kernels names them (`kernel.CpuKernel`) and need not import their modules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

KernelFunction = Callable[[int, int, int], None]  # (arguments, step, thread), addresses and a number


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


class EntryPoint:
    """A function `f(arguments, step, thread)` to be called as machine code. It raises nothing: an exception
    ends it and is lost."""

    def __init__(self, function: KernelFunction, fastmath: Any = False) -> None:
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self._function = function
        self._fastmath = fastmath

    def machine_code(self) -> tuple[bytes, list[str]]:
        """Compile it: object code, and the outside symbols that it names."""
        from . import compiler

        return compiler.machine_code(self._function, self._fastmath)


def kernel(function: KernelFunction) -> EntryPoint:
    """An entry point in strict floating point."""
    return EntryPoint(function)


def reassociating_kernel(function: KernelFunction) -> EntryPoint:
    """An entry point whose sums LLVM may reorder, so that it can vectorise them."""
    return EntryPoint(function, fastmath={"reassoc", "contract", "nsz"})
